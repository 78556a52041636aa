"""Enclosures: for each torch function that a Ball takes, a radius that no operand inside its ball can leave.

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


def _pair(a: Any, b: Any) -> tuple[Ball, Ball, float]:
    a, b = ball_of(a), ball_of(b)
    return a, b, max(a.unit, b.unit)


def _computed(value: Tensor, radius: Tensor, unit: float, roundings: float | Tensor = 1.0) -> Ball:
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


def _join(join: Callable[..., Tensor], tensors: Iterable[Any], dim: int = 0) -> Ball:
    balls = [ball_of(t) for t in tensors]
    unit = max((b.unit for b in balls), default=FP64_UNIT)
    if all(b.sure for b in balls):
        return Ball.exact(join([b.value for b in balls], dim), unit)
    return Ball(join([b.value for b in balls], dim), join([b.radius for b in balls], dim), unit)


def _add(a: Any, b: Any, *, alpha: float = 1) -> Ball:
    a, b, unit = _pair(a, _multiply(b, alpha) if alpha != 1 else b)
    return _computed(a.value + b.value, a.radius + b.radius, unit)


def _subtract(a: Any, b: Any, *, alpha: float = 1) -> Ball:
    a, b, unit = _pair(a, _multiply(b, alpha) if alpha != 1 else b)
    return _computed(a.value - b.value, a.radius + b.radius, unit)


def _multiply(a: Any, b: Any) -> Ball:
    a, b, unit = _pair(a, b)
    value = a.value * b.value
    if a.sure and b.sure:
        radius = value.new_zeros(()).expand(value.shape)
    elif a.sure or b.sure:
        sure, ball = (a, b) if a.sure else (b, a)
        radius = sure.value.abs() * ball.radius
    else:
        radius = a.value.abs() * b.radius + a.radius * b.bound
    return _computed(value, radius, unit)


def _divide(a: Any, b: Any) -> Ball:
    a, b, unit = _pair(a, b)
    value = a.value / b.value
    away = b.value.abs() - b.radius
    radius = torch.where(away > 0, (a.radius + value.abs() * b.radius) / away, math.inf)
    return _computed(value, radius, unit, 2 * FUNCTION_ULPS)


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
        return _divide(1.0, _power(x, -exponent))
    ball = ball_of(x)
    radius = ball.bound**exponent - ball.value.abs() ** exponent
    return _computed(ball.value**exponent, outward(radius), ball.unit, max(exponent - 1, 0))


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


def _exp(x: Any) -> Ball:
    ball = ball_of(x)
    value = torch.exp(ball.value)
    # The second form where the first is 0 * inf: an argument so low that no number of its ball has a power above 0.
    up = torch.where(ball.radius < 1, value * torch.expm1(ball.radius), torch.exp(ball.value + ball.radius) - value)
    # Kernels compute exp as exp2(x * log2(e)): the rounded argument costs 2 |x| more unit roundoffs.
    return _computed(value, up, ball.unit, 2 * FUNCTION_ULPS + 2 * ball.bound.clamp(max=EXP_RANGE))


def _exp2(x: Any) -> Ball:
    return _exp(_multiply(x, math.log(2.0)))


def _expm1(x: Any) -> Ball:
    ball = ball_of(x)
    radius = torch.exp(ball.value) * torch.expm1(ball.radius)
    return _computed(torch.expm1(ball.value), radius, ball.unit, 2 * FUNCTION_ULPS)


def _log(x: Any) -> Ball:
    ball = ball_of(x)
    radius = -torch.log1p(-ball.radius / ball.value)
    radius = torch.where(ball.radius < ball.value, radius, torch.where(ball.radius == 0, 0.0, math.inf))
    return _computed(torch.log(ball.value), radius, ball.unit, 2 * FUNCTION_ULPS)


def _log2(x: Any) -> Ball:
    return _multiply(_log(x), 1 / math.log(2.0))


def _log1p(x: Any) -> Ball:
    ball = ball_of(x)
    radius = torch.where(ball.radius < 1 + ball.value, -torch.log1p(-ball.radius / (1 + ball.value)), math.inf)
    return _computed(torch.log1p(ball.value), outward(radius), ball.unit, 2 * FUNCTION_ULPS)


def _sqrt(x: Any) -> Ball:
    """Numbers below zero cannot be meant: the lower end is cut at zero."""
    ball = ball_of(x)
    value, low = torch.sqrt(ball.value), torch.sqrt((ball.value - ball.radius).clamp(min=0.0))
    up = torch.sqrt(ball.value + ball.radius) - value
    radius = torch.maximum(torch.where(ball.radius > 0, ball.radius / (value + low), 0.0), up)
    radius = torch.where(low > 0, radius, torch.maximum(value, up))
    return _computed(value, radius, ball.unit, 2 * FUNCTION_ULPS)


def _rsqrt(x: Any) -> Ball:
    ball = ball_of(x)
    value, low = torch.rsqrt(ball.value), ball.value - ball.radius
    # 1/sqrt(l) - 1/sqrt(v) without cancellation, for l the lower end, where the slope is steepest.
    root, bottom = torch.sqrt(ball.value), torch.sqrt(low.clamp(min=0.0))
    radius = ball.radius / (root * bottom * (root + bottom))
    radius = torch.where(ball.radius == 0, 0.0, torch.where(low > 0, radius, math.inf))
    return _computed(value, radius, ball.unit, 2 * FUNCTION_ULPS)


def _reciprocal(x: Any) -> Ball:
    return _divide(1.0, x)


def _sigmoid(x: Any) -> Ball:
    """Slope e^-m / (1 + e^-m)^2 at the least magnitude m is the largest; exp, add and division round."""
    ball = ball_of(x)
    decay = torch.exp(-(ball.value.abs() - ball.radius).clamp(min=0.0))
    radius = ball.radius * decay / (1 + decay) ** 2
    return _computed(torch.sigmoid(ball.value), radius, ball.unit, 4 * FUNCTION_ULPS + 1 + 2 * _finite(ball.bound))


def _tanh(x: Any) -> Ball:
    """Slope 1 / cosh(m)^2 at the least magnitude m is the largest."""
    ball = ball_of(x)
    radius = ball.radius / torch.cosh((ball.value.abs() - ball.radius).clamp(min=0.0)) ** 2
    return _computed(torch.tanh(ball.value), radius, ball.unit, 2 * FUNCTION_ULPS)


def _softplus(x: Any) -> Ball:
    ball = ball_of(x)
    radius = ball.radius * torch.sigmoid(ball.value + ball.radius)
    value = torch.nn.functional.softplus(ball.value)
    return _computed(value, radius, ball.unit, 4 * FUNCTION_ULPS + 2 * _finite(ball.bound))


def _silu(x: Any, **_: Any) -> Ball:
    return _multiply(x, _sigmoid(x))


def _relu(x: Any, **_: Any) -> Ball:
    return _clamp(x, min=0.0)


def _softmax(x: Any, dim: int = -1, *_: Any, **__: Any) -> Ball:
    """exp(x - m) / sum: m may be any number, so it is taken as the value's own maximum, exactly."""
    ball = ball_of(x)
    powers = _exp(_subtract(ball, _top(ball, dim)))
    return _divide(powers, _sum(powers, dim, keepdim=True))


def _logsumexp(x: Any, dim: Any = -1, keepdim: bool = False) -> Ball:
    ball = ball_of(x)
    top = _top(ball, dim)
    result = _add(_log(_sum(_exp(_subtract(ball, top)), dim, keepdim=True)), top)
    return result if keepdim else structural(lambda t: t.squeeze(dim), result)


def _top(ball: Ball, dim: Any) -> Tensor:
    """The largest value along `dim`; 0 where none is finite, so that a row of -inf gives zeros and no NaN."""
    top = ball.value.amax(dim, keepdim=True)
    return torch.where(torch.isfinite(top), top, 0.0)


def _log_softmax(x: Any, dim: int = -1, *_: Any, **__: Any) -> Ball:
    return _subtract(x, _logsumexp(x, dim, keepdim=True))


def _logaddexp(a: Any, b: Any) -> Ball:
    a, b, _ = _pair(a, b)
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    return _logsumexp(_join(torch.stack, [a.expand(shape), b.expand(shape)]), 0)


def _clamp(x: Any, min: Any = None, max: Any = None) -> Ball:
    ball = ball_of(x)
    if min is not None:
        ball = _maximum(ball, min)
    return ball if max is None else _minimum(ball, max)


def _maximum(a: Any, b: Any) -> Ball:
    """|max(x, y) - max(a, b)| is at most the larger of |x - a| and |y - b|; where one side is sure, its own radius."""
    a, b, unit = _pair(a, b)
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
    a, b, unit = _pair(a, b)
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


def _summed(value: Tensor, radius: Tensor, size: Tensor, count: int, unit: float) -> Ball:
    """A sum of `count` terms of total size `size`, in an order that is not known: growth of the chain."""
    depth = max(count - 1, 0) * unit
    grown = depth / (1 - depth) if depth < 1 else math.inf
    return Ball(value, known(value, radius + size * (grown + count * FP64_UNIT)), unit)


def _index_add(x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Ball:
    """A scatter that is not named by read.scatter: the worst order, an address taking as many terms as come to it."""
    ball, terms = ball_of(x), ball_of(_multiply(source, alpha) if alpha != 1 else source)
    unit, size = max(ball.unit, terms.unit), ball.bound.index_add(dim, index, terms.bound)
    count = 1 + int(torch.bincount(index).max()) if index.numel() else 1
    value = ball.value.index_add(dim, index, terms.value)
    return _summed(value, ball.radius.index_add(dim, index, terms.radius), size, count, unit)


def _index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Ball:
    ball, put = ball_of(x), ball_of(values)
    unit = max(ball.unit, put.unit)

    def placed(onto: Tensor, what: Tensor) -> Tensor:
        return onto.index_put(indices, what, accumulate)

    value, radius = placed(ball.value, put.value), placed(ball.radius, put.radius)
    if not accumulate:
        return Ball(value, radius, unit)
    count = placed(torch.ones_like(ball.value), torch.ones_like(put.value)).max() if value.numel() else 1
    return _summed(value, radius, placed(ball.bound, put.bound), int(count), unit)


def _sum(x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Ball:
    """A sum that is not named by read.total: the worst order in the accumulator's dtype."""
    ball = ball_of(x)
    axes = tuple(range(ball.ndim)) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    count = math.prod(ball.shape[a] for a in axes)
    value, radius = ball.value.sum(axes, keepdim), ball.radius.sum(axes, keepdim)
    return _summed(value, radius, ball.bound.sum(axes, keepdim), count, ball.unit)


def _mean(x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Ball:
    ball = ball_of(x)
    total = _sum(ball, dim, keepdim)
    count = ball.value.numel() // max(total.value.numel(), 1)
    return _divide(total, float(count))


def _cumsum(x: Any, dim: int, **_: Any) -> Ball:
    ball = ball_of(x)
    value, radius, size = ball.value.cumsum(dim), ball.radius.cumsum(dim), ball.bound.cumsum(dim)
    return _summed(value, radius, size, ball.shape[dim], ball.unit)


def _matmul(a: Any, b: Any) -> Ball:
    a, b, unit = _pair(a, b)
    return _product(torch.matmul, a, b, a.shape[-1], unit)


def _einsum(equation: str, *operands: Any) -> Ball:
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    if len(tensors) == 1:
        raise Refused("einsum of one Ball; use sum, transpose or diagonal")
    if len(tensors) > 2:
        raise Refused("einsum of more than two Balls; contract two at a time, as a kernel does")
    a, b, unit = _pair(*tensors)
    left, right = equation.replace(" ", "").split("->")
    sizes = dict(zip(left.replace(",", ""), (*a.shape, *b.shape), strict=True))
    count = math.prod(size for letter, size in sizes.items() if letter not in right)
    return _product(lambda x, y: torch.einsum(equation, x, y), a, b, count, unit)


def _product(contract: Callable[[Tensor, Tensor], Tensor], a: Ball, b: Ball, count: int, unit: float) -> Ball:
    value, size = contract(a.value, b.value), contract(a.bound, b.bound)
    radius = torch.zeros_like(size)
    if not b.sure:
        radius += contract(a.value.abs(), b.radius)
    if not a.sure:
        radius += contract(a.radius, b.bound)
    return _summed(value, radius, size, count + 1, unit)


def _compare(name: str, a: Any, b: Any) -> Tensor:
    """A comparison, where it is the same for every number of the balls."""
    a, b, _ = _pair(a, b)
    reach = a.radius + b.radius
    if bool((((a.value - b.value).abs() <= reach) & (reach > 0)).any()):
        raise Refused(
            "a comparison of Balls that overlap has no one answer; use maximum, clamp, relu, abs or sign, "
            "or compare tensors that no rounding has touched"
        )
    result: Tensor = getattr(torch, name)(a.value, b.value)
    return result


# Functions that compute, by torch's name for them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _subtract,
    "subtract": _subtract,
    "rsub": lambda a, b: _subtract(b, a),
    "mul": _multiply,
    "multiply": _multiply,
    "div": _divide,
    "divide": _divide,
    "true_divide": _divide,
    "truediv": _divide,
    "rtruediv": lambda a, b: _divide(b, a),
    "rdiv": lambda a, b: _divide(b, a),
    "neg": lambda x: -ball_of(x),
    "negative": lambda x: -ball_of(x),
    "abs": _abs,
    "sign": _sign,
    "pow": _power,
    "square": _square,
    "sqrt": _sqrt,
    "rsqrt": _rsqrt,
    "reciprocal": _reciprocal,
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log2": _log2,
    "log1p": _log1p,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "softplus": _softplus,
    "silu": _silu,
    "relu": _relu,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logaddexp": _logaddexp,
    "logsumexp": _logsumexp,
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
    "sum": _sum,
    "mean": _mean,
    "cumsum": _cumsum,
    "index_add": _index_add,
    "index_put": _index_put,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": _matmul,
    "einsum": _einsum,
    "eq": lambda a, b: _compare("eq", a, b),
    "ne": lambda a, b: _compare("ne", a, b),
    "lt": lambda a, b: _compare("lt", a, b),
    "le": lambda a, b: _compare("le", a, b),
    "gt": lambda a, b: _compare("gt", a, b),
    "ge": lambda a, b: _compare("ge", a, b),
    "cat": lambda tensors, dim=0: _join(torch.cat, tensors, dim),
    "concat": lambda tensors, dim=0: _join(torch.cat, tensors, dim),
    "stack": lambda tensors, dim=0: _join(torch.stack, tensors, dim),
    "new_zeros": lambda x, *size, **kwargs: ball_of(x).value.new_zeros(*size, **kwargs),
    "full_like": lambda x, value, **_: torch.full_like(ball_of(x).value, value),
    "zeros_like": lambda x, **_: torch.zeros_like(ball_of(x).value),
    "ones_like": lambda x, **_: torch.ones_like(ball_of(x).value),
    "numel": lambda x: ball_of(x).value.numel(),
    "size": lambda x, *dim: ball_of(x).value.size(*dim),
    "dim": lambda x: ball_of(x).ndim,
}
# Functions that move elements and compute nothing, called as methods on value and radius.
STRUCTURAL = frozenset(
    {
        "broadcast_to",
        "chunk",
        "clone",
        "contiguous",
        "detach",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "gather",
        "getitem",
        "index_select",
        "masked_select",
        "moveaxis",
        "movedim",
        "narrow",
        "permute",
        "ravel",
        "repeat",
        "repeat_interleave",
        "reshape",
        "roll",
        "select",
        "split",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "take_along_dim",
        "tile",
        "transpose",
        "tril",
        "triu",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
    }
)
