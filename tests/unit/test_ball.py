"""Ball: random perturbations inside the operands' radii land inside the result's, and not far inside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import pytest
import torch
from torch import Tensor

from numcheck.contract import Rounding
from numcheck.errors import Refused
from numcheck.reading import Ball
from numcheck.reading.ball import FP64_UNIT
from numcheck.ulp import round_to, unit_roundoff

Function = Callable[..., Any]
FP32_UNIT = unit_roundoff("fp32")


def values(seed: int, *shape: int, positive: bool = False) -> Tensor:
    t = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return t.abs() + 0.3 if positive else t


def balls(count: int, positive: bool) -> list[Ball]:
    """Balls of relative radii from 0 to a few percent."""
    made = []
    for k in range(count):
        v = values(k, 4, 6, positive=positive)
        share = values(100 + k, 4, 6).abs() * 0.02
        share[0] = 0.0
        made.append(Ball(v, v.abs() * share))
    return made


def escape(function: Function, operands: list[Ball], tries: int = 40) -> float:
    """The furthest that a perturbed result gets, in radii of the ball that should hold it."""
    result = function(*operands)
    furthest = 0.0
    corners = itertools.product((-1.0, 1.0), repeat=len(operands))
    generator = torch.Generator().manual_seed(1)
    shifts: list[list[Any]] = [list(c) for c in corners]
    for _ in range(tries):
        shifts.append([torch.rand(b.shape, generator=generator, dtype=torch.float64) * 2 - 1 for b in operands])
    # A little short of the edge, so that the FP64 rounding of value + radius does not leave the operand's own ball.
    inside = 1 - 2.0**-40
    for shift in shifts:
        moved = function(*[b.value + s * inside * b.radius for b, s in zip(operands, shift, strict=True)])
        error = (moved - result.value).abs()
        assert bool((error[result.radius == 0] == 0).all())
        furthest = max(furthest, (error / result.radius.clamp(min=1e-300)).max().item())
    return furthest


UNARY: dict[str, tuple[Function, bool]] = {
    "neg": (lambda x: -x, False),
    "abs": (abs, False),
    "torch.abs": (torch.abs, False),
    "exp": (torch.exp, False),
    "exp2": (torch.exp2, False),
    "expm1": (torch.expm1, False),
    "log": (torch.log, True),
    "log2": (torch.log2, True),
    "log1p": (torch.log1p, True),
    "sqrt": (torch.sqrt, True),
    "rsqrt": (torch.rsqrt, True),
    "reciprocal": (torch.reciprocal, True),
    "sigmoid": (torch.sigmoid, False),
    "tanh": (torch.tanh, False),
    "relu": (torch.relu, False),
    "silu": (torch.nn.functional.silu, False),
    "softplus": (torch.nn.functional.softplus, False),
    "square": (torch.square, False),
    "pow3": (lambda x: x**3, False),
    "pow-2": (lambda x: x**-2, True),
    "pow0.5": (lambda x: x**0.5, True),
    "clamp": (lambda x: x.clamp(-0.5, 0.7), False),
    "clamp_min": (lambda x: torch.clamp(x, min=0.1), False),
    "sum": (lambda x: x.sum(-1), False),
    "sum all": (lambda x: x.sum(), False),
    "mean": (lambda x: torch.mean(x, dim=-1, keepdim=True), False),
    "cumsum": (lambda x: x.cumsum(-1), False),
    "amax": (lambda x: x.amax(-1), False),
    "amin": (lambda x: torch.amin(x, dim=0), False),
    "softmax": (lambda x: torch.softmax(x, dim=-1), False),
    "logsumexp": (lambda x: torch.logsumexp(x, dim=-1), False),
    "log_softmax": (lambda x: torch.log_softmax(x, dim=-1), False),
    "index_select": (lambda x: torch.index_select(x, 1, torch.tensor([5, 0, 5])), False),
    "take along": (lambda x: torch.gather(x, 1, torch.tensor([[0, 5], [1, 1], [2, 3], [4, 0]])), False),
    "masked_select": (lambda x: x[torch.eye(4, 6, dtype=torch.bool)] + x.masked_select(x.isfinite()).sum(), False),
    "clip": (lambda x: x.clip(max=0.2), False),
    "unflatten": (lambda x: x.unflatten(-1, (2, 3)).mT.flatten(-2), False),
    "index_add": (lambda x: x.index_add(0, torch.tensor([1, 1, 3]), x[:3] * 2.0), False),
    "index_put": (lambda x: x.index_put((torch.tensor([1, 1]),), x[2:], accumulate=True), False),
    "masked_fill": (lambda x: x.masked_fill(torch.eye(4, 6, dtype=torch.bool), 0.0), False),
    "scalar operators": (lambda x: 2.0 - 3.0 * x / 7.0 + 1, False),
    "over": (lambda x: 1.0 / x, True),
    "index": (lambda x: x[1:, None, ::2], False),
    "gather": (lambda x: x[torch.tensor([2, 0, 2])], False),
    "reshape": (lambda x: x.reshape(2, 12).transpose(0, 1).unsqueeze(0).movedim(0, -1).squeeze(-1), False),
    "expand": (lambda x: x.unsqueeze(0).expand(3, 4, 6), False),
    "flip": (lambda x: torch.flip(x, (0,)), False),
    "split": (lambda x: torch.cat(x.split(2, dim=-1), dim=0), False),
    "unbind": (lambda x: torch.stack(torch.unbind(x, 0), dim=1), False),
}
BINARY: dict[str, tuple[Function, bool]] = {
    "add": (lambda a, b: a + b, False),
    "sub": (lambda a, b: a - b, False),
    "mul": (lambda a, b: a * b, False),
    "torch.mul": (torch.mul, False),
    "div": (lambda a, b: a / b, True),
    "maximum": (torch.maximum, False),
    "max": (torch.max, False),
    "logaddexp": (torch.logaddexp, False),
    "mv": (lambda a, b: torch.mv(a, b[0]), False),
    "minimum": (torch.minimum, False),
    "where": (lambda a, b: torch.where(torch.eye(4, 6, dtype=torch.bool), a, b), False),
    "matmul": (lambda a, b: a @ b.mT, False),
    "einsum": (lambda a, b: torch.einsum("ik,jk->ij", a, b), False),
    "cat": (lambda a, b: torch.cat([a, b], dim=-1), False),
    "stack": (lambda a, b: torch.stack([a, b]), False),
}


@pytest.mark.parametrize("name", UNARY)
def test_unary_functions_enclose(name: str) -> None:
    function, positive = UNARY[name]
    assert escape(function, balls(1, positive)) <= 1.0


@pytest.mark.parametrize("name", BINARY)
def test_binary_functions_enclose(name: str) -> None:
    function, positive = BINARY[name]
    assert escape(function, balls(2, positive)) <= 1.0


# exp is steeper above than below, a softmax's and a logsumexp's terms are bounded one by one, exp2's log(2) is a Ball
# of its own; all else comes within a tenth of its radius.
LOOSE = {"softmax": 0.3, "logsumexp": 0.5, "log_softmax": 0.5, "logaddexp": 0.5}


@pytest.mark.parametrize("name", {**UNARY, **BINARY})
def test_no_radius_is_needlessly_wide(name: str) -> None:
    function, positive = {**UNARY, **BINARY}[name]
    operands = balls(2 if name in BINARY else 1, positive)
    assert escape(function, operands) >= LOOSE.get(name, 0.9)


def test_the_sampling_would_notice_a_radius_that_is_too_small() -> None:
    def wrong(x: Any) -> Any:
        result = torch.exp(x)
        return Ball(result.value, result.radius * 0.9) if isinstance(result, Ball) else result

    assert escape(wrong, balls(1, False)) > 1.0


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "rsqrt", "sigmoid", "tanh", "silu", "softmax", "mean", "pow3"])
def test_fp32_arithmetic_stays_inside(name: str) -> None:
    function, positive = UNARY[name]
    x = values(5, 64, 65, positive=positive).float() * 4
    result = function(Ball.exact(x.double(), FP32_UNIT))
    error = (function(x).double() - result.value).abs()
    assert bool((error <= result.radius).all())
    assert bool((error > result.radius / 1000).any())


def test_fp32_products_stay_inside() -> None:
    a, b = values(1, 40, 300).float(), values(2, 300, 50).float()
    result = Ball.exact(a.double(), FP32_UNIT) @ Ball.exact(b.double(), FP32_UNIT)
    assert bool((((a @ b).double() - result.value).abs() <= result.radius).all())


def test_mixed_operands() -> None:
    ball, tensor = balls(1, False)[0], values(9, 4, 6)
    for result in (tensor * ball, ball * tensor, torch.mul(tensor, ball), tensor + ball, tensor - ball, tensor / ball):
        assert isinstance(result, Ball)
    assert torch.equal((tensor - ball).value, tensor - ball.value)
    assert isinstance(torch.cat([tensor, ball]), Ball)


def test_division_by_a_ball_that_holds_zero_is_unbounded() -> None:
    wide = Ball(torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.2], dtype=torch.float64))
    for result in (1.0 / wide, torch.log(wide), torch.rsqrt(wide)):
        assert result.radius.item() == float("inf")
    assert torch.sqrt(wide).radius.item() >= 0.1**0.5


LIVE = torch.tensor([[True, True, False, True], [False, True, True, False], [False] * 4])


def masked(poison: float) -> Ball:
    """Three rows of four, poison where not LIVE, in value and radius alike."""
    v = values(1, 3, 4)
    return Ball(torch.where(LIVE, v, poison), torch.where(LIVE, v.abs() * 0.01, abs(poison)), FP32_UNIT)


def attended(x: Any) -> Any:
    """What a masked attention does: logits to -inf, row maximum, exp, sum, log, division; a dead row selected away."""
    s = torch.where(LIVE, x, -torch.inf)
    dead = ~LIVE.any(-1, keepdim=True)
    top = torch.where(dead, 0.0, torch.amax(s, -1, keepdim=True))
    e = torch.exp(s - top)
    size = e.sum(-1, keepdim=True)
    p = torch.where(dead, 0.0, e / size)
    return p @ torch.where(LIVE, x, 0.0).mT + torch.where(dead, 0.0, torch.log(size) + top)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 1e300])
def test_what_is_masked_out_leaks_nowhere(poison: float) -> None:
    clean, dirty = attended(masked(0.5)), attended(masked(poison))
    assert torch.equal(clean.value, dirty.value)
    assert torch.equal(clean.radius, dirty.radius)
    assert bool(torch.isfinite(clean.radius).all())
    moved = masked(0.5)
    for sign in (-1, 1):
        shifted = attended(moved.value + sign * moved.radius * (1 - 2.0**-40))
        assert bool(((shifted - clean.value).abs() <= clean.radius).all())


@pytest.mark.parametrize("function", [torch.exp, torch.sigmoid, torch.tanh, torch.nn.functional.softplus, torch.relu])
def test_an_infinite_argument_has_an_exact_result(function: Function) -> None:
    x = torch.tensor([-math.inf, 1.0, math.inf], dtype=torch.float64)
    result = function(Ball.exact(x, FP32_UNIT))
    assert torch.equal(result.value, function(x))
    assert bool((result.radius[[0, 2]] < 1e-5).all())
    assert bool(torch.isfinite(result.radius).all())


def test_logsumexp_of_nothing_is_minus_infinity() -> None:
    row = Ball.exact(torch.full((1, 3), -math.inf, dtype=torch.float64), FP32_UNIT)
    result = torch.logsumexp(row, -1)
    assert (result.value.item(), result.radius.item()) == (-math.inf, 0.0)


def test_what_is_replaced_is_exact() -> None:
    x = Ball(torch.tensor([math.nan, 2.0], dtype=torch.float64), torch.tensor([math.nan, 0.5], dtype=torch.float64))
    assert torch.nan_to_num(x).value.tolist() == [0.0, 2.0]
    assert torch.nan_to_num(x).radius.tolist() == [0.0, 0.5]
    assert torch.isnan(x).tolist() == [True, False]


def test_moving_a_certain_ball_keeps_it_certain() -> None:
    sure = Ball.exact(values(1, 4, 6))
    for moved in (sure[1:], sure.mT, sure.index_select(0, torch.tensor([1])), torch.cat([sure, sure])):
        assert moved.sure
    assert torch.where(torch.eye(4, 6, dtype=torch.bool), sure, 0.0).sure
    assert not torch.where(torch.eye(4, 6, dtype=torch.bool), sure, balls(1, False)[0]).sure


def test_a_maximum_over_an_axis_with_its_index_is_refused() -> None:
    with pytest.raises(Refused, match="amax"):
        torch.max(balls(1, False)[0], -1)


EXACT_FUNCTIONS: dict[str, Any] = {
    "exp": mpmath.exp,
    "expm1": mpmath.expm1,
    "log": mpmath.log,
    "log1p": mpmath.log1p,
    "sqrt": mpmath.sqrt,
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "tanh": mpmath.tanh,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "softplus": lambda x: mpmath.log1p(mpmath.exp(x)),
    "silu": lambda x: x / (1 + mpmath.exp(-x)),
}


@pytest.mark.parametrize("name", EXACT_FUNCTIONS)
def test_fifty_digits_of_an_interval_lie_inside(name: str) -> None:
    # Radii from 1e-16 of the value to half of it, so that FP64's own error counts in some and the slope in others.
    function, positive = UNARY[name]
    generator = torch.Generator().manual_seed(3)
    x = values(7, 60, positive=positive) * 3
    radius = x.abs() * 10.0 ** -(16 * torch.rand(60, generator=generator, dtype=torch.float64)) / 2
    result = function(Ball(x, radius))
    with mpmath.workdps(50):
        for centre, reach, value, bound in zip(
            *(t.tolist() for t in (x, radius, result.value, result.radius)), strict=True
        ):
            for step in (-1, mpmath.mpf(-1) / 3, 0, mpmath.mpf(1) / 2, 1):
                exact = EXACT_FUNCTIONS[name](mpmath.mpf(centre) + step * mpmath.mpf(reach))
                assert abs(exact - mpmath.mpf(value)) <= mpmath.mpf(bound)


def test_sign_knows_when_it_is_not_sure() -> None:
    wide = Ball(torch.tensor([0.1, 0.1, 0.0], dtype=torch.float64), torch.tensor([0.2, 0.0, 0.0], dtype=torch.float64))
    assert torch.sign(wide).radius.tolist() == [2.0, 0.0, 0.0]


@pytest.mark.parametrize("mode", ["nearest", "truncate"])
def test_rounding_encloses_and_is_exact_where_nothing_is_uncertain(mode: Any) -> None:
    v = values(3, 2000)
    sure = Ball.exact(v).rounded(Rounding("bf16", mode))
    error = (round_to(v, "bf16", mode) - v).abs()
    assert bool((error <= sure.radius).all())
    assert bool((sure.radius <= error * (1 + 8 * FP64_UNIT)).all())
    ball = Ball(v, values(4, 2000).abs() * 0.003)
    result = ball.rounded(Rounding("bf16", mode))
    for shift in (-1.0, -0.3, 0.0, 0.6, 1.0):
        moved = round_to(v + shift * ball.radius, "bf16", mode)
        assert bool(((moved - v).abs() <= result.radius).all())


def test_overflow_of_a_rounding_is_unbounded() -> None:
    huge = Ball.exact(torch.tensor([3.4e38], dtype=torch.float64))
    assert huge.rounded(Rounding("bf16")).radius.item() == float("inf")


def test_an_unknown_function_says_its_name_and_what_to_do() -> None:
    ball = balls(1, False)[0]
    with pytest.raises(Refused, match=r"erfinv.*write it with .*exp.*read\.total"):
        torch.erfinv(ball)
    with pytest.raises(Refused, match="'median'"):
        ball.median()


def test_overlapping_balls_do_not_compare() -> None:
    ball = balls(1, False)[0]
    assert torch.equal(ball > ball.value.abs().max().item() * 2, torch.zeros(4, 6, dtype=torch.bool))
    with pytest.raises(Refused, match="overlap"):
        _ = ball > ball
