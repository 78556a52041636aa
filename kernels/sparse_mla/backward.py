"""The first half of sparse-MLA's backward in Triton: d_q, D = rowsum(d_out * out), and d_sink.

`sparse_mla_backward_q` has one program a query and block of heads, so d_q has one writer an address. It leaves D for
the other half (`backward_kv`) and, where BOUND asks for it, bounds what each KV row's contributions can add up to.
`sparse_mla_fold_sink` adds d_sink over the queries in ascending order.

The halves are apart, since d_q's accumulator and a tile of d_kv do not fit into a program's registers together. That
computes two of seven matrix products twice.
"""

from __future__ import annotations

import triton.language as tl

from kernels.sparse_mla.common import add_sizes, for_any, length_of, live_rows, sink_of, tile, with_sink

# Products and sums over a block's 64 heads in FP32 stay within 2^-24 * 66 of exact ones, in any order.
ROUNDING = tl.constexpr(1.0 + 2.0**-16)


@for_any
def sparse_mla_backward_q(
    q, kv, topk_idxs, topk_length, sink, out, lse, d_out, d_q, delta, buckets,
    S_k, H, D, D_V, topk, lengths, sinks, softmax_scale,
    q_t, q_h, q_d, kv_s, kv_d, idxs_t, idxs_j, length_t, sink_h, out_t, out_h, out_d, lse_t, lse_h,
    d_out_t, d_out_h, d_out_d,
    HEADS: tl.constexpr, SLOTS: tl.constexpr, VALUE: tl.constexpr, TAIL: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(H, HEADS)
    t = (tl.program_id(0) // blocks).to(tl.int64)
    h = (tl.program_id(0) % blocks) * HEADS + tl.arange(0, HEADS)
    v = tl.arange(0, VALUE)
    head, value = h < H, v < D_V
    q_value = tile(q + t * q_t, h, v, q_h, q_d, head[:, None] & value[None, :])
    cotangent = tile(d_out + t * d_out_t, h, v, d_out_h, d_out_d, head[:, None] & value[None, :])
    saved = tile(out + t * out_t, h, v, out_h, out_d, head[:, None] & value[None, :])
    dots = tl.sum(cotangent.to(tl.float32) * saved.to(tl.float32), axis=1)  # [HEADS]
    total = tl.load(lse + t * lse_t + h * lse_h, mask=head, other=0.0)
    total = with_sink(total, sink_of(sink, h, sinks, sink_h))
    length = length_of(topk_length, t, lengths, topk, length_t)
    if BOUND:
        q_size = tl.max(tl.abs(q_value.to(tl.float32)), axis=1)
        cotangent_size = tl.max(tl.abs(cotangent.to(tl.float32)), axis=1)
    d_value = tl.zeros([HEADS, VALUE], tl.float32)
    if TAIL > 0:
        e = D_V + tl.arange(0, TAIL)
        tail = e < D
        q_tail = tile(q + t * q_t, h, e, q_h, q_d, head[:, None] & tail[None, :])
        d_tail = tl.zeros([HEADS, TAIL], tl.float32)
        if BOUND:
            q_size = tl.maximum(q_size, tl.max(tl.abs(q_tail.to(tl.float32)), axis=1))
    any_live = tl.zeros([SLOTS], tl.int32)
    for start in range(0, topk, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        row, live = live_rows(topk_idxs, t, slots, length, topk, S_k, idxs_t, idxs_j)
        any_live = any_live | live.to(tl.int32)
        kv_value = tile(kv, row, v, kv_s, kv_d, live[:, None] & value[None, :])
        score = tl.dot(q_value, tl.trans(kv_value), input_precision="ieee")  # [HEADS, SLOTS]
        if TAIL > 0:
            kv_tail = tile(kv, row, e, kv_s, kv_d, live[:, None] & tail[None, :])
            score = tl.dot(q_tail, tl.trans(kv_tail), score, input_precision="ieee")
        d_p = tl.dot(cotangent, tl.trans(kv_value), input_precision="ieee")
        both = head[:, None] & live[None, :]
        p = tl.where(both, tl.exp(score * softmax_scale - total[:, None]), 0.0)
        d_s = tl.where(both, p * (d_p - dots[:, None]) * softmax_scale, 0.0).to(q.dtype.element_ty)
        if BOUND:
            d_s_size, p_size = tl.abs(d_s.to(tl.float32)), p.to(q.dtype.element_ty).to(tl.float32)
            sizes = tl.where(both, d_s_size * q_size[:, None] + p_size * cotangent_size[:, None], 0.0)
            add_sizes(buckets, row, tl.sum(sizes, axis=0) * ROUNDING, live)
        d_value = tl.dot(d_s, kv_value, d_value, input_precision="ieee")
        if TAIL > 0:
            d_tail = tl.dot(d_s, kv_tail, d_tail, input_precision="ieee")
    d_q_at = d_q + (t * H + h[:, None]) * D
    tl.store(d_q_at + v[None, :], d_value.to(d_q.dtype.element_ty), mask=head[:, None] & value[None, :])
    if TAIL > 0:
        tl.store(d_q_at + e[None, :], d_tail.to(d_q.dtype.element_ty), mask=head[:, None] & tail[None, :])
    # What a row without a live slot holds in out and d_out must not reach d_sink.
    tl.store(delta + t * H + h, tl.where(tl.max(any_live, axis=0) > 0, dots, 0.0), mask=head)


@for_any
def sparse_mla_fold_sink(
    lse, sink, delta, d_sink, S_q, H, lse_t, lse_h, sink_h, QUERIES: tl.constexpr, HEADS: tl.constexpr
):
    h = tl.program_id(0) * HEADS + tl.arange(0, HEADS)
    head = h < H
    weight = tl.load(sink + h * sink_h, mask=head, other=0.0)
    total = tl.zeros([QUERIES, HEADS], tl.float32)
    for start in range(0, S_q, QUERIES):
        t = (start + tl.arange(0, QUERIES)).to(tl.int64)
        inside = (t < S_q)[:, None] & head[None, :]
        logit = tl.load(lse + t[:, None] * lse_t + h[None, :] * lse_h, mask=inside, other=float("inf"))
        dots = tl.load(delta + t[:, None] * H + h[None, :], mask=inside, other=0.0)
        above = logit - weight[None, :]
        # The sink's share is 1 / (1 + exp(above)). Half of the power at a time, since D may be large where the share is
        # below FP32's range.
        half = tl.exp(-0.5 * tl.abs(above))
        part = tl.where(above > 0.0, half, 1.0)
        share = dots * part / (1.0 + half * half) * part
        # D is 0 where a row has no live slot; its lse, whatever it holds, must not enter.
        total += tl.where(dots == 0.0, 0.0, share)
    tl.store(d_sink + h, -tl.sum(total, axis=0), mask=head)
