"""Trees: the declared summation, replayed exactly, its spread and its worst case against real FP32 sums."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from numcheck.contract import Sum
from numcheck.reading.tree import growth, last, replay, replays, spread
from numcheck.ulp import round_to


def terms(seed: int, *shape: int, spread: int = 6) -> Tensor:
    g = np.random.default_rng(seed)
    return torch.from_numpy(g.standard_normal(shape) * 2.0 ** g.integers(-spread, spread + 1, shape))


def chain(values: np.ndarray, products: bool) -> np.ndarray:
    """The FP32 chain add by add, in exact rational arithmetic where a fused product goes in unrounded."""
    result = np.empty(values.shape[0], np.float32)
    for row, numbers in enumerate(values):
        total = np.float32(numbers[0])
        for x in numbers[1:]:
            total = total + np.float32(x) if products else _rounded(Fraction(float(total)) + Fraction(float(x)))
        result[row] = total
    return result


def _rounded(x: Fraction) -> np.float32:
    """The FP32 number nearest to an exact fraction, ties to even."""
    near = np.float32(float(x))
    candidates = [np.nextafter(near, np.float32(s * np.inf)) for s in (-1, 1)] + [near]
    return min(candidates, key=lambda c: (abs(Fraction(float(c)) - x), int(c.view(np.int32)) & 1))


@pytest.mark.parametrize("products", [True, False])
def test_replay_is_the_fp32_chain_bit_for_bit(products: bool) -> None:
    t = terms(0, 400, 9)
    got = replay(t, Sum(tree="sequential", products=products))
    assert np.array_equal(got.numpy(), chain(t.numpy(), products).astype(np.float64))


def test_replay_of_fused_products_never_rounds_twice() -> None:
    # total + product lies just above a tie of FP32; FP64 drops the excess and leaves the tie.
    total, product = 1.0, 2.0**-24 + 2.0**-70
    got = replay(torch.tensor([[total, product]], dtype=torch.float64), Sum(tree="sequential", products=False))
    assert got.item() == 1 + 2.0**-23
    assert np.float32(total + product) == 1.0


def test_replay_truncates_where_that_is_declared() -> None:
    t = terms(1, 300, 8).abs()
    cut = replay(t, Sum(tree="sequential", rounding="truncate"))
    near = replay(t, Sum(tree="sequential"))
    assert bool((cut <= near).all())
    assert bool((cut < near).any())


def test_only_short_chains_in_a_declared_order_are_replayed() -> None:
    assert replays(Sum(tree="sequential"), 9)
    assert not replays(Sum(tree="sequential"), 4096)
    for how in (Sum(), Sum(tree="pairwise"), Sum(tree="sequential", block=4), Sum("fp64", "sequential")):
        assert not replays(how, 9)


def blocks(t: Tensor, how: Sum) -> Tensor:
    """The declared tree in real FP32 arithmetic."""
    v = t.float()
    if how.block:
        count = -(-v.shape[-1] // how.block)
        v = torch.nn.functional.pad(v, (0, count * how.block - v.shape[-1]))
        v = pairs(v.reshape(*v.shape[:-1], count, how.block))
    if how.tree == "pairwise":
        return pairs(v).double()
    total = v[..., 0].clone()
    for k in range(1, v.shape[-1]):
        total = total + v[..., k]
    return total.double()


def pairs(v: Tensor) -> Tensor:
    while v.shape[-1] > 1:
        v = torch.nn.functional.pad(v, (0, v.shape[-1] % 2))
        v = v[..., 0::2] + v[..., 1::2]
    return v[..., 0]


TREES = [
    Sum(tree="sequential"),
    Sum(tree="pairwise"),
    Sum(tree="sequential", block=16),
    Sum(tree="pairwise", block=64),
]


@pytest.mark.parametrize("how", TREES, ids=str)
@pytest.mark.parametrize("count", [5, 65, 257])
def test_spread_is_what_real_sums_show(how: Sum, count: int) -> None:
    t = terms(count, 4000, count)
    mean, deviation = spread(t, how)
    assert mean is None
    assert deviation is not None
    z = (blocks(t, how) - t.sum(-1)) / deviation
    # 4000 sums: the standard error of a standard deviation near 1 is 1 / sqrt(8000), taken five times; the uniform
    # model itself is good to a few percent, since low bits of neighbours are not quite independent.
    assert z.std().item() == pytest.approx(1.0, abs=5 * 8000**-0.5 + 0.05)
    assert abs(z.mean().item()) < 5 * 4000**-0.5


def test_truncating_sums_are_biased_as_foretold() -> None:
    how = Sum(tree="sequential", rounding="truncate", products=True)
    t = round_to(terms(2, 4000, 20).abs(), "fp32")
    mean, deviation = spread(t, how)
    assert mean is not None
    assert deviation is not None
    error = replay(t, how) - t.sum(-1)
    assert (error.mean() / mean.mean()).item() == pytest.approx(1.0, abs=0.1)
    assert (error - mean).std().item() == pytest.approx(deviation.pow(2).mean().sqrt().item(), rel=0.15)


@pytest.mark.parametrize("how", [*TREES, Sum(tree="any")], ids=str)
@pytest.mark.parametrize("count", [1, 2, 65, 257])
def test_growth_bounds_every_real_sum(how: Sum, count: int) -> None:
    t = round_to(terms(3, 2000, count), "fp32")
    error = (blocks(t, how) - t.sum(-1)).abs()
    assert bool((error <= growth(how, count) * t.abs().sum(-1)).all())


def test_growth_knows_depth_truncation_and_range() -> None:
    u = 2.0**-24
    assert growth(Sum(tree="pairwise"), 4096) == pytest.approx(12 * u, rel=1e-4)
    assert growth(Sum(tree="sequential"), 4096) == pytest.approx(4095 * u, rel=1e-3)
    assert growth(Sum(tree="any"), 4096) == growth(Sum(tree="sequential"), 4096)
    assert growth(Sum(tree="sequential", block=64), 4096) == pytest.approx((6 + 63) * u, rel=1e-4)
    assert growth(Sum(tree="sequential", rounding="truncate"), 9) == pytest.approx(16 * u, rel=1e-4)
    assert growth(Sum(dot="tf32", tree="pairwise"), 4) == pytest.approx(2.0**-10, rel=1e-3)
    assert growth(Sum(dtype="bf16"), 4096) == math.inf
    assert growth(Sum(tree="sequential"), 1) < u


def test_exact_sums_have_no_spread_in_any_order() -> None:
    integers = torch.from_numpy(np.random.default_rng(0).integers(-9, 10, (50, 300)).astype(np.float64))
    for how in (*TREES, Sum(tree="any")):
        assert spread(integers, how) == (None, None)


def test_a_chain_that_is_exact_by_luck_is_not_called_exact_in_any_order() -> None:
    # 1 + 1 and then 2^24: exact in this order, while 1 + 2^24 rounds.
    lucky = torch.tensor([[1.0, 1.0, 2.0**24]], dtype=torch.float64)
    assert spread(lucky, Sum(tree="sequential")) == (None, None)
    assert spread(lucky, Sum(tree="any"))[1] is not None


def test_tf32_inputs_cost_only_where_they_round() -> None:
    how = Sum(dot="tf32", tree="sequential")
    g = np.random.default_rng(0)
    a, b = (torch.from_numpy(g.standard_normal((2000, 64))) for _ in range(2))
    fine, coarse = (round_to(a, "fp32"), round_to(b, "fp32")), (round_to(a, "bf16"), round_to(b, "bf16"))
    _, rounded = spread(fine[0] * fine[1], how)
    _, kept = spread(coarse[0] * coarse[1], how)
    assert rounded is not None
    assert kept is None or kept.max() < rounded.min() / 100
    step = 2.0**-10
    cut = [torch.round(x / (s := 2.0 ** torch.floor(torch.log2(x.abs())) * step)) * s for x in fine]
    z = ((cut[0] * cut[1]).sum(-1) - (fine[0] * fine[1]).sum(-1)) / rounded
    # The relative error of a rounding is largest at the foot of a binade: the model takes it there, so it is an upper
    # bound, and by less than the square root of two (0.54 of the variance on average over a binade).
    assert 2**-0.5 - 0.05 < z.std().item() < 1.05


def test_axes_are_merged_and_moved_last() -> None:
    t = terms(0, 2, 3, 4, 5)
    assert torch.allclose(last(t, (1, 3)).sum(-1), t.sum((1, 3)))
    assert torch.equal(last(t, 0), t.movedim(0, -1))


def test_a_chain_that_cancels_by_luck_does_not_speak_for_any_order() -> None:
    """1 - 1 first leaves small partial sums; another order rounds them next to 1."""
    small = (2.0**-13 + 2.0**-36, 2.0**-14 + 2.0**-37)
    terms = torch.tensor([[1.0, -1.0, *small], [*small, 1.0, -1.0]], dtype=torch.float64)
    lucky, other = spread(terms, Sum("fp32", tree="any"))[1].tolist()  # type: ignore[union-attr]
    assert lucky >= 2.0**-24 / 12**0.5
    assert other >= 2.0**-24 / 12**0.5
    chained = spread(terms, Sum("fp32", tree="sequential"))[1]
    assert chained is not None
    assert float(chained[0]) < 2.0**-35
