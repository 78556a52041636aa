"""Outputs judged part by part are judged as they are whole: the same figures, gates and reasons."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck import Contract, KernelSpec
from numcheck.distinct import KEPT, Distinct
from numcheck.errors import InvalidSpec
from numcheck.figures import Figures
from numcheck.gate import Gate
from numcheck.judge import gates as whole_gates
from numcheck.oracles.sparse_mla import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.reading import Emulation, read, readings
from numcheck.sample import Sample, sample
from numcheck.stream import gates, side_by_side
from numcheck.stream import streamed as figures_of
from numcheck.ulp import cast

CONTRACT = Contract(rounds=dict.fromkeys(("out", "d_q", "d_kv", "E", "dS", "P.backward"), "data"), accumulate="fp32")
SPEC = KernelSpec("sparse_mla.fake", sparse_mla, forward=dict, vjp=dict, contract=CONTRACT)
CASE = named(12, 9, 4, 32, 16, 8, dtype="bf16", indices="holes", sink="finite", regime="normal")
ROWS, DRAWS, JITTERS = 5, 8, 4


def emulated(spec: KernelSpec, made: Sample, seed: int = 99) -> dict[str, Tensor]:
    """What a right kernel may give: an emulation jittered by accumulator-level noise, in the outputs' dtypes."""
    reading = Emulation(spec.contract.policy(made.case), seed)
    results = read(spec.oracle, reading, made.exact())
    return {name: cast(t, spec.oracle.result(name).dtype_for(made.case)) for name, t in results.items()}


@pytest.fixture(scope="module")
def made() -> Sample:
    return sample(sparse_mla, CASE)


@pytest.fixture(scope="module")
def outputs(made: Sample) -> dict[str, Tensor]:
    return emulated(SPEC, made)


def streamed(made: Sample, outputs: dict[str, Tensor], **rest: Any) -> tuple[Gate, ...]:
    options: dict[str, Any] = {"rows": ROWS, "draws": DRAWS, "jitters": JITTERS, "device": "cpu", **rest}
    return gates(SPEC, made, outputs, **options)


def same(a: Gate, b: Gate) -> bool:
    """Gates of one figure: FP64 sums in another order differ by a few of their roundings."""
    if (a.kind, a.output, a.vacuous) != (b.kind, b.output, b.vacuous):
        return False
    pairs = ((a.value, b.value), (a.limit, b.limit), (a.spread, b.spread), (a.lower, b.lower))
    return all(x == y or math.isclose(x, y, rel_tol=1e-8, abs_tol=1e-9) for x, y in pairs)


def test_gates_are_those_of_the_whole_readings(made: Sample, outputs: dict[str, Tensor]) -> None:
    saved = {name: outputs[name].double() for name in ("out", "lse")}
    policy = CONTRACT.policy(CASE)
    held = readings(sparse_mla, policy, made, DRAWS, saved=saved, jitters=JITTERS, rows=ROWS)
    mine, theirs = streamed(made, outputs), whole_gates(SPEC, CASE, outputs, held)
    assert [(g.kind, g.output) for g in mine] == [(g.kind, g.output) for g in theirs]
    assert all(same(a, b) for a, b in zip(mine, theirs, strict=True))
    assert all(g.held for g in mine)


def broken(outputs: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Outputs that are wrong in one way each, late in the batch."""

    def change(name: str, edit: Any) -> dict[str, Tensor]:
        changed = outputs[name].clone()
        edit(changed)
        return {**outputs, name: changed}

    return {
        "a row of zeros": change("out", lambda t: t[11].zero_()),
        "NaN": change("d_q", lambda t: t[10, 3, 7].fill_(math.nan)),
        "a scaled sum": change("d_kv", lambda t: t.mul_(1.02)),
        "a shifted lse": change("lse", lambda t: t.add_(0.01)),
        "a slice lost": change("d_sink", lambda t: t.mul_(0.9)),
    }


@pytest.mark.parametrize("name", ["a row of zeros", "NaN", "a scaled sum", "a shifted lse", "a slice lost"])
def test_what_is_wrong_in_one_slice_fails(made: Sample, outputs: dict[str, Tensor], name: str) -> None:
    bad = broken(outputs)[name]
    changed = next(key for key in outputs if bad[key] is not outputs[key])
    kept = {key: outputs[key] for key in ("out", "lse")}
    failed = {g.output for g in streamed(made, bad, saved=kept) if not g.held}
    assert failed == {changed}


def test_the_worst_element_has_its_index_in_the_whole(made: Sample, outputs: dict[str, Tensor]) -> None:
    bad = broken(outputs)["NaN"]
    found = figures_of(SPEC, made, bad, rows=ROWS, draws=2, jitters=2, device="cpu").figures["d_q"]
    assert found.worst is not None
    assert found.worst.index == (10, 3, 7)
    assert math.isnan(found.worst.got)


def test_malformed_and_missing_outputs_fail_and_the_rest_is_judged(made: Sample, outputs: dict[str, Tensor]) -> None:
    bad = {**outputs, "d_q": outputs["d_q"][:-1]}
    del bad["d_kv"]
    made_gates = streamed(made, bad)
    assert {g.output for g in made_gates if not g.held} == {"d_q", "d_kv"}
    assert {g.output for g in made_gates} == set(outputs)


def test_without_the_worst_case_there_is_no_ceiling(made: Sample, outputs: dict[str, Tensor]) -> None:
    ceilings = [g for g in streamed(made, outputs, radius=False) if g.kind == "ceiling"]
    assert {g.vacuous for g in ceilings} == {"the worst case was not asked for"}
    assert {g.output for g in streamed(made, broken(outputs)["a scaled sum"], radius=False) if not g.held} == {"d_kv"}


def test_a_backward_alone_is_judged_on_the_saved_outputs_that_it_was_given(
    made: Sample, outputs: dict[str, Tensor]
) -> None:
    alone = SPEC.but(forward=None)
    saved = {name: outputs[name] for name in ("out", "lse")}
    gradients = {name: t for name, t in outputs.items() if name not in saved}
    exact = {name: t.double() for name, t in saved.items()}
    results = read(sparse_mla, Emulation(CONTRACT.policy(CASE)), made.exact(), exact)
    gradients = {name: cast(results[name], sparse_mla.result(name).dtype_for(CASE)) for name in gradients}
    right = gates(alone, made, gradients, saved=saved, rows=ROWS, draws=DRAWS, device="cpu")
    assert all(g.held for g in right)
    assert {g.output for g in right} == set(gradients)
    other = {**saved, "lse": saved["lse"] + 0.1}
    assert not all(g.held for g in gates(alone, made, gradients, saved=other, rows=ROWS, draws=DRAWS, device="cpu"))


def test_open_elements_are_judged_by_nothing(made: Sample, outputs: dict[str, Tensor]) -> None:
    mask = torch.zeros(outputs["lse"].shape, dtype=torch.bool)
    mask[11, 2] = True
    changed = {**outputs, "lse": outputs["lse"].masked_fill(mask, 1234.0)}
    kept = {key: outputs[key] for key in ("out", "lse")}
    assert not all(g.held for g in streamed(made, changed, saved=kept))
    assert all(g.held for g in streamed(made, changed, saved=kept, left_open={"lse": mask}))


def test_parts_of_an_output_add_up_to_its_figures() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(10, 96, generator=generator, dtype=torch.float64)
    noise = truth + 1e-3 * torch.randn(3, 10, 96, generator=generator, dtype=torch.float64)
    got = truth + 1e-3 * torch.randn(10, 96, generator=generator, dtype=torch.float64)
    jitters = torch.where(torch.rand(2, 10, 96, generator=generator) < 0.1, got, truth)
    got[4, 5] = math.inf

    def filled(*cuts: int) -> Figures:
        made = Figures("out", "bf16", True, (10, 96), 3, 2)
        for start, stop in zip((0, *cuts), (*cuts, 10), strict=True):
            rows = slice(start, stop)
            part = made.part(got[rows], truth[rows], truth[rows], truth[rows].abs() * 0.01, start)
            for k in range(3):
                part.draw(k, noise[k, rows])
            for k in range(2):
                part.jitter(k, jitters[k, rows])
            part.close()
        return made

    whole, cut = filled(), filled(3, 4, 9)
    for name in ("wrong", "differ", "plain", "rounds", "flips_by_run", "independent", "worst", "slack", "ulps"):
        assert getattr(whole, name) == getattr(cut, name), name
    for name in ("relative", "predicted", "ratio", "match", "log_error", "bias"):
        a, b = getattr(whole, name), getattr(cut, name)
        a, b = (getattr(a, "z", a), getattr(b, "z", b))
        assert a == pytest.approx(b, rel=1e-9)
    assert whole.blocks is not None
    assert cut.blocks is not None
    for one, other in zip(whole.blocks.found(), cut.blocks.found(), strict=True):
        assert (one.label, one.most) == (other.label, other.most)
        assert torch.equal(one.differ, other.differ)
        assert torch.equal(one.flips, other.flips)
    assert [int(kind.differ.sum()) for kind in whole.blocks.found()] == [whole.differ] * 3
    assert [int(kind.flips.sum()) for kind in whole.blocks.found()] == [whole.seen] * 3


def test_distinct_numbers_are_counted_exactly_while_few_and_closely_when_many() -> None:
    few = Distinct()
    few.add(torch.tensor([1.0, 2.0, 2.0, 0.0, -0.0, math.inf], dtype=torch.float64))
    few.add(torch.tensor([2.0, 5.0], dtype=torch.float64))
    assert few.count == 5
    many = Distinct()
    for k in range(4):
        many.add(torch.arange(k * KEPT, (k + 2) * KEPT, dtype=torch.float64))
    # Kept numbers stand for several each: 2^16 of them, give or take 0.5 percent, five times over.
    assert many.count == pytest.approx(5 * KEPT, rel=0.03)
    same_again = Distinct()
    same_again.add(torch.ones(10 * KEPT, dtype=torch.float64))
    assert same_again.count == 1


def test_a_wider_claim_than_the_kernels_shows(made: Sample, outputs: dict[str, Tensor]) -> None:
    """Kernels that round P, judged by a Contract that does not, differ from its emulation too often."""
    less = replace(CONTRACT, rounds=dict.fromkeys(("out", "d_q", "d_kv"), "data"))
    found = gates(SPEC.but(contract=less), made, outputs, rows=ROWS, draws=DRAWS, device="cpu")
    assert "match" in {g.kind for g in found if not g.held}


def test_claims_side_by_side_are_judged_as_each_is_alone(made: Sample, outputs: dict[str, Tensor]) -> None:
    wrong = {**outputs, "d_q": outputs["d_q"] * 1.5}
    found = side_by_side([(SPEC, outputs), (SPEC, wrong)], made, rows=ROWS, draws=DRAWS, jitters=JITTERS, device="cpu")
    for gates_found, given in zip(found, (outputs, wrong), strict=True):
        alone = streamed(made, outputs if given is outputs else wrong)
        # The VJP of both was given what the first saved, which is the same here.
        assert all(same(a, b) for a, b in zip(gates_found, alone, strict=True))
    assert all(gate.held for gate in found[0])
    assert {gate.output for gate in found[1] if not gate.held} == {"d_q"}


def test_claims_of_two_policies_are_refused(made: Sample, outputs: dict[str, Tensor]) -> None:
    other = SPEC.but(contract=Contract(rounds={}, accumulate="fp32"))
    with pytest.raises(InvalidSpec, match="differ in problem or policy"):
        side_by_side([(SPEC, outputs), (other, outputs)], made, device="cpu")
