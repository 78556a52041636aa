"""Sums in Triton whose order is written out: balanced trees of neighbours, whatever the layout, compiler or device."""

from __future__ import annotations

import triton
import triton.language as tl

# Levels of a balanced tree; no tensor in Triton has more than 2^20 elements.
_LEVELS = tl.constexpr(20)


@triton.jit
def row_sums(x):
    """Sums [R] of the rows of x [R, C], C a power of two: neighbours first, then sums of neighbours."""
    for _ in tl.static_range(_LEVELS):
        if x.shape[1] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]), axis=2)
    return tl.reshape(x, [x.shape[0]])


@triton.jit
def column_sums(x):
    """Sums [C] of the columns of x [R, C], R a power of two, by the same tree."""
    for _ in tl.static_range(_LEVELS):
        if x.shape[0] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0] // 2, 2, x.shape[1]]), axis=1)
    return tl.reshape(x, [x.shape[1]])


@triton.jit
def reversed_column_sums(x):
    """`column_sums` of rows that come in bit-reversed order: halves first, which mostly one thread has by itself."""
    for _ in tl.static_range(_LEVELS):
        if x.shape[0] > 1:
            x = tl.sum(tl.reshape(x, [2, x.shape[0] // 2, x.shape[1]]), axis=0)
    return tl.reshape(x, [x.shape[1]])


@triton.jit
def reversed_bits(SIZE: tl.constexpr):
    """The integers below SIZE, a power of two, in bit-reversed order: 0, SIZE / 2, SIZE / 4, 3 SIZE / 4, ..."""
    left = tl.arange(0, SIZE)
    found = left * 0
    for level in tl.static_range(_LEVELS):
        if 2**level < SIZE:
            found = found * 2 + left % 2
            left = left // 2
    return found
