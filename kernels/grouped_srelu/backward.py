"""Grouped dSReLU backward in Triton: one fused GEMM and epilogue, and two ways to add up d_prob and d_bias.

A program takes 128 rows of one expert and 256 features. It makes R = alpha (d_out w2^T) of its tile, the activation's
gradient, d_c, and the tile's shares of d_prob (a row's sum over its features) and of d_bias (a feature's sum over its
rows). Programs of other N tiles share the rows of d_prob, those of other row tiles of the same expert the features of
d_bias. Either they add to the sums by atomics, in the order of arrival, or each has a slot, and the slots are added in
ascending order by the second GEMM (d_prob) and by a fold (d_bias).

Which rows a program has is found on the device, from `tokens` and `offsets`, so nothing waits for the host. Rows that
are no tokens are never read: whatever they hold does not matter. A tile's shares are balanced trees of neighbours,
written out, so that their order depends on no layout that a compiler chooses.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.grouped_srelu.tiles import ALIGNED, LANES
from kernels.trees import column_sums, row_sums

# What N and H, and addresses in bytes, are multiples of where a call is dense.
_LANES, _ALIGNED = tl.constexpr(LANES), tl.constexpr(ALIGNED)
# One compiled kernel for all sizes, strides and addresses. Where they were constants or known to be multiples, every
# Case brought a kernel of its own to compile. Dense calls say so with one constant, and have wide loads.
_INPUTS = ("c", "prob", "alpha", "w1", "w2", "d_out", "tokens", "offsets")
_SIZES = ("N", "H", "E", "TILES")
_STRIDES = ("c_m", "c_n", "prob_m", "alpha_e", "w2_e", "w2_n", "w2_h", "d_out_m", "d_out_h", "tokens_e", "offsets_e")
_STRIDES_OF_W1 = ("w1_e", "w1_n", "w1_h", "tokens_e", "offsets_e")


@triton.jit
def _find(tile, tokens, offsets, tokens_e, offsets_e, E, EXPERTS: tl.constexpr, ROWS: tl.constexpr):
    """The expert of a row tile (E or more: none), its first row, the row after its last, the expert's first tile."""
    e = tl.arange(0, EXPERTS)
    count = tl.load(tokens + e * tokens_e, mask=e < E, other=0)
    tiles = (count + ROWS - 1) // ROWS
    stops = tl.cumsum(tiles, 0)
    expert = tl.sum((stops <= tile).to(tl.int32), 0)
    before = tl.sum(tl.where(e < expert, tiles, 0), 0)
    mine = tl.sum(tl.where(e == expert, count, 0), 0)
    ends = tl.load(offsets + e * offsets_e, mask=e < E, other=0)
    start = tl.sum(tl.where(e == expert - 1, ends, 0), 0)
    first = start + (tile - before) * ROWS
    return expert, first, start + mine, before


@triton.jit
def _tanh(x):
    """tanh of x >= 0 to a few ulps: a continued fraction near zero, where 1 - exp(-2x) cancels."""
    decay = tl.exp(-2.0 * x)
    square = x * x
    near = x * (10395.0 + square * (1260.0 + square * 21.0))
    near = near / (10395.0 + square * (4725.0 + square * (210.0 + square)))
    return tl.where(x < 0.625, near, (1.0 - decay) / (1.0 + decay))


@triton.jit(do_not_specialize=[*_INPUTS, *_SIZES, *_STRIDES])
def grouped_srelu_backward(
    c, prob, alpha, w2, d_out, tokens, offsets, d_c, d_prob, d_bias, N, H, E, TILES, clamp,
    c_m, c_n, prob_m, alpha_e, w2_e, w2_n, w2_h, d_out_m, d_out_h, tokens_e, offsets_e,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, DEPTH: tl.constexpr, DENSE: tl.constexpr,
    PROB: tl.constexpr, D_PROB: tl.constexpr, D_BIAS: tl.constexpr, CLAMP: tl.constexpr, ATOMIC: tl.constexpr,
    FAR: tl.constexpr,
):  # fmt: skip
    if DENSE:
        N, H = N // _LANES * _LANES, H // _LANES * _LANES
        c_m, c_n, w2_n, w2_h, d_out_m, d_out_h = N, 1, H, 1, H, 1
    tile, part = tl.program_id(0), tl.program_id(1)
    expert, first, last, _ = _find(tile, tokens, offsets, tokens_e, offsets_e, E, EXPERTS, ROWS)
    if expert < E:
        # Where the tile starts takes 64 bits; within a tile 32 do, at half the registers, unless rows lie FAR apart.
        top, side = first.to(tl.int64), (part * FEATURES).to(tl.int64)
        m, n = tl.arange(0, ROWS), tl.arange(0, FEATURES)
        if FAR:
            m = m.to(tl.int64)
        real, inside = first + m < last, side + n < N
        both = real[:, None] & inside[None, :]
        dot = tl.zeros([ROWS, FEATURES], tl.float32)
        gradient = d_out + top * d_out_m
        weight = w2 + expert.to(tl.int64) * w2_e + side * w2_n
        corner = c + top * c_m + side * c_n
        if DENSE:
            gradient = tl.multiple_of(gradient, _ALIGNED)
            weight = tl.multiple_of(weight, _ALIGNED)
            corner = tl.multiple_of(corner, _ALIGNED)
        for start in range(0, H, DEPTH):
            h = start + tl.arange(0, DEPTH)
            left = gradient + (m[:, None] * d_out_m + h[None, :] * d_out_h)
            right = weight + (h[:, None] * w2_h + n[None, :] * w2_n)
            a = tl.load(left, mask=real[:, None] & (h[None, :] < H), other=0.0)
            b = tl.load(right, mask=(h[:, None] < H) & inside[None, :], other=0.0)
            dot = tl.dot(a, b, dot, input_precision="ieee")
        r = dot * tl.load(alpha + expert * alpha_e)
        at = corner + (m[:, None] * c_m + n[None, :] * c_n)
        value = tl.load(at, mask=both, other=0.0).to(tl.float32)
        kept = tl.maximum(value, 0.0)
        if CLAMP:
            t = _tanh(kept / clamp)
            act = (t * clamp) * (t * clamp)
            slope = (2.0 * clamp) * (t - t * t * t)
        else:
            act = kept * kept
            slope = 2.0 * kept
        g = slope * r
        if PROB:
            g = g * tl.load(prob + top * prob_m + m * prob_m, mask=real, other=0.0)[:, None]
        tl.store(d_c + top * N + side + (m[:, None] * N + n[None, :]), g.to(d_c.dtype.element_ty), mask=both)
        if D_PROB:
            share = row_sums(act * r)
            if ATOMIC:
                tl.atomic_add(d_prob + top + m, share, mask=real)
            else:
                tl.store(d_prob + top * TILES + part + m * TILES, share, mask=real)
        if D_BIAS:
            share = column_sums(g)
            if ATOMIC:
                tl.atomic_add(d_bias + expert.to(tl.int64) * N + side + n, share, mask=inside)
            else:
                tl.store(d_bias + tile.to(tl.int64) * N + side + n, share, mask=inside)


@triton.jit(do_not_specialize=[*_INPUTS, *_SIZES, *_STRIDES_OF_W1])
def grouped_srelu_input_gradient(
    d_c, w1, tokens, offsets, d_x, prob_slots, d_prob, N, H, E, TILES, w1_e, w1_n, w1_h, tokens_e, offsets_e,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, HIDDEN: tl.constexpr, DEPTH: tl.constexpr, DENSE: tl.constexpr,
    SLOTS: tl.constexpr,
):  # fmt: skip
    if DENSE:
        N, H = N // _LANES * _LANES, H // _LANES * _LANES
        w1_n, w1_h = H, 1
    tile, part = tl.program_id(0), tl.program_id(1)
    expert, first, last, _ = _find(tile, tokens, offsets, tokens_e, offsets_e, E, EXPERTS, ROWS)
    if expert < E:
        top, side = first.to(tl.int64), (part * HIDDEN).to(tl.int64)
        m, h = tl.arange(0, ROWS), tl.arange(0, HIDDEN)
        real, inside = first + m < last, side + h < H
        dot = tl.zeros([ROWS, HIDDEN], tl.float32)
        stored = d_c + top * N
        weight = w1 + expert.to(tl.int64) * w1_e + side * w1_h
        if DENSE:
            weight = tl.multiple_of(weight, _ALIGNED)
        for start in range(0, N, DEPTH):
            n = start + tl.arange(0, DEPTH)
            a = tl.load(stored + (m[:, None] * N + n[None, :]), mask=real[:, None] & (n[None, :] < N), other=0.0)
            right = weight + (n[:, None] * w1_n + h[None, :] * w1_h)
            b = tl.load(right, mask=(n[:, None] < N) & inside[None, :], other=0.0)
            dot = tl.dot(a, b, dot, input_precision="ieee")
        at = d_x + top * H + side + (m[:, None] * H + h[None, :])
        tl.store(at, dot.to(d_x.dtype.element_ty), mask=real[:, None] & inside[None, :])
        if SLOTS:  # noqa: SIM102 - the outer one is known when the kernel is compiled
            if part == 0:
                total = tl.zeros([ROWS], tl.float32)
                slot = prob_slots + top * TILES + m * TILES
                for _ in range(TILES):
                    total += tl.load(slot, mask=real, other=0.0)
                    slot += 1
                sums = d_prob + top + m
                tl.store(sums, tl.load(sums, mask=real, other=0.0) + total, mask=real)


@triton.jit(do_not_specialize=["tokens", "N", "E", "onto_e", "onto_n", "tokens_e"])
def grouped_srelu_fold_bias(
    slots, onto, tokens, d_bias, N, E, onto_e, onto_n, tokens_e,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, FOLDED: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0)
    n = tl.program_id(1) * FOLDED + tl.arange(0, FOLDED)
    inside = n < N
    e = tl.arange(0, EXPERTS)
    tiles = (tl.load(tokens + e * tokens_e, mask=e < E, other=0) + ROWS - 1) // ROWS
    first = tl.sum(tl.where(e < expert, tiles, 0), 0)
    last = tl.sum(tl.where(e <= expert, tiles, 0), 0)
    total = tl.zeros([FOLDED], tl.float32)
    # Only its own expert's slots are read, so nothing of another expert, finite or not, can come in.
    slot = slots + first.to(tl.int64) * N + n
    for _ in range(first, last):
        total += tl.load(slot, mask=inside, other=0.0)
        slot += N
    start = tl.load(onto + expert.to(tl.int64) * onto_e + n * onto_n, mask=inside, other=0.0)
    tl.store(d_bias + expert.to(tl.int64) * N + n, start + total, mask=inside)
