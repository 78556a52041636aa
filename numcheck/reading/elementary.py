"""Elementary functions on Balls: for each, a radius that no operand inside its ball can leave.

Where a function is not exact its result also carries the rounding of the arithmetic it stands for: one unit roundoff
for +, -, *, more for functions that devices approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from numcheck.errors import Refused
from numcheck.reading.ball import FP64_UNIT, Ball, outward

# The largest error of a device's FP32 division, sqrt, rsqrt, exp, exp2, log, log2, log1p, expm1 and tanh, in ulps of
# two unit roundoffs each: the tables of the CUDA C++ Programming Guide list 2 for most and 3 for an approximate sqrt.
FUNCTION_ULPS = 3.0
# Beyond this magnitude of its argument exp is 0 or infinite, in FP64 too.
EXP_RANGE = 1024.0


def ball_of(x: Any, unit: float = FP64_UNIT) -> Ball:
    """`x` as a Ball; numbers and tensors (masks and integers too) are exact."""
    if isinstance(x, Ball):
        return x
    return Ball.exact(torch.as_tensor(x, dtype=torch.float64), unit)


def pair(a: Any, b: Any) -> tuple[Ball, Ball, float]:
    a, b = ball_of(a), ball_of(b)
    return a, b, max(a.unit, b.unit)


def computed(value: Tensor, radius: Tensor, unit: float, roundings: float | Tensor = 1.0) -> Ball:
    """A result that was rounded `roundings` times, each by at most unit * |result| (FP64's own error included)."""
    share = roundings * unit + 2 * FP64_UNIT
    if math.isfinite(float(value.sum() + radius.sum())):
        return Ball(value, value.abs().add_(radius).mul_(share).add_(radius), unit)
    # An exact infinity is not uncertain; a NaN radius around a number means that nothing is known.
    size = torch.where(torch.isfinite(value), value.abs() + radius, 0.0)
    return Ball(value, known(value, radius + size * share), unit)


def known(value: Tensor, radius: Tensor) -> Tensor:
    """The radius where it is a number; elsewhere 0 around an infinity, which is exact, and infinite around a number."""
    return torch.where(torch.isnan(radius), torch.where(torch.isinf(value), 0.0, math.inf), radius)


def _finite(bound: Tensor) -> Tensor:
    """A bound that counts roundings: an infinite argument, whose function is exact, rounds none."""
    return torch.where(torch.isfinite(bound), bound, 0.0)


def structural(move: Callable[[Tensor], Any], x: Any) -> Any:
    """A function that moves elements and computes nothing, done to value and radius alike."""
    ball = ball_of(x)
    value = move(ball.value)
    if ball.sure:
        exact = Ball.exact
        return tuple(exact(v, ball.unit) for v in value) if isinstance(value, tuple | list) else exact(value, ball.unit)
    radius = move(ball.radius)
    if isinstance(value, tuple | list):
        return tuple(Ball(v, r, ball.unit) for v, r in zip(value, radius, strict=True))
    return Ball(value, radius, ball.unit)


def join(how: Callable[..., Tensor], tensors: Iterable[Any], dim: int = 0) -> Ball:
    balls = [ball_of(t) for t in tensors]
    unit = max((b.unit for b in balls), default=FP64_UNIT)
    if all(b.sure for b in balls):
        return Ball.exact(how([b.value for b in balls], dim), unit)
    return Ball(how([b.value for b in balls], dim), how([b.radius for b in balls], dim), unit)


def add(a: Any, b: Any, *, alpha: float = 1) -> Ball:
    a, b, unit = pair(a, multiply(b, alpha) if alpha != 1 else b)
    return computed(a.value + b.value, a.radius + b.radius, unit)


def subtract(a: Any, b: Any, *, alpha: float = 1) -> Ball:
    a, b, unit = pair(a, multiply(b, alpha) if alpha != 1 else b)
    return computed(a.value - b.value, a.radius + b.radius, unit)


def multiply(a: Any, b: Any) -> Ball:
    a, b, unit = pair(a, b)
    value = a.value * b.value
    if a.sure and b.sure:
        radius = value.new_zeros(()).expand(value.shape)
    elif a.sure or b.sure:
        sure, ball = (a, b) if a.sure else (b, a)
        radius = sure.value.abs() * ball.radius
    else:
        radius = a.value.abs() * b.radius + a.radius * b.bound
    return computed(value, radius, unit)


def divide(a: Any, b: Any) -> Ball:
    a, b, unit = pair(a, b)
    value = a.value / b.value
    away = b.value.abs() - b.radius
    radius = torch.where(away > 0, (a.radius + value.abs() * b.radius) / away, math.inf)
    return computed(value, radius, unit, 2 * FUNCTION_ULPS)


def _power(x: Any, exponent: Any) -> Ball:
    if isinstance(exponent, float) and exponent.is_integer():
        exponent = int(exponent)
    if exponent == 0.5:
        return _sqrt(x)
    if exponent == -0.5:
        return _rsqrt(x)
    if not isinstance(exponent, int):
        raise Refused(f"Ball to the power {exponent!r}: integer exponents, 0.5 and -0.5 are enclosed; use exp and log")
    if exponent < 0:
        return divide(1.0, _power(x, -exponent))
    ball = ball_of(x)
    radius = ball.bound**exponent - ball.value.abs() ** exponent
    return computed(ball.value**exponent, outward(radius), ball.unit, max(exponent - 1, 0))


def _square(x: Any) -> Ball:
    return _power(x, 2)


def _abs(x: Any) -> Ball:
    ball = ball_of(x)
    return Ball(ball.value.abs(), ball.radius, ball.unit)


def _sign(x: Any) -> Ball:
    ball = ball_of(x)
    sure = (ball.value.abs() > ball.radius) | (ball.radius == 0)
    value = torch.sign(ball.value)
    return Ball(value, torch.where(sure, 0.0, 1.0 + value.abs()), ball.unit)


def exp(x: Any) -> Ball:
    ball = ball_of(x)
    value = torch.exp(ball.value)
    # The second form where the first is 0 * inf: an argument so low that no number of its ball has a power above 0.
    up = torch.where(ball.radius < 1, value * torch.expm1(ball.radius), torch.exp(ball.value + ball.radius) - value)
    # Kernels compute exp as exp2(x * log2(e)): the rounded argument costs 2 |x| more unit roundoffs.
    return computed(value, up, ball.unit, 2 * FUNCTION_ULPS + 2 * ball.bound.clamp(max=EXP_RANGE))


def _exp2(x: Any) -> Ball:
    return exp(multiply(x, math.log(2.0)))


def _expm1(x: Any) -> Ball:
    ball = ball_of(x)
    radius = torch.exp(ball.value) * torch.expm1(ball.radius)
    return computed(torch.expm1(ball.value), radius, ball.unit, 2 * FUNCTION_ULPS)


def log(x: Any) -> Ball:
    ball = ball_of(x)
    radius = -torch.log1p(-ball.radius / ball.value)
    radius = torch.where(ball.radius < ball.value, radius, torch.where(ball.radius == 0, 0.0, math.inf))
    return computed(torch.log(ball.value), radius, ball.unit, 2 * FUNCTION_ULPS)


def _log2(x: Any) -> Ball:
    return multiply(log(x), 1 / math.log(2.0))


def _log1p(x: Any) -> Ball:
    ball = ball_of(x)
    radius = torch.where(ball.radius < 1 + ball.value, -torch.log1p(-ball.radius / (1 + ball.value)), math.inf)
    return computed(torch.log1p(ball.value), outward(radius), ball.unit, 2 * FUNCTION_ULPS)


def _sqrt(x: Any) -> Ball:
    """Numbers below zero cannot be meant: the lower end is cut at zero."""
    ball = ball_of(x)
    value, low = torch.sqrt(ball.value), torch.sqrt((ball.value - ball.radius).clamp(min=0.0))
    up = torch.sqrt(ball.value + ball.radius) - value
    radius = torch.maximum(torch.where(ball.radius > 0, ball.radius / (value + low), 0.0), up)
    radius = torch.where(low > 0, radius, torch.maximum(value, up))
    return computed(value, radius, ball.unit, 2 * FUNCTION_ULPS)


def _rsqrt(x: Any) -> Ball:
    ball = ball_of(x)
    value, low = torch.rsqrt(ball.value), ball.value - ball.radius
    # 1/sqrt(l) - 1/sqrt(v) without cancellation, for l the lower end, where the slope is steepest.
    root, bottom = torch.sqrt(ball.value), torch.sqrt(low.clamp(min=0.0))
    radius = ball.radius / (root * bottom * (root + bottom))
    radius = torch.where(ball.radius == 0, 0.0, torch.where(low > 0, radius, math.inf))
    return computed(value, radius, ball.unit, 2 * FUNCTION_ULPS)


def _reciprocal(x: Any) -> Ball:
    return divide(1.0, x)


def _sigmoid(x: Any) -> Ball:
    """Slope e^-m / (1 + e^-m)^2 at the least magnitude m is the largest; exp, add and division round."""
    ball = ball_of(x)
    decay = torch.exp(-(ball.value.abs() - ball.radius).clamp(min=0.0))
    radius = ball.radius * decay / (1 + decay) ** 2
    return computed(torch.sigmoid(ball.value), radius, ball.unit, 4 * FUNCTION_ULPS + 1 + 2 * _finite(ball.bound))


def _tanh(x: Any) -> Ball:
    """Slope 1 / cosh(m)^2 at the least magnitude m is the largest."""
    ball = ball_of(x)
    radius = ball.radius / torch.cosh((ball.value.abs() - ball.radius).clamp(min=0.0)) ** 2
    return computed(torch.tanh(ball.value), radius, ball.unit, 2 * FUNCTION_ULPS)


def _softplus(x: Any) -> Ball:
    ball = ball_of(x)
    radius = ball.radius * torch.sigmoid(ball.value + ball.radius)
    value = torch.nn.functional.softplus(ball.value)
    return computed(value, radius, ball.unit, 4 * FUNCTION_ULPS + 2 * _finite(ball.bound))


def _silu(x: Any, **_: Any) -> Ball:
    return multiply(x, _sigmoid(x))


def _relu(x: Any, **_: Any) -> Ball:
    return _clamp(x, min=0.0)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Ball:
    ball = ball_of(x)
    if min is not None:
        ball = _maximum(ball, min)
    return ball if max is None else _minimum(ball, max)


def _maximum(a: Any, b: Any) -> Ball:
    """|max(x, y) - max(a, b)| is at most the larger of |x - a| and |y - b|; where one side is sure, its own radius."""
    a, b, unit = pair(a, b)
    apart, reach = a.value - b.value, a.radius + b.radius
    radius = torch.where(a.radius > b.radius, a.radius, b.radius)
    radius = torch.where(apart > reach, a.radius, torch.where(-apart > reach, b.radius, radius))
    return Ball(torch.maximum(a.value, b.value), radius, unit)


def _minimum(a: Any, b: Any) -> Ball:
    return -_maximum(-ball_of(a), -ball_of(b))


def _amax(x: Any, dim: Any = (), keepdim: bool = False) -> Ball:
    ball = ball_of(x)
    radius = ball.radius.amax(dim, keepdim=keepdim)
    return Ball(ball.value.amax(dim, keepdim=keepdim), radius, ball.unit)


def _amin(x: Any, dim: Any = (), keepdim: bool = False) -> Ball:
    return -_amax(-ball_of(x), dim, keepdim)


def _where(condition: Any, a: Any, b: Any) -> Ball:
    if not isinstance(condition, Tensor):
        raise Refused("torch.where over a Ball needs its condition as a bool tensor")
    a, b, unit = pair(a, b)
    value = torch.where(condition, a.value, b.value)
    return (
        Ball.exact(value, unit) if a.sure and b.sure else Ball(value, torch.where(condition, a.radius, b.radius), unit)
    )


def _masked_fill(x: Any, mask: Tensor, value: float) -> Ball:
    return _where(mask, value, x)


def _nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Ball:
    """What is replaced is exact, what is kept keeps its radius."""
    ball = ball_of(x)
    radius = torch.where(torch.isfinite(ball.value), ball.radius, 0.0)
    return Ball(torch.nan_to_num(ball.value, nan, posinf, neginf), radius, ball.unit)


def _max(x: Any, other: Any = None) -> Ball:
    if other is None:
        return _amax(x)
    if not isinstance(other, Ball | Tensor):
        raise Refused("max over an axis also gives an index, which a Ball cannot vouch for; use amax")
    return _maximum(x, other)


def _compare(name: str, a: Any, b: Any) -> Tensor:
    """A comparison, where it is the same for every number of the balls."""
    a, b, _ = pair(a, b)
    reach = a.radius + b.radius
    if bool((((a.value - b.value).abs() <= reach) & (reach > 0)).any()):
        raise Refused(
            "a comparison of Balls that overlap has no one answer; use maximum, clamp, relu, abs or sign, "
            "or compare tensors that no rounding has touched"
        )
    result: Tensor = getattr(torch, name)(a.value, b.value)
    return result


# Functions of single elements and of their order, by torch's name for them.
ELEMENTARY: dict[str, Callable[..., Any]] = {
    "add": add,
    "sub": subtract,
    "subtract": subtract,
    "rsub": lambda a, b: subtract(b, a),
    "mul": multiply,
    "multiply": multiply,
    "div": divide,
    "divide": divide,
    "true_divide": divide,
    "truediv": divide,
    "rtruediv": lambda a, b: divide(b, a),
    "rdiv": lambda a, b: divide(b, a),
    "neg": lambda x: -ball_of(x),
    "negative": lambda x: -ball_of(x),
    "abs": _abs,
    "sign": _sign,
    "pow": _power,
    "square": _square,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "exp": exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": log,
    "log2": _log2,
    "log1p": _log1p,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "softplus": _softplus,
    "silu": _silu,
    "relu": _relu,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min=min),
    "clamp_max": lambda x, max: _clamp(x, max=max),
    "maximum": _maximum,
    "minimum": _minimum,
    "max": _max,
    "amax": _amax,
    "amin": _amin,
    "where": _where,
    "masked_fill": _masked_fill,
    "nan_to_num": _nan_to_num,
    "isfinite": lambda x: torch.isfinite(ball_of(x).value),
    "isinf": lambda x: torch.isinf(ball_of(x).value),
    "isnan": lambda x: torch.isnan(ball_of(x).value),
    "eq": lambda a, b: _compare("eq", a, b),
    "ne": lambda a, b: _compare("ne", a, b),
    "lt": lambda a, b: _compare("lt", a, b),
    "le": lambda a, b: _compare("le", a, b),
    "gt": lambda a, b: _compare("gt", a, b),
    "ge": lambda a, b: _compare("ge", a, b),
    "cat": lambda tensors, dim=0: join(torch.cat, tensors, dim),
    "concat": lambda tensors, dim=0: join(torch.cat, tensors, dim),
    "stack": lambda tensors, dim=0: join(torch.stack, tensors, dim),
    "new_zeros": lambda x, *size, **kwargs: ball_of(x).value.new_zeros(*size, **kwargs),
    "full_like": lambda x, value, **_: torch.full_like(ball_of(x).value, value),
    "zeros_like": lambda x, **_: torch.zeros_like(ball_of(x).value),
    "ones_like": lambda x, **_: torch.ones_like(ball_of(x).value),
    "numel": lambda x: ball_of(x).value.numel(),
    "size": lambda x, *dim: ball_of(x).value.size(*dim),
    "dim": lambda x: ball_of(x).ndim,
}
