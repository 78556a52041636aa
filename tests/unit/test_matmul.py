"""read.matmul: products that are never written out, against real FP32 arithmetic and their written-out terms."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck.contract import Policy, Rounding, Sum
from numcheck.errors import Refused
from numcheck.reading import Ball, Emulation, Noise, Radius, Recording, Truth, large
from numcheck.reading.addends import Product
from numcheck.reading.large import product_spread
from numcheck.reading.tree import spread
from numcheck.ulp import round_to

TREES = {
    "sequential": Sum(tree="sequential"),
    "pairwise": Sum(tree="pairwise"),
    "blocks": Sum(tree="sequential", block=16),
    "blocks by halves": Sum(tree="pairwise", block=64),
    "fused": Sum(tree="sequential", products=False),
}
# The model is of means over a binade, scaled by a few dozen sampled addresses: a few percent in the root mean square.
MODEL = 0.12


def normal(seed: int, *shape: int, dtype: str = "bf16") -> Tensor:
    t = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return round_to(t, dtype)


def policy(how: Sum = TREES["sequential"], **rounds: Any) -> Policy:
    return Policy({name: Rounding(to) for name, to in rounds.items()}, {"": how})


def rms(t: Tensor) -> float:
    return t.pow(2).mean().sqrt().item()


def modelled(monkeypatch: pytest.MonkeyPatch, a: Tensor, b: Tensor, how: Sum, onto: Tensor | None = None) -> Any:
    """The spread by sums of squares alone, whatever the size."""
    with monkeypatch.context() as patch:
        patch.setattr(large, "EXACT", 0)
        return product_spread(a, b, how, onto)


def exactly(a: Tensor, b: Tensor, how: Sum, onto: Tensor | None = None) -> Any:
    """The spread of every product written out."""
    terms = Product(a, b, onto)
    return spread(terms.at(torch.arange(terms.addresses)), how)


@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_the_model_agrees_with_the_written_out_terms(monkeypatch: Any, name: str, dtype: str) -> None:
    a, b = normal(0, 20, 300, dtype=dtype), normal(1, 300, 30, dtype=dtype)
    _, mine = modelled(monkeypatch, a, b, TREES[name])
    _, exact = exactly(a, b, TREES[name])
    assert rms(mine) / rms(exact) == pytest.approx(1.0, abs=MODEL)


CASES = {
    "a mean": (lambda a, b: (a + 4, b + 4), None),
    "a trend": (lambda a, b: (a * torch.linspace(0, 9, 300, dtype=torch.float64), b), None),
    "seven zeros in ten": (lambda a, b: (torch.where(torch.rand(a.shape) < 0.3, a, 0.0), b), None),
    "onto a large value": (lambda a, b: (a, b), 300.0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_model_follows_the_data(monkeypatch: Any, name: str) -> None:
    torch.manual_seed(0)
    made, first = CASES[name]
    a, b = (round_to(t, "bf16") for t in made(normal(0, 20, 300), normal(1, 300, 30)))
    onto = None if first is None else torch.full((20, 30), first, dtype=torch.float64)
    _, mine = modelled(monkeypatch, a, b, TREES["sequential"], onto)
    _, exact = exactly(a, b, TREES["sequential"], onto)
    assert rms(mine) / rms(exact) == pytest.approx(1.0, abs=MODEL)


def test_a_row_of_large_sums_lends_its_error_to_no_other(monkeypatch: Any) -> None:
    a, b = normal(0, 20, 300, dtype="fp32"), normal(1, 300, 30, dtype="fp32")
    onto = torch.linspace(0, 1000, 20, dtype=torch.float64)[:, None].expand(20, 30)
    _, mine = modelled(monkeypatch, a, b, TREES["sequential"], onto)
    _, exact = exactly(a, b, TREES["sequential"], onto)
    rows = (mine / exact.reshape(20, 30)).log().mean(1)
    # 30 elements of a row share their exponents: an element's own ulp is off by up to a factor of two.
    assert rows.abs().max().item() < 0.35
    assert (exact.reshape(20, 30)[-1] / exact.reshape(20, 30)[0]).mean().item() > 20


def test_truncation_leans_as_the_written_out_terms_do(monkeypatch: Any) -> None:
    how = Sum(tree="sequential", rounding="truncate")
    a, b = normal(0, 20, 300, dtype="fp32") + 1, normal(1, 300, 30, dtype="fp32") + 1
    mine, _ = modelled(monkeypatch, a, b, how)
    exact, _ = exactly(a, b, how)
    assert (mine.flatten() / exact).mean().item() == pytest.approx(1.0, abs=0.05)


def test_integers_are_exact_in_any_order_and_said_to_be(monkeypatch: Any) -> None:
    integers = torch.Generator().manual_seed(0)
    a = torch.randint(-9, 10, (20, 300), generator=integers).double()
    b = torch.randint(-9, 10, (300, 30), generator=integers).double()
    for how in (*TREES.values(), Sum()):
        assert modelled(monkeypatch, a, b, how) == (None, None)
    # One number off the grid, and the column that it enters is no longer sure.
    b[7, 3] += 2.0**-30
    _, deviation = modelled(monkeypatch, a, b, Sum())
    assert set(torch.nonzero(deviation)[:, 1].tolist()) == {3}


def test_sums_of_products_that_none_of_the_samples_rounds_are_not_called_exact(monkeypatch: Any) -> None:
    a, b = torch.zeros(400, 300, dtype=torch.float64), normal(1, 300, 300)
    a[1] = normal(0, 300, dtype="fp32")
    _, deviation = modelled(monkeypatch, a, b, Sum())
    assert deviation is not None
    assert bool((deviation[1] > 0).all())
    assert bool((deviation[2] == 0).all())


def chained(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in FP32, product after product."""
    a, b = a.float(), b.float()
    total = a[:, :1] * b[:1]
    for k in range(1, a.shape[1]):
        total = total + a[:, k : k + 1] * b[k : k + 1]
    return total.double()


@pytest.mark.parametrize("exact", [0, large.EXACT])
def test_noise_is_what_a_real_chain_shows(monkeypatch: Any, exact: int) -> None:
    monkeypatch.setattr(large, "EXACT", exact)
    a, b = normal(0, 40, 64, dtype="fp32"), normal(1, 64, 60, dtype="fp32")
    shared: dict[Any, Any] = {}
    drawn = [rms(Noise(policy(), k, shared).matmul("S", a, b) - a @ b) for k in range(4)]
    assert rms(chained(a, b) - a @ b) / (sum(drawn) / 4) == pytest.approx(1.0, abs=MODEL)


def test_no_element_of_a_real_product_leaves_its_radius_and_a_wrong_one_does() -> None:
    a, b = normal(0, 40, 64, dtype="fp32"), normal(1, 64, 60, dtype="fp32")
    reading = Radius(policy())
    ball = reading.matmul("S", reading.enter(a), reading.enter(b))
    assert bool(((chained(a, b) - ball.value).abs() <= ball.radius).all())
    lossy = chained(round_to(a, "bf16"), b)
    assert bool(((lossy - ball.value).abs() > ball.radius).any())


def test_the_radius_holds_whatever_lies_in_the_factors_balls() -> None:
    a, b = normal(0, 9, 20), normal(1, 20, 8)
    left, right = Ball(a, a.abs() * 0.01), Ball(b, b.abs() * 0.02)
    ball = Radius(policy(Sum("fp64"))).matmul("S", left, right)
    worst = a.abs() @ (b.abs() * 0.02) + (a.abs() * 0.01) @ (b.abs() * 1.02)
    assert bool((ball.radius >= worst).all())
    assert bool((ball.radius <= worst * 1.001).all())
    signs = torch.sign(a)[:1].T * torch.sign(a @ b)[0].sign()[0]
    moved = (a + a.abs() * 0.01 * signs.T) @ (b + b.abs() * 0.02 * signs * torch.sign(b) * torch.sign(b))
    assert bool(((moved - ball.value).abs() <= ball.radius).all())


def test_depth_and_not_length_decides_the_radius_of_blocks() -> None:
    a, b = torch.ones(1, 4096, dtype=torch.float64), torch.ones(4096, 1, dtype=torch.float64)
    chain, blocks = (
        Radius(policy(how)).matmul("S", a, b).radius.item() for how in (Sum(), Sum(tree="pairwise", block=64))
    )
    assert chain / 4096 == pytest.approx(4096 * 2.0**-24, rel=1e-3)
    assert blocks / 4096 == pytest.approx(13 * 2.0**-24, rel=1e-2)


def test_batch_axes_broadcast_in_every_reading(monkeypatch: Any) -> None:
    a, b = normal(0, 3, 1, 4, 20, dtype="fp32"), normal(1, 5, 20, 6, dtype="fp32")
    truth = Truth().matmul("S", a, b)
    assert truth.shape == (3, 5, 4, 6)
    assert torch.equal(Emulation(policy()).matmul("S", a, b), truth)
    assert Radius(policy()).matmul("S", a, b).radius.shape == truth.shape
    for exact in (0, large.EXACT):
        monkeypatch.setattr(large, "EXACT", exact)
        noise = Noise(policy(), 1).matmul("S", a, b)
        assert noise.shape == truth.shape
        assert 0 < rms(noise - truth) < 1e-5
    recording = Recording()
    recording.matmul("S", a, b)
    assert torch.allclose(recording.terms["S"].rows(10**6).sum(-1).reshape(truth.shape), truth)
    assert torch.allclose(recording.terms["S"].size(), a.abs() @ b.abs())


def test_a_first_addend_is_added_and_counted() -> None:
    a, b, onto = normal(0, 4, 20), normal(1, 20, 6), normal(2, 4, 6)
    for reading in (Truth(), Emulation(policy())):
        assert torch.equal(reading.matmul("S", a, b, onto=onto), a @ b + onto)
    recording = Recording()
    recording.matmul("S", a, b, onto=onto)
    assert recording.terms["S"].most == 21
    bare, more = (Radius(policy()).matmul("S", a, b, onto=o).radius for o in (None, onto))
    assert bool((more > bare).all())


def test_tf32_inputs_are_one_error_for_a_whole_row() -> None:
    a, b = normal(0, 1, 1, dtype="fp32"), normal(1, 1, 500, dtype="bf16")
    noise = Noise(policy(Sum(dot="tf32")), 3).matmul("S", a, b) / (a @ b) - 1
    assert 2.0**-16 < noise.abs().mean().item() < 2.0**-11
    assert (noise.max() - noise.min()).item() < 2.0**-20
    # Numbers that tf32 holds lose nothing.
    whole = Noise(policy(Sum(dot="tf32")), 3).matmul("S", round_to(a, "bf16"), b)
    assert (whole / (round_to(a, "bf16") @ b) - 1).abs().max().item() < 2.0**-20


def test_jitter_and_sharing_follow_the_same_spread() -> None:
    a, b = normal(0, 40, 64, dtype="fp32"), normal(1, 64, 60, dtype="fp32")
    shared: dict[Any, Any] = {}
    plain = Emulation(policy(), shared=shared).matmul("S", a, b)
    assert torch.equal(plain, a @ b)
    assert list(shared) == [("total", "S", 0)]
    jittered = Emulation(policy(), 5, shared).matmul("S", a, b)
    assert rms(jittered - plain) == pytest.approx(rms(shared["total", "S", 0][1]), rel=0.1)


def test_a_named_sum_holds_what_its_accumulator_held() -> None:
    a, b = normal(0, 4, 20), normal(1, 20, 6)
    shared: dict[Any, Any] = {}
    reading = Emulation(policy(), shared=shared)
    reading.at("S", reading.matmul("S", a, b))
    assert shared["held", "S", 0] == (None, None)


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_empty_products(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b = torch.zeros(m, k, dtype=torch.float64), torch.zeros(k, n, dtype=torch.float64)
    for reading in (Truth(), Recording(), Emulation(policy(), 1), Noise(policy(), 1)):
        assert torch.equal(reading.matmul("S", a, b), torch.zeros(m, n, dtype=torch.float64))
    assert bool((Radius(policy()).matmul("S", a, b).radius == 0).all())


def test_products_that_should_round_one_by_one_are_refused() -> None:
    with pytest.raises(Refused, match="use total"):
        Emulation(policy(**{"S.terms": "bf16"})).matmul("S", normal(0, 2, 2), normal(1, 2, 2))
    with pytest.raises(Refused, match=r"\(\.\.\., m, k\)"):
        Truth().matmul("S", normal(0, 2), normal(1, 2, 2))


def test_an_unbounded_factor_does_not_hide_behind_a_zero() -> None:
    wide = Ball(torch.ones(1, 2, dtype=torch.float64), torch.tensor([[math.inf, 0.0]], dtype=torch.float64))
    zero = torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    assert Radius(policy()).matmul("S", wide, zero).radius.tolist() == [[math.inf, math.inf]]
