"""The grouped dSReLU and dSwiGLU oracles, beside torch's autograd of a forward written here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.certify import certify
from numcheck.contract import Contract
from numcheck.oracle import Oracle
from numcheck.oracles import grouped_rows, grouped_srelu, grouped_swiglu
from numcheck.reading import Emulation, Truth, read
from numcheck.sample import sample

BOTH = pytest.mark.parametrize("oracle", [grouped_srelu, grouped_swiglu], ids=lambda o: o.name)
# Autograd and the oracle sum in other orders in FP64: a few hundred terms of one size.
CLOSE = 1e-12


class Points(Truth):
    """Truth that writes down the names it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.points: set[str] = set()
        self.totals: set[str] = set()

    def at(self, name: str, value: Any) -> Any:
        self.points.add(name)
        return value

    def _first(self, name: str, onto: Any) -> Any:
        self.totals.add(name)
        return super()._first(name, onto)


def a_case(oracle: Oracle, **changes: Any) -> Case:
    facts = {"rows": "padded", "onto": "data"} | changes.pop("facts", {})
    sizes = {"E": 3, "N": 32 if oracle is grouped_swiglu else 7, "M": 20, "H": 5} | changes
    return Case.of(**{"regime": "normal", "seed": 3, "facts": facts} | sizes)


def truth(oracle: Oracle, exact: Mapping[str, Any]) -> dict[str, Tensor]:
    return read(oracle, Truth(), exact)


def loss(oracle: Oracle, given: Mapping[str, Any], c: Tensor, x: Tensor, bias: Tensor, prob: Tensor) -> Tensor:
    """sum(d_out * out) + what the caller's buffers stand for, one expert and one row at a time."""
    total, start = (given["d_prob_onto"] * prob).sum() + (given["d_bias_onto"] * bias).sum(), 0
    for e, (count, stop) in enumerate(zip(given["tokens"].tolist(), given["offsets"].tolist(), strict=True)):
        for m in range(start, start + count):
            if oracle is grouped_swiglu:
                # The scaled pre-activation is what is differentiated, and alpha enters squared.
                z = c[m] + (given["beta"][e] - 1) * c[m].detach() + bias[e] + x[m] @ given["w1"][e].T
                gate, up = z.reshape(-1, 2, 32).unbind(1)
                act, scale = torch.nn.functional.silu(gate) * up, given["alpha"][e] ** 2
            else:
                z = c[m] + bias[e] + x[m] @ given["w1"][e].T
                s = given.get("tanh_clamp_scale")
                act, scale = torch.relu(z) ** 2, given["alpha"][e]
                if s is not None:
                    act = (s * torch.tanh(torch.relu(z) / s)) ** 2
            out = scale * prob[m] * (act.flatten() @ given["w2"][e])
            total = total + (given["d_out"][m] * out).sum()
        start = stop
    return total


@BOTH
@pytest.mark.parametrize("clamp", [0.0, 1.5])
def test_the_vjp_is_autograd_s_of_the_forward(oracle: Oracle, clamp: float) -> None:
    case = a_case(oracle, facts={"clamp": clamp})
    given = sample(oracle, case).exact()
    leaves = [given["c"], torch.zeros(20, 5), torch.zeros_like(given["d_bias_onto"]), given["prob"]]
    leaves = [leaf.double().requires_grad_() for leaf in leaves]
    found = torch.autograd.grad(loss(oracle, given, *leaves), leaves)
    expected = dict(zip(("d_c", "d_x", "d_bias", "d_prob"), found, strict=True))
    got = truth(oracle, given)
    for name, value in expected.items():
        assert torch.allclose(got[name], value, rtol=CLOSE, atol=CLOSE * float(value.abs().max())), name


@BOTH
def test_it_is_certified(oracle: Oracle) -> None:
    assert certify(oracle).status == "CERTIFIED"


@BOTH
def test_each_pattern_of_facts_is_among_the_tiny_cases(oracle: Oracle) -> None:
    seen = [dict(case.facts) for case in oracle.space.tiny]
    for fact, value in (
        ("rows", "padded"),
        ("rows", "last empty"),
        ("prob", "none"),
        ("bias", False),
        ("onto", "data"),
    ):
        assert any(facts.get(fact) == value for facts in seen), (fact, value)
    if "clamp" in oracle.space.facts:
        assert any(facts.get("clamp") for facts in seen)


@BOTH
def test_padding_does_not_matter_and_comes_back_as_zeros(oracle: Oracle) -> None:
    case = a_case(oracle)
    drawn = sample(oracle, case)
    exact = drawn.exact()
    plain = truth(oracle, exact)
    assert oracle.ignored is not None
    masks = oracle.ignored(case, exact)
    assert bool(masks["c"].any())
    assert bool(masks["w2"].any())
    poisoned = exact | {n: torch.where(mask, torch.nan, exact[n]) for n, mask in masks.items()}
    padding = masks["prob"]
    for name, value in truth(oracle, poisoned).items():
        assert torch.equal(value, plain[name]), name
    assert not bool(plain["d_c"][padding].any() or plain["d_x"][padding].any())
    assert torch.equal(plain["d_prob"][padding], exact["d_prob_onto"][padding])


@BOTH
def test_an_expert_without_tokens_leaves_its_d_bias_as_it_is(oracle: Oracle) -> None:
    exact = sample(oracle, a_case(oracle, facts={"rows": "last empty"})).exact()
    got = truth(oracle, exact)["d_bias"]
    assert torch.equal(got[1:], exact["d_bias_onto"][1:])
    assert not torch.equal(got[0], exact["d_bias_onto"][0])


@BOTH
def test_without_prob_the_factor_is_one_and_there_is_no_d_prob(oracle: Oracle) -> None:
    case = a_case(oracle)
    ones = sample(oracle, case).exact()
    ones["prob"] = torch.ones_like(ones["prob"])
    none = sample(oracle, a_case(oracle, facts={"prob": "none"})).exact()
    assert "prob" not in none
    assert "d_prob_onto" not in none
    with_ones, without = truth(oracle, ones), truth(oracle, none)
    assert "d_prob" not in without
    for name in ("d_c", "d_bias", "d_x"):
        assert torch.equal(with_ones[name], without[name]), name


@BOTH
def test_a_zero_prob_stops_d_c_and_not_d_prob(oracle: Oracle) -> None:
    exact = sample(oracle, a_case(oracle, facts={"rows": "full"})).exact()
    exact["prob"] = torch.zeros_like(exact["prob"])
    got = truth(oracle, exact)
    assert not bool(got["d_c"].any())
    assert bool((got["d_prob"] != exact["d_prob_onto"]).any())


@BOTH
def test_negating_prob_negates_d_c_alone(oracle: Oracle) -> None:
    exact = sample(oracle, a_case(oracle)).exact()
    plain, negated = truth(oracle, exact), truth(oracle, exact | {"prob": -exact["prob"]})
    assert torch.equal(negated["d_c"], -plain["d_c"])
    assert torch.equal(negated["d_prob"], plain["d_prob"])


@pytest.mark.parametrize("clamp", [None, 2.0])
def test_the_slope_is_zero_at_zeros_of_both_signs_and_below(clamp: float | None) -> None:
    exact = sample(grouped_srelu, a_case(grouped_srelu, M=4, facts={"rows": "full"})).exact()
    exact["c"] = torch.tensor([0.0, -0.0, -1.0, -1e300, 0.0, -0.0, 1.0]).double().expand(4, 7).contiguous()
    got = truth(grouped_srelu, exact | ({"tanh_clamp_scale": clamp} if clamp else {}))
    assert not bool(got["d_c"][:, :6].any())
    assert bool(got["d_c"][:, 6].any())


def test_a_saturated_clamp_is_flat() -> None:
    exact = sample(grouped_srelu, a_case(grouped_srelu, M=4, facts={"rows": "full", "clamp": 1.0})).exact()
    exact["c"] = torch.full_like(exact["c"], 100.0)
    assert not bool(truth(grouped_srelu, exact)["d_c"].any())


def test_alpha_enters_once_and_for_a_glu_squared() -> None:
    for oracle, factor in ((grouped_srelu, 2.0), (grouped_swiglu, 4.0)):
        exact = sample(oracle, a_case(oracle, facts={"onto": "zeros"})).exact()
        plain, doubled = truth(oracle, exact), truth(oracle, exact | {"alpha": 2 * exact["alpha"]})
        for name in ("d_c", "d_prob", "d_bias", "d_x"):
            assert torch.equal(doubled[name], factor * plain[name]), (oracle.name, name)


def test_gate_and_up_come_in_blocks_of_32_by_turns() -> None:
    from numcheck.oracles.grouped_swiglu import halves, joined

    z = torch.arange(256.0)[None]
    gate, up = halves(z)
    assert gate[0, :33].tolist() == [*range(32), 64]
    assert up[0, :33].tolist() == [*range(32, 64), 96]
    assert torch.equal(joined(gate, up), z)


@pytest.mark.parametrize(
    ("tokens", "offsets", "rows", "owners"),
    [
        ([3], [3], 3, [0, 0, 0]),
        ([1, 2], [2, 4], 6, [0, -1, 1, 1, -1, -1]),
        ([0, 0, 2], [0, 1, 3], 3, [-1, 2, 2]),
        ([2, 0], [2, 2], 2, [0, 0]),
        ([0, 0], [0, 0], 2, [-1, -1]),
        ([0], [0], 0, []),
    ],
)
def test_owners(tokens: list[int], offsets: list[int], rows: int, owners: list[int]) -> None:
    found = grouped_rows.owners(torch.tensor(tokens), torch.tensor(offsets), rows)
    assert found.tolist() == owners


@BOTH
def test_drawn_rows_are_shared_out_as_their_pattern_says(oracle: Oracle) -> None:
    for pattern in grouped_rows.PATTERNS:
        for seed in range(20):
            case = a_case(oracle, seed=seed, facts={"rows": pattern})
            ends, counts = grouped_rows.ends(case), grouped_rows.counts(case)
            assert ends == sorted(ends)
            assert ends[-1] == case["M"]
            assert all(0 <= n <= stop - start for n, stop, start in zip(counts, ends, [0, *ends], strict=False))
            assert pattern != "full" or sum(counts) == case["M"]
            assert pattern != "none" or not any(counts)


@BOTH
def test_every_candidate_policy_names_points_that_exist(oracle: Oracle) -> None:
    points = Points()
    read(oracle, points, sample(oracle, a_case(oracle, facts={"clamp": 2.0})).exact())
    allowed = points.points | {f"{total}.terms" for total in points.totals}
    assert {"dot", "d_prob", "d_bias", "d_x"} <= points.totals
    assert next(iter(oracle.policies)) == "fp32"
    for name, rounds in oracle.policies.items():
        assert set(rounds) <= allowed, name


@BOTH
def test_no_two_candidate_policies_give_the_same_bits(oracle: Oracle) -> None:
    exact = sample(oracle, a_case(oracle, dtype="bf16", facts={"clamp": 2.0})).exact()
    case, bits = a_case(oracle, dtype="bf16"), {}
    for name, rounds in oracle.policies.items():
        got = read(oracle, Emulation(Contract(rounds=rounds).policy(case)), exact)
        bits[name] = torch.cat([t.flatten() for t in got.values()])
    names = list(bits)
    for k, one in enumerate(names):
        for other in names[k + 1 :]:
            assert not torch.equal(bits[one], bits[other]), (one, other)


def test_widths_around_a_tile_and_beyond_it_are_in_the_grid() -> None:
    assert {255, 257, 384, 1024} <= set(grouped_srelu.space.grid["N"])
