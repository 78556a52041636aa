"""Sparse MLA in torch operators: FP32 throughout, each sum in one order, rounded once at the end.

Queries go in chunks, so that the gathered keys stay within CHUNK_BYTES. Each slot's share of d_kv is staged, sorted by
KV row and summed row by row in the order of query and slot: no atomics, so that a GPU repeats it too. Nothing waits for
the device, so that a graph can capture it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.sparse_mla.arguments import Sizes, d_kv_torch_dtype, forward_sizes, vjp_sizes
from kernels.sparse_mla.blocks import chunk_queries, eager_bytes
from kernels.sparse_mla.workspace import check

Adder = Callable[[Tensor, Tensor, Tensor], None]


class _Listed(NamedTuple):
    """What some queries list: dead [queries, topk], rows as dead (S_k in a dead slot), keys [queries, topk, D] in FP32
    with zeros in a dead slot, alive [queries, 1]: whether any slot is live.
    """

    dead: Tensor
    rows: Tensor
    keys: Tensor
    alive: Tensor


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
    budget: int | None = None,
) -> dict[str, Tensor]:
    """out [S_q, H, D_v] in q's dtype; lse [S_q, H] in FP32, natural, of the KV alone, +inf where no slot is live.

    budget: bytes of workspace allowed; None: what the device has free. Raises WorkspaceExceeded where it takes more,
    and as `arguments.forward_sizes` does.
    """
    n = forward_sizes(
        q, kv, topk_idxs, topk_length, sink, softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype
    )
    _check(n, q, q.element_size(), sink, budget)
    out = torch.zeros((n.S_q, n.H, n.D_v), dtype=q.dtype, device=q.device)
    lse = torch.full((n.S_q, n.H), math.inf, dtype=torch.float32, device=q.device)
    for some in _chunks(n):
        listed = _gather(kv, topk_idxs, topk_length, some)
        lse[some], P = _softmax(_logits(q[some], listed, softmax_scale), listed, sink)
        out[some] = (P @ listed.keys[..., : n.D_v]).to(q.dtype)
        del listed, P
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
    budget: int | None = None,
    add: Adder | None = None,
) -> dict[str, Tensor]:
    """d_q [S_q, H, D], d_kv [S_k, D] in q's dtype or FP32, d_sink [H] in FP32 where there is a sink.

    add(sums, shares, rows) adds each slot's share [slots, D] of d_kv to its row, rows from len(sums) on left out;
    None: `add_by_row`. budget: bytes of workspace allowed; None: what the device has free. Raises WorkspaceExceeded
    where it takes more, and as `arguments.vjp_sizes` does.
    """
    n = vjp_sizes(
        q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
        softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype,
    )  # fmt: skip
    _check(n, q, d_kv_torch_dtype(q, d_kv_dtype).itemsize, sink, budget)
    d_q = torch.zeros((n.S_q, n.H, n.D), dtype=q.dtype, device=q.device)
    d_kv = torch.zeros((n.S_k, n.D), dtype=torch.float32, device=q.device)
    d_sink = None if sink is None else torch.zeros((n.H,), dtype=torch.float32, device=q.device)
    for some in _chunks(n):
        listed = _gather(kv, topk_idxs, topk_length, some)
        own = torch.where(listed.alive, lse[some], 0.0)
        L = own if sink is None else torch.logaddexp(own, sink)
        D = _dots(d_out[some], out[some])
        if sink is not None and d_sink is not None:
            d_sink -= _sink_terms(L, D, sink, listed).sum(0)
        P = _logits(q[some], listed, softmax_scale).sub_(L[..., None]).exp_()
        dS = (d_out[some].float() @ listed.keys[..., : n.D_v].mT).sub_(D[..., None]).mul_(P).mul_(softmax_scale)
        dS.masked_fill_(listed.dead[:, None], 0.0)
        d_q[some] = (dS @ listed.keys).to(q.dtype)
        shares = dS.mT @ q[some].float()
        shares[..., : n.D_v] += P.mT @ d_out[some].float()
        rows = listed.rows.flatten()
        del listed, own, L, D, P, dS
        (add or add_by_row)(d_kv, shares.flatten(0, 1), rows)
        del shares, rows
    gradients = {"d_q": d_q, "d_kv": d_kv.to(d_kv_torch_dtype(q, d_kv_dtype))}
    return gradients if d_sink is None else {**gradients, "d_sink": d_sink}


def _check(n: Sizes, q: Tensor, d_kv_element: int, sink: Tensor | None, budget: int | None) -> None:
    need = eager_bytes(n, q.element_size(), d_kv_element, sink=sink is not None)
    check("sparse_mla.eager", n, need, budget, q.device)


def _chunks(n: Sizes) -> Iterator[slice]:
    """Queries to work on together; none where no slot can be live."""
    queries = chunk_queries(n.D, n.topk)
    return (slice(start, start + queries) for start in range(0, 0 if n.empty else n.S_q, queries))


def _gather(kv: Tensor, topk_idxs: Tensor, topk_length: Tensor | None, some: slice) -> _Listed:
    rows = topk_idxs[some].long()
    dead = (rows < 0).logical_or_(rows >= len(kv))
    if topk_length is not None:
        dead.logical_or_(torch.arange(rows.shape[1], device=rows.device) >= topk_length[some, None])
    # Selected, never multiplied: the row that a dead slot reads instead may hold NaN.
    keys = kv[rows.masked_fill_(dead, 0)].float().masked_fill_(dead[..., None], 0.0)
    return _Listed(dead, rows.masked_fill_(dead, len(kv)), keys, ~dead.all(-1, keepdim=True))


def _logits(q: Tensor, listed: _Listed, scale: float) -> Tensor:
    """[queries, H, topk], -inf in dead slots."""
    return (q.float() @ listed.keys.mT).mul_(scale).masked_fill_(listed.dead[:, None], -math.inf)


def _softmax(logits: Tensor, listed: _Listed, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """lse [queries, H] of the live slots, and the probabilities, in the memory of `logits`."""
    top = logits.amax(-1).masked_fill_(~listed.alive, 0.0)
    powers = logits.sub_(top[..., None]).exp_()
    row_sum = powers.sum(-1).masked_fill_(~listed.alive, 1.0)
    lse = row_sum.log().add_(top)
    P = powers.div_(row_sum[..., None])
    if sink is not None:
        P.mul_(torch.exp(lse - torch.logaddexp(lse, sink))[..., None])
    return lse.masked_fill_(~listed.alive, math.inf), P


def _dots(d_out: Tensor, out: Tensor) -> Tensor:
    """[queries, H], over the value's features."""
    return (d_out.float() * out.float()).sum(-1)


def _sink_terms(L: Tensor, D: Tensor, sink: Tensor, listed: _Listed) -> Tensor:
    """exp(sink - L) D [queries, H]; nothing where a sink is infinite or a query has no live slot."""
    return torch.where(listed.alive & torch.isfinite(sink), torch.exp(sink - L) * D, 0.0)


def add_by_row(sums: Tensor, shares: Tensor, rows: Tensor) -> None:
    """Add each of `shares` [N, D] to its row of `sums` [rows, D], a row's shares in order; rows beyond it drop out."""
    ordered, order = torch.sort(rows, stable=True)
    bounds = torch.searchsorted(ordered, torch.arange(len(sums) + 1, device=rows.device))
    sums += torch.segment_reduce(shares[order], "sum", offsets=bounds, initial=0)
