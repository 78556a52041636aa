"""Sparse MLA's forward in Triton: one program a query and block of heads, softmax in FP32.

Two walks over the slots: the first finds each head's maximum and sum, the second computes P, rounds it to the data's
dtype and multiplies it by V. One walk with a running maximum would round exp(S - maximum so far), so that the bits of
out would depend on where a block ends; P itself rounds the same way wherever its slot stands.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor

from kernels.sparse_mla.arguments import forward_sizes, optional
from kernels.sparse_mla.common import for_any, length_of, live_rows, sink_of, tile
from kernels.sparse_mla.tiles import blocks_of, tiles_of


@for_any
def sparse_mla_forward(
    q, kv, topk_idxs, topk_length, sink, out, lse, S_k, H, D, D_V, topk, lengths, sinks, softmax_scale,
    q_t, q_h, q_d, kv_s, kv_d, idxs_t, idxs_j, length_t, sink_h,
    HEADS: tl.constexpr, SLOTS: tl.constexpr, VALUE: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(H, HEADS)
    t = (tl.program_id(0) // blocks).to(tl.int64)
    h = (tl.program_id(0) % blocks) * HEADS + tl.arange(0, HEADS)
    v = tl.arange(0, VALUE)
    head, value = h < H, v < D_V
    q_value = tile(q + t * q_t, h, v, q_h, q_d, head[:, None] & value[None, :])
    if TAIL > 0:
        e = D_V + tl.arange(0, TAIL)
        tail = e < D
        q_tail = tile(q + t * q_t, h, e, q_h, q_d, head[:, None] & tail[None, :])
    length = length_of(topk_length, t, lengths, topk, length_t)
    top = tl.full([HEADS], float("-inf"), tl.float32)
    weight = tl.zeros([HEADS], tl.float32)
    for start in range(0, topk, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        row, live = live_rows(topk_idxs, t, slots, length, topk, S_k, idxs_t, idxs_j)
        kv_value = tile(kv, row, v, kv_s, kv_d, live[:, None] & value[None, :])
        score = tl.dot(q_value, tl.trans(kv_value), input_precision="ieee")  # [HEADS, SLOTS]
        if TAIL > 0:
            kv_tail = tile(kv, row, e, kv_s, kv_d, live[:, None] & tail[None, :])
            score = tl.dot(q_tail, tl.trans(kv_tail), score, input_precision="ieee")
        score = tl.where(live[None, :], score * softmax_scale, float("-inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weight = weight * tl.exp(top - shift) + tl.sum(tl.exp(score - shift[:, None]), axis=1)
        top = higher
    # A row without a live slot has weight 0, and lse +inf as the kernels of this problem report it.
    at = t * H + h
    tl.store(lse + at, tl.where(weight == 0.0, float("inf"), top + tl.log(weight)), mask=head)
    shift = tl.where(top == float("-inf"), 0.0, top)
    virtual = sink_of(sink, h, sinks, sink_h)
    above = (virtual > shift) & (virtual < float("inf"))
    higher = tl.where(above, virtual, shift)
    weight = weight * tl.exp(shift - higher) + tl.exp(virtual - higher)
    shift = higher
    total = tl.zeros([HEADS, VALUE], tl.float32)
    for start in range(0, topk, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        row, live = live_rows(topk_idxs, t, slots, length, topk, S_k, idxs_t, idxs_j)
        kv_value = tile(kv, row, v, kv_s, kv_d, live[:, None] & value[None, :])
        score = tl.dot(q_value, tl.trans(kv_value), input_precision="ieee")
        if TAIL > 0:
            kv_tail = tile(kv, row, e, kv_s, kv_d, live[:, None] & tail[None, :])
            score = tl.dot(q_tail, tl.trans(kv_tail), score, input_precision="ieee")
        p = tl.exp(score * softmax_scale - shift[:, None]) / weight[:, None]
        p = tl.where(head[:, None] & live[None, :], p, 0.0)
        total = tl.dot(p.to(kv.dtype.element_ty), kv_value, total, input_precision="ieee")
    out_at = out + at[:, None] * D_V + v[None, :]
    tl.store(out_at, total.to(out.dtype.element_ty), mask=head[:, None] & value[None, :])


def forward(
    q: Tensor,
    kv: Tensor,
    topk_idxs: Tensor,
    topk_length: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
) -> dict[str, Tensor]:
    """out [S_q, H, D_v] in q's dtype and lse [S_q, H] in FP32 (natural, KV only, +inf where no slot is live).

    Allocates nothing but its outputs. d_kv_dtype is the backward's. Raises as `arguments.forward_sizes` and
    `tiles.tiles_of` do.
    """
    n = forward_sizes(
        q, kv, topk_idxs, topk_length, sink, softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype
    )
    cut = tiles_of(n, q.element_size())
    out = torch.empty((n.S_q, n.H, n.D_v), dtype=q.dtype, device=q.device)
    lse = torch.empty((n.S_q, n.H), dtype=torch.float32, device=q.device)
    if n.empty:
        return {"out": out.zero_(), "lse": lse.fill_(torch.inf)}
    sparse_mla_forward[(n.S_q * blocks_of(n, q.element_size()),)](
        q, kv, topk_idxs, topk_idxs if topk_length is None else topk_length, lse if sink is None else sink, out, lse,
        n.S_k, n.H, n.D, n.D_v, n.topk, *optional(n, topk_length, sink), float(softmax_scale),
        *q.stride(), *kv.stride(), *topk_idxs.stride(),
        0 if topk_length is None else topk_length.stride(0), 0 if sink is None else sink.stride(0),
        HEADS=cut.heads, SLOTS=cut.slots, VALUE=cut.value, TAIL=cut.tail,
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return {"out": out, "lse": lse}
