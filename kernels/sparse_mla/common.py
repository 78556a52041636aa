"""What the sparse-MLA kernels share: which slots are live, the softmax's denominator, sizes summed by integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

# Sizes (non-negative FP32 numbers) are summed as integers, which no order can change. One integer cannot span FP32's
# range, so a row has BUCKETS of them, one for each 32 binary orders of magnitude: a size in [2^(32k-127), 2^(32k-95))
# is counted in units of 2^(32k-129), rounded up, as 4 to 2^34 of them. 2^27 addends then stay below bit 62, which
# marks a row with an addend that is not finite.
BUCKETS = tl.constexpr(8)
UNIT = tl.constexpr(129)
NOT_FINITE = tl.constexpr(1 << 62)


# Triton compiles anew for a size or stride of 1, for one that 16 divides and for an address that it divides. That pays
# for q, kv, out and d_out, where it decides how wide a load is. These it would only multiply compilations by.
SIZES = ("S_q", "S_k", "H", "topk", "first", "lengths", "sinks", "entries", "blocks", "words", "finer")
STRIDES = ("idxs_t", "idxs_j", "length_t", "sink_h", "lse_t", "lse_h")
ADDRESSES = ("topk_idxs", "topk_length", "sink", "lse", "delta", "buckets", "exponents", "retries")


def for_any(kernel: Callable[..., Any]) -> Any:
    """triton.jit, compiled once for all values of SIZES and STRIDES and all ADDRESSES that the kernel has."""
    return triton.jit(kernel, do_not_specialize=(*SIZES, *STRIDES), do_not_specialize_on_alignment=ADDRESSES)


@triton.jit
def length_of(topk_length, t, lengths, topk, length_t):
    """How many slots of query t count, from the first on: all, where the problem has no lengths (`lengths` of 0)."""
    return tl.load(topk_length + t * length_t, mask=t < lengths, other=topk)


@triton.jit
def sink_of(sink, h, sinks, sink_h):
    """The sink of each head: -inf, which is none to the bit, where the problem has no sinks (`sinks` of 0)."""
    return tl.load(sink + h * sink_h, mask=h < sinks, other=float("-inf"))


@triton.jit
def live_rows(topk_idxs, t, slots, length, topk, S_k, idxs_t, idxs_j):
    """The KV row of each slot, as int64 (0 where the slot is dead), and whether it is live."""
    inside = (slots < topk) & (slots < length)
    row = tl.load(topk_idxs + t * idxs_t + slots * idxs_j, mask=inside, other=-1)
    live = inside & (row >= 0) & (row < S_k)
    return tl.where(live, row, 0).to(tl.int64), live


@triton.jit
def tile(base, rows, columns, row_stride, column_stride, mask):
    """The elements at `rows` x `columns`, 0 where masked off: what must not matter never enters."""
    return tl.load(base + rows[:, None] * row_stride + columns[None, :] * column_stride, mask=mask, other=0.0)


@triton.jit
def with_sink(lse, sink):
    """ln(exp(lse) + exp(sink)) for any two of -inf, finite, +inf."""
    top = tl.maximum(lse, sink)
    infinite = (top == float("inf")) | (top == float("-inf"))
    shift = tl.where(infinite, 0.0, top)
    return tl.where(infinite, top, shift + tl.log(tl.exp(lse - shift) + tl.exp(sink - shift)))


@triton.jit
def exponent_above(x):
    """The least e with |x| < 2^e, for FP64; -1022 at 0."""
    return ((x.to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32) - 1022


@triton.jit
def power_of_two(exponent):
    """2^exponent as FP64, for -1022 <= exponent <= 1023."""
    return ((exponent.to(tl.int64) + 1023) << 52).to(tl.float64, bitcast=True)


@triton.jit
def add_sizes(buckets, row, size, mask):
    """Add each `size` (FP32, not negative) to the sum of its `row`."""
    exponent = (size.to(tl.int32, bitcast=True) >> 23) & 255
    finite = exponent < 255
    bucket = exponent >> 5
    # Rounded up, so that the sum is a bound.
    whole = (tl.where(finite, size, 0.0).to(tl.float64) * power_of_two(-32 * bucket + UNIT)).to(tl.int64) + 1
    tl.atomic_add(buckets + row * BUCKETS + bucket, whole, mask=mask & finite & (size > 0), sem="relaxed")
    marked = tl.full(size.shape, NOT_FINITE, tl.int64)
    tl.atomic_or(buckets + row * BUCKETS + (BUCKETS - 1), marked, mask=mask & (exponent == 255), sem="relaxed")


@triton.jit
def summed_sizes(buckets, rows, mask):
    """The sum of sizes of each row, as FP64 and never too small, and whether all of them were finite."""
    bucket = tl.arange(0, BUCKETS)
    held = tl.load(buckets + rows[:, None] * BUCKETS + bucket[None, :], mask=mask[:, None], other=0)
    marked = (held & NOT_FINITE) != 0
    whole = (held & (NOT_FINITE - 1)).to(tl.float64)
    total = tl.sum(whole * power_of_two(32 * bucket - UNIT)[None, :], axis=1)
    return total, tl.sum(marked.to(tl.int32), axis=1) == 0
