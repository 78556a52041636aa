"""Sparse MLA in torch operators: FP32 throughout, each sum in one order, rounded once at the end.

Queries go in chunks, so that the gathered keys stay within CHUNK_BYTES. Each slot's share of d_kv is staged, sorted by
KV row and summed row by row in the order of query and slot: no atomics, so that a GPU repeats it too. Nothing waits for
the device, so that a graph can capture it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.sparse_mla.arguments import Sizes, d_kv_torch_dtype, forward_sizes, vjp_sizes

# Bytes of a chunk's gathered keys in FP32; a handful of temporaries of that size live at once.
CHUNK_BYTES = 2**25


class _Chunk(NamedTuple):
    """What some queries list: live and rows [queries, topk], keys [queries, topk, D] in FP32, zeros in a dead slot."""

    live: Tensor
    rows: Tensor
    keys: Tensor


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
    """out [S_q, H, D_v] in q's dtype; lse [S_q, H] in FP32, natural, of the KV alone, +inf where no slot is live.

    Raises as `arguments.forward_sizes` does.
    """
    n = forward_sizes(q, kv, topk_idxs, topk_length, sink, softmax_scale=softmax_scale, value_dim=value_dim)
    out = torch.zeros((n.S_q, n.H, n.D_v), dtype=q.dtype, device=q.device)
    lse = torch.full((n.S_q, n.H), math.inf, dtype=torch.float32, device=q.device)
    for some in _chunks(n):
        chunk = _gather(kv, topk_idxs, topk_length, some)
        logits = _logits(q[some], chunk, softmax_scale)
        own = torch.logsumexp(logits, -1)
        alive = own > -math.inf
        lse[some] = torch.where(alive, own, math.inf)
        P = _probabilities(logits, torch.where(alive, own, 0.0), sink)
        out[some] = (P @ chunk.keys[..., : n.D_v]).to(q.dtype)
    return {"out": out, "lse": lse}


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
) -> dict[str, Tensor]:
    """d_q [S_q, H, D], d_kv [S_k, D] in q's dtype or FP32, d_sink [H] in FP32 where there is a sink.

    Raises as `arguments.vjp_sizes` does.
    """
    n = vjp_sizes(
        q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
        softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype,
    )  # fmt: skip
    d_q = torch.zeros((n.S_q, n.H, n.D), dtype=q.dtype, device=q.device)
    d_kv = torch.zeros((n.S_k, n.D), dtype=torch.float32, device=q.device)
    d_sink = torch.zeros((n.H,), dtype=torch.float32, device=q.device)
    for some in _chunks(n):
        chunk = _gather(kv, topk_idxs, topk_length, some)
        alive = chunk.live.any(-1, keepdim=True)
        own = torch.where(alive, lse[some], 0.0)
        D = (d_out[some].float() * out[some].float()).sum(-1)
        P = _probabilities(_logits(q[some], chunk, softmax_scale), own, sink)
        dS = d_out[some].float() @ chunk.keys[..., : n.D_v].mT
        dS = dS.sub_(D[..., None]).mul_(P).mul_(softmax_scale).masked_fill_(~chunk.live[:, None], 0.0)
        d_q[some] = (dS @ chunk.keys).to(q.dtype)
        shares = dS.mT @ q[some].float()
        shares[..., : n.D_v] += P.mT @ d_out[some].float()
        _add_by_row(d_kv, shares.flatten(0, 1), torch.where(chunk.live, chunk.rows, n.S_k).flatten())
        if sink is not None:
            share = torch.exp(sink - torch.logaddexp(own, sink))
            d_sink -= torch.where(alive & torch.isfinite(sink), share * D, 0.0).sum(0)
    gradients = {"d_q": d_q, "d_kv": d_kv.to(d_kv_torch_dtype(q, d_kv_dtype))}
    return gradients if sink is None else {**gradients, "d_sink": d_sink}


def chunk_queries(D: int, topk: int) -> int:
    """Queries whose gathered keys fit into CHUNK_BYTES; at least one."""
    return max(1, CHUNK_BYTES // max(1, 4 * topk * D))


def _chunks(n: Sizes) -> Iterator[slice]:
    """Queries to work on together; none where no slot can be live."""
    queries = chunk_queries(n.D, n.topk)
    return (slice(start, start + queries) for start in range(0, 0 if n.empty else n.S_q, queries))


def _gather(kv: Tensor, topk_idxs: Tensor, topk_length: Tensor | None, some: slice) -> _Chunk:
    rows = topk_idxs[some].long()
    live = (rows >= 0) & (rows < len(kv))
    if topk_length is not None:
        live &= torch.arange(rows.shape[1], device=rows.device) < topk_length[some, None]
    # Selected, never multiplied: the row that a dead slot reads instead may hold NaN.
    keys = kv[torch.where(live, rows, 0)].float().masked_fill_(~live[..., None], 0.0)
    return _Chunk(live, rows, keys)


def _logits(q: Tensor, chunk: _Chunk, scale: float) -> Tensor:
    """[queries, H, topk], -inf in dead slots."""
    return (q.float() @ chunk.keys.mT).mul_(scale).masked_fill_(~chunk.live[:, None], -math.inf)


def _probabilities(logits: Tensor, lse: Tensor, sink: Tensor | None) -> Tensor:
    """exp(logits - ln(exp(lse) + exp(sink))), in the memory of `logits`."""
    total = lse if sink is None else torch.logaddexp(lse, sink)
    return logits.sub_(total[..., None]).exp_()


def _add_by_row(sums: Tensor, shares: Tensor, rows: Tensor) -> None:
    """Add each of `shares` [N, D] to its row of `sums` [rows, D], in order; rows beyond it are dropped."""
    ordered, order = torch.sort(rows, stable=True)
    bounds = torch.searchsorted(ordered, torch.arange(len(sums) + 1, device=rows.device))
    sums += torch.segment_reduce(shares[order], "sum", offsets=bounds, initial=0)
