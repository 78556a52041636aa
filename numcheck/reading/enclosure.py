"""Enclosures: the torch functions that a Ball takes, those of single elements and those that add up.

A sum that no reading names is taken in the worst order of the accumulator's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from numcheck.errors import Refused
from numcheck.reading.ball import FP64_UNIT, Ball
from numcheck.reading.elementary import (
    ELEMENTARY,
    add,
    ball_of,
    divide,
    exp,
    join,
    known,
    log,
    multiply,
    pair,
    structural,
    subtract,
)


def _softmax(x: Any, dim: int = -1, *_: Any, **__: Any) -> Ball:
    """exp(x - m) / sum: m may be any number, so it is taken as the value's own maximum, exactly."""
    ball = ball_of(x)
    powers = exp(subtract(ball, _top(ball, dim)))
    return divide(powers, _sum(powers, dim, keepdim=True))


def _logsumexp(x: Any, dim: Any = -1, keepdim: bool = False) -> Ball:
    ball = ball_of(x)
    top = _top(ball, dim)
    result = add(log(_sum(exp(subtract(ball, top)), dim, keepdim=True)), top)
    return result if keepdim else structural(lambda t: t.squeeze(dim), result)


def _top(ball: Ball, dim: Any) -> Tensor:
    """The largest value along `dim`; 0 where none is finite, so that a row of -inf gives zeros and no NaN."""
    top = ball.value.amax(dim, keepdim=True)
    return torch.where(torch.isfinite(top), top, 0.0)


def _log_softmax(x: Any, dim: int = -1, *_: Any, **__: Any) -> Ball:
    return subtract(x, _logsumexp(x, dim, keepdim=True))


def _logaddexp(a: Any, b: Any) -> Ball:
    a, b, _ = pair(a, b)
    shape = torch.broadcast_shapes(a.shape, b.shape)  # type: ignore[no-untyped-call]
    return _logsumexp(join(torch.stack, [a.expand(shape), b.expand(shape)]), 0)


def _summed(value: Tensor, radius: Tensor, size: Tensor, count: int, unit: float) -> Ball:
    """A sum of `count` terms of total size `size`, in an order that is not known: growth of the chain."""
    depth = max(count - 1, 0) * unit
    grown = depth / (1 - depth) if depth < 1 else math.inf
    return Ball(value, known(value, radius + size * (grown + count * FP64_UNIT)), unit)


def _index_add(x: Any, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Ball:
    """A scatter that is not named by read.scatter: the worst order, an address taking as many terms as come to it."""
    ball, terms = ball_of(x), ball_of(multiply(source, alpha) if alpha != 1 else source)
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
    return divide(total, float(count))


def _cumsum(x: Any, dim: int, **_: Any) -> Ball:
    ball = ball_of(x)
    value, radius, size = ball.value.cumsum(dim), ball.radius.cumsum(dim), ball.bound.cumsum(dim)
    return _summed(value, radius, size, ball.shape[dim], ball.unit)


def _matmul(a: Any, b: Any) -> Ball:
    a, b, unit = pair(a, b)
    return _product(torch.matmul, a, b, a.shape[-1], unit)


def _einsum(equation: str, *operands: Any) -> Ball:
    tensors = operands[0] if len(operands) == 1 and isinstance(operands[0], tuple | list) else operands
    if len(tensors) == 1:
        raise Refused("einsum of one Ball; use sum, transpose or diagonal")
    if len(tensors) > 2:
        raise Refused("einsum of more than two Balls; contract two at a time, as a kernel does")
    a, b, unit = pair(*tensors)
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


# Functions that compute, by torch's name for them.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **ELEMENTARY,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "logaddexp": _logaddexp,
    "logsumexp": _logsumexp,
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
