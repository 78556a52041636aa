"""The balance loss oracles: their declarations, the clamp, padding, and both gradients against autograd."""

from __future__ import annotations

import struct

import pytest
import torch
from torch import Tensor

from numcheck.capability import Device
from numcheck.case import Case
from numcheck.certify import certify, slope
from numcheck.contract import Contract, Sum
from numcheck.oracle import Oracle, Relation
from numcheck.oracles import balance_loss_map, balance_loss_topk
from numcheck.oracles.balance_loss_cases import CLAMP, EPSILON, NAMED, SCORES
from numcheck.reading import Ball, Emulation, Radius, Truth, read
from numcheck.sample import sample
from numcheck.ulp import cast

BOTH = (balance_loss_map, balance_loss_topk)
FP32 = Contract(accumulate="fp32")


def fp32(value: float) -> float:
    found: float = struct.unpack("f", struct.pack("f", value))[0]
    return found


def case(T: int = 3, E: int = 4, K: int = 2, seed: int = 0, **facts: bool | float | str) -> Case:
    return Case.of(T=T, E=E, K=K, seed=seed, facts=facts)


@pytest.mark.parametrize("oracle", BOTH, ids=lambda o: o.name)
def test_both_are_certified(oracle: Oracle) -> None:
    assert certify(oracle).status == "CERTIFIED"


def test_limits_are_those_of_fp32() -> None:
    assert fp32(1e-12) == CLAMP < 1e-12
    assert fp32(1e-20) == EPSILON < 1e-20


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("E", [1, 2, 3, 9])
def test_clamp_rows_sit_on_the_limit_in_every_order(dtype: str, E: int) -> None:
    rows = cast(SCORES["clamp"](_counter(), (6, E), case()), dtype).float().abs()
    if dtype == "fp32" or E >= 3:
        for order in (rows, rows.flip(-1), rows.roll(1, -1)):
            assert (order.cumsum(-1)[:, -1] == torch.tensor(CLAMP, dtype=torch.float32)).all()


def _counter() -> object:
    from numcheck.sample import Counter

    return Counter(1, "scores")


def differentiated(oracle: Oracle, exact: dict[str, object]) -> Tensor:
    """d_scores by FP64 autograd of the formula, away from the clamp."""
    given = dict(exact)
    scores: Tensor = given["scores"].clone().requires_grad_()  # type: ignore[attr-defined]
    d_loss = given.pop("d_loss")
    loss = oracle.forward(Truth(), **oracle.for_forward({**given, "scores": scores}))["loss"]
    (found,) = torch.autograd.grad(loss, scores, d_loss)
    return found


@pytest.mark.parametrize("oracle", BOTH, ids=lambda o: o.name)
@pytest.mark.parametrize("rows", ["positive", "signed", "tiny", "ties"])
@pytest.mark.parametrize("padding", ["none", "some"])
def test_the_vjp_is_what_autograd_makes_of_the_forward(oracle: Oracle, rows: str, padding: str) -> None:
    exact = sample(oracle, case(T=7, E=5, rows=rows, padding=padding)).exact()
    got, expected = read(oracle, Truth(), exact)["d_scores"], differentiated(oracle, exact)
    # FP64 sums of a few terms: 1e-12 of the largest gradient of a row is far above their rounding.
    scale = expected.abs().amax(-1, keepdim=True)
    assert bool(((got - expected).abs() <= 1e-12 * scale).all())


@pytest.mark.parametrize("side", [1, -1])
def test_each_side_of_the_clamp_has_the_slope_of_its_own_branch(side: int) -> None:
    """At the limit one-sided differences of the twin disagree; the oracle takes the clamped side."""
    at = case(T=1, E=3, rows="clamp", map="topk", denominator=0.0, coefficient=1.0)
    values = {"scores": torch.tensor([[CLAMP, 0.0, 0.0]]), "routing_map": torch.tensor([[True, True, False]])}
    exact = sample(balance_loss_map, at, values=values).exact()
    weights = float(exact["d_loss"]) * torch.tensor([1.5, 1.5, 0.0])
    got = read(balance_loss_map, Truth(), exact)["d_scores"][0]
    clamped, moving = weights / CLAMP, weights / CLAMP - torch.tensor([1.0, 0.0, 0.0]) * weights[0] / CLAMP
    found = slope(balance_loss_map, at, values, "scores", 0, side)
    assert found == pytest.approx(float((moving if side > 0 else clamped)[0]), rel=1e-6, abs=1.0)
    assert torch.allclose(got, clamped.double())
    assert abs(float(clamped[0] - moving[0])) > 1e10


@pytest.mark.parametrize(("factor", "moves"), [(1 - 2.0**-20, False), (1.0, False), (1 + 2.0**-20, True)])
def test_a_row_near_the_clamp_is_certain_of_its_side(factor: float, moves: bool) -> None:
    """One score makes the norm, so no order of summation can be in doubt of it: the radius stays small."""
    at = case(T=1, E=3, denominator=0.0, coefficient=1.0)
    values = {"scores": torch.tensor([[0.0, -CLAMP * factor, 0.0]], dtype=torch.float64)}
    exact = sample(balance_loss_map, at, values=values).exact()
    truth = read(balance_loss_map, Truth(), exact)["d_scores"][0]
    radius = read(balance_loss_map, Radius(FP32.policy(at)), exact)["d_scores"][0]
    # The score that makes the norm has no gradient once the norm moves with it: its share is 1 whatever it is.
    assert bool(truth[1].abs() <= radius[1]) == (moves or bool(truth[1] == 0))
    assert bool((radius <= 1e-5 * truth.abs().max()).all())


def test_a_norm_that_rounds_across_the_clamp_leaves_both_sides_open() -> None:
    at = case(T=1, E=4, denominator=0.0, coefficient=1.0)
    third = CLAMP / 3
    values = {"scores": torch.tensor([[third, third, third * (1 + 2.0**-22), 1e-19]], dtype=torch.float64)}
    exact = sample(balance_loss_map, at, values=values).exact()
    radius = read(balance_loss_map, Radius(FP32.policy(at)), exact)["d_scores"]
    plain = read(balance_loss_map, Truth(), exact | {"scores": exact["scores"] / 2})["d_scores"]
    moved = read(balance_loss_map, Truth(), exact | {"scores": exact["scores"] * 2})["d_scores"] * 2
    assert bool((radius >= (plain - moved).abs() / 2).all())


def test_exact_sums_have_no_growth() -> None:
    """Integers in whatever order: only what can round has a radius."""
    radius = Radius(Contract(accumulate=Sum("fp32", tree="any")).policy(case()))
    radius.start()
    whole = radius.total("s", radius.enter(torch.tensor([[3.0, 5.0, 2.0**23]], dtype=torch.float64)), -1)
    rounds = radius.total("s", radius.enter(torch.tensor([[1.0, 2.0**-24, 2.0]], dtype=torch.float64)), -1)
    assert isinstance(whole, Ball)
    assert float(whole.radius) == 0.0 < float(rounds.radius)


@pytest.mark.parametrize("oracle", BOTH, ids=lambda o: o.name)
def test_padding_contributes_nothing_even_where_it_holds_nan(oracle: Oracle) -> None:
    exact = sample(oracle, case(T=9, E=5, rows="signed", padding="some")).exact()
    mask = exact["padding"]
    assert bool(mask.any())
    assert not bool(mask.all())
    poisoned = exact | {"scores": exact["scores"].masked_fill(mask[:, None], torch.nan)}
    if "routing_map" in exact:
        poisoned["routing_map"] = exact["routing_map"] | mask[:, None]
    kept = {n: t[~mask] if n in ("scores", "routing_map", "padding") else t for n, t in exact.items()}
    whole, dirty, alone = (read(oracle, Truth(), given) for given in (exact, poisoned, kept))
    for name, value in whole.items():
        assert torch.equal(dirty[name], value), name
        # Without the padding rows the same terms are added in another order, in FP64.
        assert torch.allclose(value[~mask] if name == "d_scores" else value, alone[name], rtol=1e-12, atol=1e-16), name
    assert bool((whole["d_scores"][mask] == 0).all())
    assert set(oracle.ignored(case(T=9, E=5), exact)) == {"scores", "routing_map"} & set(exact)  # type: ignore[misc]


@pytest.mark.parametrize("oracle", BOTH, ids=lambda o: o.name)
@pytest.mark.parametrize("at", [case(T=0), case(padding="all", T=5), case(map="empty")], ids=Case.line)
def test_nothing_chosen_is_nothing(oracle: Oracle, at: Case) -> None:
    results = read(oracle, Truth(), sample(oracle, at).exact())
    if oracle is balance_loss_topk and at.fact("map", "") == "empty":
        return
    assert all(not bool(results[name].any()) for name in ("frequencies", "raw", "loss", "d_scores"))
    assert not any(bool(torch.isnan(t).any()) for t in results.values())


def test_perfect_balance_of_positive_scores_costs_the_live_tokens() -> None:
    at = case(T=6, E=4, map="all")
    results = read(balance_loss_map, Truth(), sample(balance_loss_map, at).exact())
    assert float(results["raw"]) == pytest.approx(6.0, rel=1e-14)
    assert torch.allclose(results["frequencies"], torch.ones(4).double())


def test_of_equal_scores_the_first_are_chosen() -> None:
    values = {"scores": torch.tensor([[0.5, 1.0, 0.5, 0.5]])}
    exact = sample(balance_loss_topk, case(T=1, E=4, K=2), values=values).exact()
    assert read(balance_loss_topk, Truth(), exact)["frequencies"].tolist() == [2.0, 2.0, 0.0, 0.0]


def test_the_objectives_agree_on_positive_scores_and_part_on_signed_ones() -> None:
    for rows, same in (("positive", True), ("signed", False)):
        exact = sample(balance_loss_topk, case(T=4, E=5, K=2, rows=rows)).exact()
        chosen = exact["scores"] >= exact["scores"].sort(-1, descending=True).values[:, 1:2]
        given = {n: t for n, t in exact.items() if n != "topk"} | {"routing_map": chosen}
        plain, by_map = read(balance_loss_topk, Truth(), exact), read(balance_loss_map, Truth(), given)
        assert torch.equal(plain["frequencies"], by_map["frequencies"])
        assert torch.allclose(plain["d_scores"], by_map["d_scores"], rtol=1e-9, atol=0) == same


@pytest.mark.parametrize("oracle", BOTH, ids=lambda o: o.name)
def test_every_candidate_policy_gives_bits_of_its_own(oracle: Oracle) -> None:
    at = case(T=40, E=9, rows="signed").but(dtype="bf16")
    exact = sample(oracle, at).exact()
    bits = [
        torch.cat([t.flatten() for t in read(oracle, Emulation(Contract(rounds=r).policy(at)), exact).values()])
        for r in oracle.policies.values()
    ]
    assert len(bits) >= 7
    assert all(not torch.equal(mine, other) for k, mine in enumerate(bits) for other in bits[:k])


@pytest.mark.parametrize("oracle", BOTH, ids=lambda o: o.name)
def test_edge_and_tiny_cases_can_be_sampled_and_read(oracle: Oracle) -> None:
    for at in (*oracle.space.edges, *oracle.space.tiny):
        if at["T"] * at["E"] < 2**16:
            results = read(oracle, Truth(), sample(oracle, at).exact())
            assert all(tuple(results[o.name].shape) == o.shape(at) for o in oracle.results_for(at))


@pytest.mark.parametrize("oracle", BOTH, ids=lambda o: o.name)
def test_named_shapes_always_run(oracle: Oracle) -> None:
    device: Device
    for device in ("cpu", "cuda"):
        space = oracle.on(device).space
        shapes = {tuple(dict(at.sizes).values()) for at in (*space.edges, *space.once)}
        assert set(NAMED) | {(8193, 64, 6), (4097, 512, 8), (33, 129, 8), (4096, 256, 8)} <= shapes


RELATIONS = [(o, r) for o in BOTH for r in o.relations]


@pytest.mark.parametrize(("oracle", "relation"), RELATIONS, ids=[f"{o.name}-{r.name}" for o, r in RELATIONS])
def test_relations_hold_of_the_truth_and_move_something(oracle: Oracle, relation: Relation) -> None:
    at = case(T=4, E=5, rows="signed", padding="some")
    drawn = sample(oracle, at)
    exact = drawn.exact_tensors()
    changed = relation.transform(at, exact)
    assert changed is not None
    plain, moved = (read(oracle, Truth(), {**t, **drawn.scalars}) for t in (exact, changed))
    back = relation.back(at, moved)
    for name, value in plain.items():
        assert torch.allclose(back[name], value, rtol=1e-12, atol=1e-16), name
    assert any(not torch.allclose(moved[name], value) for name, value in plain.items())


def test_relations_say_nothing_where_they_do_not_hold() -> None:
    tied = case(T=3, E=4, rows="ties")
    turned = next(r for r in balance_loss_topk.relations if r.name.startswith("experts"))
    assert turned.transform(tied, sample(balance_loss_topk, tied).exact_tensors()) is None
    clamped = case(T=3, E=4, rows="clamp")
    for oracle in BOTH:
        scaled = oracle.relations[-1]
        assert scaled.transform(clamped, sample(oracle, clamped).exact_tensors()) is None
