"""Sparse MLA's backward in Triton with d_kv added up in one order: that of query, block of heads and slot.

For some queries at a time, the contributions are staged in FP32, sorted by KV row once, and each row's segment is added
in order onto its FP32 sum. A row's sum is one chain through all its contributions, so where the chunks end changes no
bit. A dead slot gets the key past the last row: no program reads that segment, and none is clamped into row 0, where a
single program would have to add them all. (Dropping them by compaction would make memory and grid depend on data, and
the host wait for them.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sparse_mla.backward_kv import STAGED
from kernels.sparse_mla.common import for_any
from kernels.sparse_mla.halves import Backward
from kernels.sparse_mla.tiles import padded
from kernels.sparse_mla.workspace import check, entries_of, ordered_bytes, queries_at_a_time

NAME = "sparse_mla.triton_ordered"
# Keys written by a program.
KEYS = 1024
# Features and elements of a tile of rows: 128 FP32 are one line of cache for each of four loads in flight.
FEATURES, ELEMENTS = 128, 1024


@for_any
def sparse_mla_keys(
    topk_idxs, topk_length, keys, first, entries, blocks, topk, lengths, S_k, idxs_t, idxs_j, length_t,
    KEYS: tl.constexpr,
):  # fmt: skip
    m = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    inside = m < entries
    t = (first + m // (topk * blocks)).to(tl.int64)
    slot = m % topk
    length = tl.load(topk_length + t * length_t, mask=inside & (t < lengths), other=topk)
    live = inside & (slot < length)
    row = tl.load(topk_idxs + t * idxs_t + slot * idxs_j, mask=live, other=-1)
    live = live & (row >= 0) & (row < S_k)
    tl.store(keys + m, tl.where(live, row, S_k), mask=inside)


@for_any
def sparse_mla_add_segments(staged, order, starts, sums, S_k, D, ROWS: tl.constexpr, FEATURES: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    row, feature = r < S_k, (d < D)[None, :]
    begin = tl.load(starts + r, mask=row, other=0)
    count = tl.load(starts + r + 1, mask=row, other=0) - begin
    at = sums + r.to(tl.int64)[:, None] * D + d[None, :]
    total = tl.load(at, mask=row[:, None] & feature, other=0.0)
    for k in range(tl.max(count, axis=0)):
        here = k < count
        m = tl.load(order + begin + k, mask=here, other=0)
        added = tl.load(staged + m[:, None] * D + d[None, :], mask=here[:, None] & feature, other=0.0)
        total = tl.where(here[:, None], total + added, total)
    tl.store(at, total, mask=row[:, None] & feature)


def vjp(
    q: Tensor,
    kv: Tensor,
    topk_idxs: Tensor,
    topk_length: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
    queries: int | None = None,
    budget: int | None = None,
) -> dict[str, Tensor]:
    """d_q [S_q, H, D], d_kv [S_k, D] and, with a sink, d_sink [H].

    queries: how many are staged at a time; None: as many as fit into 1 GiB. budget: bytes of workspace allowed; None:
    what the device has free. Raises ValueError for queries below 1, WorkspaceExceeded where the workspace is beyond the
    budget, and as `arguments.vjp_sizes` does.
    """
    if queries is not None and queries < 1:
        raise ValueError(f"queries is {queries}, but at least 1 has to be staged at a time")
    call = Backward.of(q, kv, topk_idxs, topk_length, sink, out, lse, d_out, softmax_scale, value_dim, d_kv_dtype)
    n, element, wide = call.n, q.element_size(), call.d_kv_dtype == torch.float32
    if n.empty:
        return call.nothing()
    step = min(queries or queries_at_a_time(n, element), n.S_q)
    check(NAME, n, ordered_bytes(n, wide, element, step), budget, q.device)
    gradients, delta = call.query_half()
    sums = torch.zeros((n.S_k, n.D), dtype=torch.float32, device=q.device)
    d_kv = sums if wide else call.empty_d_kv()
    _add_in_order(call, delta, sums, step)
    return gradients | {"d_kv": d_kv if wide else d_kv.copy_(sums)}


def _add_in_order(call: Backward, delta: Tensor, sums: Tensor, step: int) -> None:
    n, device = call.n, call.q.device
    entries = entries_of(n, call.q.element_size(), step)
    keys = torch.empty((entries,), dtype=torch.int32, device=device)
    ordered = torch.empty_like(keys)
    order = torch.empty((entries,), dtype=torch.int64, device=device)
    rows = torch.arange(n.S_k + 1, dtype=torch.int32, device=device)
    starts = torch.empty((n.S_k + 1,), dtype=torch.int64, device=device)
    for first in range(0, n.S_q, step):
        count = min(step, n.S_q - first)
        entries = entries_of(n, call.q.element_size(), count)
        _keys(call, keys, first, entries)
        torch.sort(keys[:entries], stable=True, out=(ordered[:entries], order[:entries]))
        torch.searchsorted(ordered[:entries], rows, out=starts)
        # Allocated after the sort and freed before the next: the sort's own memory and this never live together.
        staged = torch.empty((entries, n.D), dtype=torch.float32, device=device)
        call.kv_half(STAGED.value, delta, staged, first=first, queries=count)
        features = min(FEATURES, padded(n.D))
        tile = ELEMENTS // features
        sparse_mla_add_segments[(triton.cdiv(n.S_k, tile), triton.cdiv(n.D, features))](
            staged, order, starts, sums, n.S_k, n.D, ROWS=tile, FEATURES=features
        )
        del staged


def _keys(call: Backward, keys: Tensor, first: int, entries: int) -> None:
    length = call.topk_length
    sparse_mla_keys[(triton.cdiv(entries, KEYS),)](
        call.topk_idxs, call.topk_idxs if length is None else length, keys, first, entries, call.blocks,
        call.n.topk, call.optional[0], call.n.S_k,
        *call.topk_idxs.stride(), 0 if length is None else length.stride(0), KEYS=KEYS,
    )  # fmt: skip
