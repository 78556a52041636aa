"""The second half of sparse-MLA's backward in Triton: each slot's row of d_kv, and what is done with it.

One program a query and block of heads computes P and dS anew, then, for a block of slots and a chunk of features at a
time, the rows of d_kv summed over its heads. MODE says where they go: into FP32 sums by atomics, into a buffer of their
own, or into integer sums by atomics, which no order can change.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.sparse_mla.common import (
    add_sizes,
    for_any,
    length_of,
    live_rows,
    power_of_two,
    sink_of,
    tile,
    with_sink,
)

# Where a slot's row goes: FP32 atomics; its own place in a buffer; integers.
ATOMIC, STAGED, WIDE = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
# The exponent of a KV row that has no scale, since a contribution is not finite.
NO_SCALE = tl.constexpr(1 << 20)


@for_any
def sparse_mla_backward_kv(
    q, kv, topk_idxs, topk_length, sink, lse, d_out, delta, sums, buckets, exponents, retries,
    first, S_k, H, D, D_V, topk, lengths, sinks, softmax_scale,
    q_t, q_h, q_d, kv_s, kv_d, idxs_t, idxs_j, length_t, sink_h, lse_t, lse_h, d_out_t, d_out_h, d_out_d,
    HEADS: tl.constexpr, SLOTS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, VALUES: tl.constexpr,
    MODE: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    # Nested, since `and` would load the flag, which only a second pass has, before it looks at AGAIN.
    if AGAIN:  # noqa: SIM102
        if tl.load(retries + S_k) != 1:
            return
    blocks = tl.cdiv(H, HEADS)
    t = first + (tl.program_id(0) // blocks).to(tl.int64)
    h = (tl.program_id(0) % blocks) * HEADS + tl.arange(0, HEADS)
    head = h < H
    # Tuples of tiles, which grow while the loop is unrolled; a tile of all features at once has no slices.
    qs, cotangents = (), ()
    for c in tl.static_range(CHUNKS):
        d = c * WIDTH + tl.arange(0, WIDTH)
        qs += (tile(q + t * q_t, h, d, q_h, q_d, head[:, None] & (d < D)[None, :]),)  # type: ignore[assignment]
        if c < VALUES:
            inside = head[:, None] & (d < D_V)[None, :]
            cotangents += (tile(d_out + t * d_out_t, h, d, d_out_h, d_out_d, inside),)  # type: ignore[assignment]
    dots = tl.load(delta + t * H + h, mask=head, other=0.0)
    total = tl.load(lse + t * lse_t + h * lse_h, mask=head, other=0.0)
    total = with_sink(total, sink_of(sink, h, sinks, sink_h))
    length = length_of(topk_length, t, lengths, topk, length_t)
    for start in range(0, topk, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        row, live = live_rows(topk_idxs, t, slots, length, topk, S_k, idxs_t, idxs_j)
        if AGAIN:
            live = live & (tl.load(retries + row, mask=live, other=0) == 1)
            if tl.max(live.to(tl.int32), axis=0) > 0:
                add_block(
                    kv, sums, buckets, exponents, qs, cotangents, dots, total, head, slots, row, live,
                    D, topk, softmax_scale, kv_s, kv_d, WIDTH, CHUNKS, VALUES, MODE, AGAIN,
                )  # fmt: skip
        else:
            add_block(
                kv, sums, buckets, exponents, qs, cotangents, dots, total, head, slots, row, live,
                D, topk, softmax_scale, kv_s, kv_d, WIDTH, CHUNKS, VALUES, MODE, AGAIN,
            )  # fmt: skip


@triton.jit
def add_block(
    kv, sums, buckets, exponents, qs, cotangents, dots, total, head, slots, row, live,
    D, topk, softmax_scale, kv_s, kv_d,
    WIDTH: tl.constexpr, CHUNKS: tl.constexpr, VALUES: tl.constexpr, MODE: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """Compute the rows of d_kv of one block of slots and send them where MODE says."""
    score = tl.zeros([head.shape[0], slots.shape[0]], tl.float32)
    d_p = tl.zeros([head.shape[0], slots.shape[0]], tl.float32)
    for c in tl.static_range(CHUNKS):
        d = c * WIDTH + tl.arange(0, WIDTH)
        rows = tl.trans(tile(kv, row, d, kv_s, kv_d, live[:, None] & (d < D)[None, :]))
        score = tl.dot(qs[c], rows, score, input_precision="ieee")
        if c < VALUES:
            d_p = tl.dot(cotangents[c], rows, d_p, input_precision="ieee")
    both = head[:, None] & live[None, :]
    p = tl.where(both, tl.exp(score * softmax_scale - total[:, None]), 0.0)
    d_s = tl.where(both, p * (d_p - dots[:, None]) * softmax_scale, 0.0).to(kv.dtype.element_ty)
    p = p.to(kv.dtype.element_ty)
    if MODE == WIDE:
        exponent = tl.load(exponents + row, mask=live, other=0)
        live = live & (exponent < NO_SCALE)
        exponent = tl.where(live, exponent, 0)
        largest = tl.zeros([slots.shape[0], WIDTH], tl.float32)
    for c in tl.static_range(CHUNKS):
        d = c * WIDTH + tl.arange(0, WIDTH)
        added = tl.dot(tl.trans(qs[c]), d_s, input_precision="ieee")  # [WIDTH, SLOTS]: a side of 64 or more first
        if c < VALUES:
            added = tl.dot(tl.trans(cotangents[c]), p, added, input_precision="ieee")
        added = tl.trans(added)
        mask = live[:, None] & (d < D)[None, :]
        if MODE == ATOMIC:
            tl.atomic_add(sums + row[:, None] * D + d[None, :], added, mask=mask, sem="relaxed")
        elif MODE == STAGED:
            place = tl.program_id(0).to(tl.int64) * topk + slots
            tl.store(sums + place[:, None] * D + d[None, :], added, mask=mask)
        else:
            tl.atomic_add(sums + row[:, None] * D + d[None, :], wide(added, exponent), mask=mask, sem="relaxed")
        if MODE == WIDE and not AGAIN:
            largest = tl.maximum(largest, tl.where(mask, tl.abs(added), 0.0))
    if MODE == WIDE and not AGAIN:
        add_sizes(buckets, row, tl.max(largest, axis=1), live)


@triton.jit
def wide(x, exponent):
    """x * 2^exponent to the nearest int64; 0 where it is beyond 2^62, which the proof then refuses."""
    x = x.to(tl.float64) * power_of_two(exponent)[:, None]
    # Adding 1.5 * 2^52 leaves no bit below 1. From 2^51 on that would lose more, and cutting x off loses at most 1/2.
    whole = (x + 6755399441055744.0) - 6755399441055744.0
    whole = tl.where(tl.abs(x) < 2251799813685248.0, whole, x)
    return tl.where(tl.abs(x) <= 4611686018427387904.0, whole, 0.0).to(tl.int64)
