"""The sparse-MLA oracle against plain autograd, written here slot by slot, and what its definition demands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.certify import certify
from numcheck.contract import Contract, Policy
from numcheck.fingerprint import EXPLAINS, candidates, summary
from numcheck.oracles import sparse_mla, sparse_mla_cases
from numcheck.oracles.sparse_mla_cases import FACTS, PATTERNS, named
from numcheck.oracles.sparse_mla_relations import RELATIONS
from numcheck.reading import Emulation, Noise, Radius, Recording, Truth, read
from numcheck.sample import sample
from numcheck.ulp import round_to

# FP64 rounds each of a few hundred operations at 1.1e-16 of the terms.
CLOSE = 1e-12
LENGTHS, SINKS = ("none", "partial", "beyond"), ("none", "finite", "-inf", "+inf", "huge")
FP32 = Contract(accumulate="fp32")


def exactly(case: Case) -> dict[str, Any]:
    return sample(sparse_mla, case).exact()


def truth(given: Mapping[str, Any], saved: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    return read(sparse_mla, Truth(), given, saved)


def slot_by_slot(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Forward in plain torch, one query and head at a time, and gradients by autograd."""
    q, kv = given["q"].clone().requires_grad_(), given["kv"].clone().requires_grad_()
    sink = given["sink"].clone().requires_grad_() if "sink" in given else None
    out, lse = [], []
    for t, slots in enumerate(given["topk_idxs"].tolist()):
        length = int(given["topk_length"][t]) if "topk_length" in given else len(slots)
        rows = [i for j, i in enumerate(slots) if j < length and 0 <= i < len(kv)]
        for h in range(q.shape[1]):
            value = torch.zeros(given["value_dim"], dtype=torch.float64)
            scores = given["softmax_scale"] * kv[rows] @ q[t, h]
            lse.append(float(torch.logsumexp(scores, 0).detach()) if rows else math.inf)
            swallowed = sink is not None and float(sink[h].detach()) == math.inf
            if rows and not swallowed:
                more = scores if sink is None else torch.cat([scores, sink[h : h + 1]])
                value = torch.softmax(more, 0)[: len(rows)] @ kv[rows][:, : given["value_dim"]]
            out.append(value)
    stacked = torch.stack(out).reshape(given["d_out"].shape)
    leaves = [q, kv] if sink is None else [q, kv, sink]
    loss = (stacked * given["d_out"]).sum() + 0.0 * sum(torch.nan_to_num(x, 0, 0, 0).sum() for x in leaves)
    gradients = torch.autograd.grad(loss, leaves)
    names = ("d_q", "d_kv", "d_sink")[: len(leaves)]
    stated = {"out": stacked.detach(), "lse": torch.tensor(lse, dtype=torch.float64).reshape(q.shape[:2])}
    return stated | {n: torch.nan_to_num(g, 0.0) for n, g in zip(names, gradients, strict=True)}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("pattern", [*PATTERNS, "nothing"])
def test_values_and_gradients_are_those_of_the_definition(pattern: str, sink: str) -> None:
    for length in LENGTHS:
        case = named(4, 7, 2, 5, 3, 9, indices=pattern, length=length, sink=sink, regime="normal", d_out="decades")
        given = exactly(case)
        got, expected = truth(given), slot_by_slot(given)
        assert set(got) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, rtol=CLOSE, atol=CLOSE * float(given["d_out"].abs().max()))


def test_the_certificate_holds_and_a_wrong_sign_breaks_it() -> None:
    assert certify(sparse_mla).status == "CERTIFIED"

    def turned(*args: Any, **given: Any) -> dict[str, Any]:
        gradients = sparse_mla.vjp(*args, **given)  # type: ignore[misc]
        return gradients | ({"d_sink": -gradients["d_sink"]} if "d_sink" in gradients else {})

    assert certify(replace(sparse_mla, vjp=turned)).status == "FAILED"


def test_a_row_listed_twice_counts_twice() -> None:
    case = named(1, 1, 1, 4, 4, 2, sink="none", regime="normal")
    once, twice = exactly(case.but(topk=1)), exactly(case)
    assert float((truth(twice)["lse"] - truth(once)["lse"]).max()) == pytest.approx(math.log(2.0), rel=1e-15)


def test_a_sink_of_minus_infinity_is_no_sink() -> None:
    case = named(3, 5, 2, 4, 4, 5, indices="random", sink="-inf", regime="normal")
    absent = truth(exactly(case.but(sink="none")))
    present = truth(exactly(case))
    assert all(torch.equal(present[name], absent[name]) for name in absent)
    assert not bool(present["d_sink"].any())


def test_a_sink_of_infinity_takes_everything() -> None:
    case = named(3, 5, 4, 4, 4, 5, indices="random", sink="+inf", regime="normal")
    got = truth(exactly(case))
    for name in ("out", "d_q"):
        assert not bool(got[name][:, 1::2].any())
        assert bool(got[name][:, ::2].any())
    assert not bool(got["d_sink"][1::2].any())


def test_dead_rows_have_no_output_and_no_gradient() -> None:
    case = named(4, 5, 2, 4, 4, 5, indices="dead_rows", sink="finite", regime="normal")
    given = exactly(case)
    got = truth(given)
    assert not bool(got["out"][1::2].any())
    assert not bool(got["d_q"][1::2].any())
    assert bool(torch.isinf(got["lse"][1::2]).all())
    # Whatever lse convention a kernel saved, and whatever its cotangent holds, nothing follows from a dead row.
    saved = {"out": got["out"], "lse": got["lse"].masked_fill(torch.isinf(got["lse"]), -math.inf)}
    wild = given["d_out"].clone()
    wild[1::2] = math.nan
    other = truth({**given, "d_out": wild}, saved)
    assert all(torch.equal(other[name], got[name]) for name in ("d_q", "d_kv", "d_sink"))


@pytest.mark.parametrize("pattern", ["holes", "dead_rows", "out_of_range", "hole_blocks"])
def test_what_must_not_matter_does_not_in_any_reading(pattern: str) -> None:
    case = named(4, 9, 2, 4, 3, 7, indices=pattern, length="beyond", sink="finite", dtype="bf16")
    given = exactly(case)
    assert sparse_mla.ignored is not None
    masks = sparse_mla.ignored(case, given)
    assert bool(masks["kv"].any())
    junk = {
        "kv": given["kv"].masked_fill(masks["kv"], math.nan),
        "topk_idxs": given["topk_idxs"].masked_fill(masks["topk_idxs"], sparse_mla_cases.INT_MAX),
    }
    policy = Contract(rounds=sparse_mla.policies["P and scaled dS"]).policy(case)
    for reading in (Truth, lambda: Emulation(policy), lambda: Noise(policy, 1), lambda: Radius(policy)):
        clean, poisoned = (read(sparse_mla, reading(), g) for g in (given, {**given, **junk}))
        assert all(torch.equal(clean[name], poisoned[name]) for name in clean)
        assert not any(bool(torch.isnan(value).any()) for value in poisoned.values())


@pytest.mark.parametrize("sink", SINKS)
def test_the_worst_case_is_finite_and_no_wider_than_it_must_be(sink: str) -> None:
    case = named(4, 9, 3, 16, 16, 9, indices="holes", sink=sink, regime="normal", logits=64, dtype="bf16")
    given = exactly(case)
    radius = read(sparse_mla, Radius(Contract(rounds={"out": "bf16"}).policy(case)), given)
    assert all(bool(torch.isfinite(value[torch.isfinite(value)]).all()) for value in radius.values())
    own = truth(given)["out"]
    # One bf16 rounding and FP32 arithmetic on logits near 64.
    assert bool((radius["out"] <= 2.0**-8 * own.abs() + 1e-3 * given["kv"].abs().max()).all())


def test_a_saturated_softmax_keeps_its_gradient() -> None:
    """Against sum_i p_i (dP_j - dP_i), which cancels nothing."""
    case = named(6, 12, 2, 8, 8, 12, indices="distinct", sink="none", regime="normal", logits=16)
    given = exactly(case)
    q, kv, idx, g = given["q"], given["kv"], given["topk_idxs"], given["d_out"]
    keys = kv[idx]
    P = torch.softmax(given["softmax_scale"] * q @ keys.mT, -1)
    dP = g @ keys.mT
    apart = (P[..., None, :] * (dP[..., :, None] - dP[..., None, :])).sum(-1)
    d_q = (given["softmax_scale"] * P * apart) @ keys
    size = (given["softmax_scale"] * P * (dP.abs() + (P * dP.abs()).sum(-1, keepdim=True))) @ keys.abs()
    assert float(P.max()) > 0.999
    assert float(((truth(given)["d_q"] - d_q).abs() / size).max()) < CLOSE


def test_saved_outputs_judge_the_operator_and_recomputed_ones_the_chain() -> None:
    case = named(4, 9, 2, 16, 16, 9, indices="random", sink="finite", regime="normal", dtype="bf16")
    given = exactly(case)
    chain = truth(given)
    rounded = {"out": round_to(chain["out"], "bf16"), "lse": chain["lse"]}
    operator = truth(given, rounded)
    moved = (operator["d_q"] - chain["d_q"]).norm() / chain["d_q"].norm()
    # The rounding of out alone, far above FP64 and far below a wrong formula.
    assert 1e-5 < float(moved) < 1e-1
    assert torch.equal(operator["d_kv"] == chain["d_kv"], torch.zeros_like(chain["d_kv"], dtype=torch.bool))
    emulated = read(sparse_mla, Emulation(Contract(rounds={"out": "bf16"}).policy(case)), given)
    torch.testing.assert_close(emulated["d_q"], operator["d_q"], rtol=1e-6, atol=1e-6)


def test_slices_of_the_batch_add_up() -> None:
    case = named(5, 7, 2, 4, 3, 6, indices="duplicates", length="partial", regime="normal")
    given, whole = exactly(case), truth(exactly(case))
    batched = {i.name for i in sparse_mla.inputs if sparse_mla.batched(i)} | {"d_out"}
    parts = [
        truth({n: (t[rows] if n in batched else t) for n, t in given.items()}) for rows in (slice(0, 2), slice(2, 5))
    ]
    for name in ("d_kv", "d_sink"):
        torch.testing.assert_close(parts[0][name] + parts[1][name], whole[name], rtol=CLOSE, atol=CLOSE)
    torch.testing.assert_close(torch.cat([p["d_q"] for p in parts]), whole["d_q"], rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda r: r.name)
def test_relations_hold_for_the_truth(relation: Any) -> None:
    applied = 0
    for pattern in PATTERNS:
        for length in ("none", "partial"):
            case = named(4, 9, 3, 4, 3, 7, indices=pattern, length=length, regime="normal")
            given = exactly(case)
            changed = relation.transform(case, {n: t for n, t in given.items() if isinstance(t, Tensor)})
            if changed is None:
                continue
            applied += 1
            back, before = relation.back(case, truth({**given, **changed})), truth(given)
            for name, value in before.items():
                torch.testing.assert_close(back[name], value, rtol=CLOSE, atol=CLOSE)
    assert applied >= 4


@pytest.mark.parametrize("cancellation", sparse_mla.cancellations, ids=lambda c: c.name)
def test_cancellations_leave_what_they_say(cancellation: Any) -> None:
    given = sample(sparse_mla, cancellation.case, values=cancellation.values).exact()
    recording = Recording()
    d_kv = read(sparse_mla, recording, given)["d_kv"]
    assert torch.equal(d_kv, torch.as_tensor(cancellation.exact["d_kv"], dtype=torch.float64))
    assert float((recording.terms["d_kv"].size() / d_kv.abs()).min()) >= 2.0**9


def test_a_policy_is_told_from_every_other() -> None:
    """A kernel that rounds as one candidate says, in FP32 between its points, is explained by that one alone."""
    case = named(8, 40, 4, 24, 16, 24, indices="random", regime="normal", logits=4, dtype="bf16", d_kv="fp32")
    given = exactly(case)
    plain = truth(given)
    policies = {name: Policy(rounds, FP32.policy(case).sums) for name, rounds in candidates(sparse_mla, case).items()}
    emulated = {name: read(sparse_mla, Emulation(policy), given) for name, policy in policies.items()}
    for name, policy in policies.items():
        kernel = read(sparse_mla, Emulation(policy, jitter=3), given)
        found = summary({other: _matches(kernel, emulation, plain) for other, emulation in emulated.items()})
        assert found["best"] == name, (name, found["joint"])
        assert found["joint"][name] < EXPLAINS
        assert found["gap"] > 1.5, (name, found["joint"])


def _matches(
    kernel: Mapping[str, Tensor], emulation: Mapping[str, Tensor], plain: Mapping[str, Tensor]
) -> dict[str, float]:
    # FP32 results have no rounding point of their own, so their residual is the accumulators' in every policy.
    names = [name for name in plain if name not in ("lse", "d_sink")]
    return {n: float((kernel[n] - emulation[n]).norm() / (kernel[n] - plain[n]).norm()) for n in names}


def test_every_named_case_is_one_of_the_problem() -> None:
    for space in (sparse_mla.space, sparse_mla.on("cuda").space):
        for case in (*space.edges, *space.tiny, *space.once):
            assert space.legal(case) is None
            indices = sample(sparse_mla, case.but(H=1)).inputs["topk_idxs"]
            assert indices.shape == (case["S_q"], case["topk"])
    assert sparse_mla.space.legal(named(1, 1, 1, 2, 3, 1)) is not None
    full = {(c["S_q"], c["H"], c["D"]) for c in sparse_mla.space.once}
    assert {(64, 64, 512), (129, 128, 576), (257, 64, 576)} <= full


def test_the_launch_boundaries_are_drawn() -> None:
    assert {64, 129, 257} <= set(sparse_mla.space.choices["S_q"])
    assert {1, 64, 127, 128, 129, 257} <= set(sparse_mla.on("cuda").space.grid["S_q"])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_are_what_they_are_called(pattern: str) -> None:
    case = named(6, 20, 1, 4, 4, 18, indices=pattern)
    given = exactly(case)
    rows, alive = given["topk_idxs"], sparse_mla_cases.live(case, given)
    listed = [set(r[a].tolist()) for r, a in zip(rows, alive, strict=True)]
    repeats = any(len(s) < int(a.sum()) for s, a in zip(listed, alive, strict=True))
    holes = not bool(alive.all())
    everywhere = set().union(*listed)
    expected = {
        "one_row": len(everywhere) == 1,
        "duplicates": repeats and not holes and len(everywhere) <= 10,
        "random": not holes,
        "distinct": not repeats,
        "holes": repeats and holes and bool(alive.any(1).all()),
        "hole_blocks": holes and bool(alive.any(1).all()),
        "dead_rows": not bool(alive[1::2].any()) and bool(alive[::2].all()),
        "out_of_range": holes and int(rows.max()) >= 20 and int(rows.min()) <= sparse_mla_cases.INT_MIN,
    }
    assert expected[pattern]
    assert pattern in FACTS["indices"]
