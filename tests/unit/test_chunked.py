"""A batch read slice by slice gives what it gives whole; sums over it round once, after the last slice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck import Case, CaseSpace, Contract, Input, Oracle, Output, Sum
from numcheck.errors import InvalidSpec
from numcheck.oracles import mhc_post
from numcheck.oracles.sparse_mla import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.reading import Readings, readings, slices
from numcheck.reading.slices import rows_that_fit, whole_because
from numcheck.sample import Sample, sample

MLA = Contract(rounds=dict.fromkeys(("out", "d_q", "d_kv", "E", "dS", "P.backward"), "data"), accumulate="fp32")
MHC = Contract(rounds=dict.fromkeys(("out", "d_x", "d_residual"), "data"), accumulate="fp32")
CASES = {
    "holes": named(7, 9, 4, 16, 8, 6, dtype="bf16", indices="holes", sink="finite", length="partial"),
    "duplicates": named(5, 6, 2, 8, 8, 9, dtype="fp32", indices="duplicates", regime="normal"),
    "dead rows": named(6, 5, 2, 8, 4, 3, dtype="bf16", indices="dead_rows", sink="+inf", d_kv="fp32"),
}


def read(oracle: Oracle, contract: Contract, made: Sample, rows: int | None, draws: int = 2) -> Readings:
    return readings(oracle, contract.policy(made.case), made, draws, jitters=2, rows=rows)


def gap(a: dict[str, Tensor], b: dict[str, Tensor], name: str) -> float:
    """The largest difference of an output beside its root mean square; equal infinities are no difference."""
    apart = torch.where(a[name] == b[name], 0.0, a[name] - b[name])
    size = a[name][torch.isfinite(a[name])].pow(2).mean().sqrt().item()
    return float(apart.abs().max()) / (size or 1.0)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", CASES)
def test_truth_emulation_and_radius_are_those_of_the_whole(name: str, rows: int) -> None:
    made = sample(sparse_mla, CASES[name])
    whole, cut = read(sparse_mla, MLA, made, None), read(sparse_mla, MLA, made, rows)
    assert set(cut.truth) == set(whole.truth)
    for output in whole.truth:
        # FP64 sums in another order; every rounding of the emulation falls the same way.
        for kind in ("truth", "emulation"):
            assert gap(getattr(whole, kind), getattr(cut, kind), output) < 1e-13
        assert gap(whole.radius, cut.radius, output) < 1e-9


def test_rows_of_a_problem_without_sums_over_them_are_the_same_bits() -> None:
    made = sample(mhc_post, Case.of(S=5, H=4, D=31, dtype="bf16"))
    whole, cut = read(mhc_post, MHC, made, None), read(mhc_post, MHC, made, 2)
    for output in whole.truth:
        assert torch.equal(whole.truth[output], cut.truth[output])
        assert torch.equal(whole.radius[output], cut.radius[output])
        assert torch.equal(whole.emulation[output], cut.emulation[output])


def rms(t: Tensor) -> float:
    return t.pow(2).mean().sqrt().item()


def test_draws_are_spread_as_those_of_the_whole() -> None:
    made = sample(sparse_mla, named(24, 9, 4, 16, 8, 12, dtype="bf16", indices="duplicates", regime="normal"))
    whole, cut = read(sparse_mla, MLA, made, None, 8), read(sparse_mla, MLA, made, 5, 8)
    for output in whole.truth:
        spreads = [sum(rms(draw[output] - r.truth[output]) ** 2 for draw in r.noise) ** 0.5 for r in (whole, cut)]
        # Eight draws of outputs of a hundred elements and more, whose errors are partly shared.
        assert spreads[0] == pytest.approx(spreads[1], rel=0.25)
    # A draw goes on from slice to slice: no two slices have the same noise.
    first = cut.noise[0]["out"] - cut.truth["out"]
    assert not torch.equal(first[:5], first[5:10])


def summed(read: Any, x: Any, w: Any) -> dict[str, Any]:
    return {"out": read.at("out", x * w)}


def tokens(vjp: Any, **rest: Any) -> Oracle:
    """out = x * w over tokens S, so that d_w is a sum over the batch."""
    return Oracle(
        "tokens",
        inputs=(Input("x", ("S", "D")), Input("w", ("D",))),
        outputs=(Output("out", ("S", "D")),),
        forward=summed,
        vjp=vjp,
        space=CaseSpace({"S": (1, 999), "D": (1, 9)}),
        batch="S",
        **rest,
    )


def named_sum(read: Any, x: Any, w: Any, d_out: Any) -> dict[str, Any]:
    return {"d_x": read.at("d_x", d_out * w), "d_w": read.at("d_w", read.total("d_w", x * d_out, 0))}


def nameless(read: Any, x: Any, w: Any, d_out: Any) -> dict[str, Any]:
    return {"d_x": read.at("d_x", d_out * w), "d_w": read.at("d_w", 2.0 * read.total("d_w", x * d_out, 0))}


def product(read: Any, x: Any, w: Any, d_out: Any) -> dict[str, Any]:
    ones = x.new_zeros((1, x.shape[0])) + 1.0
    return {"d_x": read.at("d_x", d_out * w), "d_w": read.at("d_w", read.matmul("d_w", ones, x * d_out)[0])}


def test_a_partial_output_rounds_once_and_grows_with_all_of_its_terms() -> None:
    oracle, case = tokens(named_sum), Case.of(S=400, D=3, dtype="bf16", regime="normal")
    contract = Contract(rounds={"d_w": "bf16"}, accumulate={"d_w": Sum("fp32", "sequential")})
    made = sample(oracle, case)
    whole, cut = read(oracle, contract, made, None), read(oracle, contract, made, 7)
    assert torch.equal(whole.emulation["d_w"], cut.emulation["d_w"])
    assert gap(whole.radius, cut.radius, "d_w") < 1e-9
    bare = Contract(accumulate={"d_w": Sum("fp32", "sequential")})
    # FP32 data, of which every partial sum rounds, in a slice as in the whole.
    fine = sample(oracle, case.but(dtype="fp32"))
    plain = [read(oracle, bare, fine, rows, 64) for rows in (None, 7)]
    errors = [sum(rms(draw["d_w"] - r.truth["d_w"]) ** 2 for draw in r.noise) ** 0.5 for r in plain]
    # A partial sum late in the chain is large, wherever a slice begins: 192 numbers give the spread to 10 percent.
    assert errors[0] == pytest.approx(errors[1], rel=0.3)


def test_what_is_no_named_sum_cannot_be_divided_and_is_read_whole_unasked() -> None:
    for vjp in (nameless, product):
        oracle = tokens(vjp)
        made = sample(oracle, Case.of(S=6, D=3))
        with pytest.raises(InvalidSpec, match="put signs and factors into the terms"):
            read(oracle, Contract(), made, 2)
        assert rows_that_fit(oracle, made, "cpu") == 6
        assert read(oracle, Contract(), made, None).truth["d_w"].shape == (3,)


def test_a_sum_that_is_not_returned_is_missed_in_the_first_slice() -> None:
    oracle = tokens(lambda read, x, w, d_out: {"d_x": read.at("d_x", d_out * w), "d_w": None})
    oracle = replace(oracle, gradients=tuple(replace(g, given=lambda case: True) for g in oracle.gradients))
    with pytest.raises(InvalidSpec, match="returned no d_w"):
        read(oracle, Contract(), sample(oracle, Case.of(S=6, D=3)), 2)


@pytest.mark.parametrize(
    ("oracle", "why"),
    [
        (replace(mhc_post, batch="", partial=()), "names no batch"),
        (replace(mhc_post, vjp=None), "no vjp of its own"),
        (tokens(named_sum, partial=("out",)), "d_w has no batch axis"),
        (replace(tokens(named_sum), outputs=(Output("out", lambda case: (case["S"], case["D"])),)), "are a function"),
        (replace(tokens(named_sum), inputs=(Input("x", ("D", "S")), Input("w", ("D",)))), "behind its first axis"),
    ],
)
def test_a_problem_that_cannot_be_divided_says_why(oracle: Oracle, why: str) -> None:
    case = Case.of(S=4, H=2, D=3)
    assert why in whole_because(oracle, case)
    if oracle.batch and "outputs" not in why:
        made = sample(mhc_post, case) if oracle.name == "mhc_post" else sample(tokens(named_sum), case)
        with pytest.raises(InvalidSpec, match="rows at a time"):
            read(oracle, Contract(), made, 2)


def test_rows_are_as_many_as_memory_allows(monkeypatch: Any) -> None:
    made = sample(sparse_mla, named(40, 9, 4, 16, 8, 6))
    assert rows_that_fit(sparse_mla, made, "cpu") == 40
    monkeypatch.setattr(slices, "WEIGHED", 1)
    assert rows_that_fit(sparse_mla, made, "cpu") == 40
    # The largest tensor of a row has its slots' keys: topk * D = 96 elements.
    monkeypatch.setattr(slices, "ELEMENTS", {"cpu": 960})
    assert rows_that_fit(sparse_mla, made, "cpu") == 10
    monkeypatch.setattr(slices, "ELEMENTS", {"cpu": 1})
    assert rows_that_fit(sparse_mla, made, "cpu") == 1
    whole = read(sparse_mla, MLA, made, 40)
    assert gap(whole.truth, read(sparse_mla, MLA, made, None).truth, "d_kv") < 1e-13


def test_a_slices_saved_outputs_are_the_kernels_own_rows() -> None:
    made = sample(sparse_mla, CASES["holes"])
    kept = {name: t + 1.0 for name, t in read(sparse_mla, MLA, made, None).emulation.items() if name in ("out", "lse")}
    policy = MLA.policy(made.case)
    whole, cut = (readings(sparse_mla, policy, made, 0, saved=kept, jitters=0, rows=rows) for rows in (None, 2))
    assert gap(whole.truth, cut.truth, "d_q") < 1e-13
    assert gap(whole.truth, read(sparse_mla, MLA, made, None).truth, "d_q") > 1e-3
