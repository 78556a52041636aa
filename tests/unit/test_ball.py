"""Ball: random perturbations inside the operands' radii land inside the result's, and not far inside."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

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
LOOSE = {"softmax": 0.3, "logsumexp": 0.5}


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
