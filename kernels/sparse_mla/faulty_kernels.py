"""Kernels with one bug each, for `kernels.sparse_mla.faults`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sparse_mla_lost_updates(shares, rows, sums, S_k, D, WIDTH: tl.constexpr):
    slot = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + slot)
    d = tl.arange(0, WIDTH)
    at = sums + row * D + d
    inside = (d < D) & (row < S_k)
    # The bug: load, add, store where other programs do the same, instead of an atomic add.
    tl.store(at, tl.load(at, mask=inside) + tl.load(shares + slot * D + d, mask=inside), mask=inside)


@triton.jit
def sparse_mla_scatter_slices(
    shares, rows, owner, words, first, tiles, topk, S_k, D,
    SLOTS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """One launch of `cudnn_sliced`'s scatter: a program a CTA, that is a query's tile of heads.

    shares [S_q, tiles, topk, D] FP32; rows [S_q, topk], S_k where dead; words [slices, S_k, D]; owner: the slice of
    each program. Slots of a block that list one row are combined before lanes meet at its sums.
    """
    cta = tl.program_id(0).to(tl.int64)
    t, mine = first + cta // tiles, tl.load(owner + cta).to(tl.int64)
    d = tl.arange(0, WIDTH)
    for start in range(0, topk, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        row = tl.load(rows + t * topk + slots, mask=slots < topk, other=0)
        live = (slots < topk) & (row < S_k)
        at = ((t * tiles + cta % tiles) * topk + slots)[:, None] * D + d[None, :]
        share = tl.load(shares + at, mask=live[:, None] & (d < D)[None, :], other=0.0)
        alike = (row[:, None] == row[None, :]) & live[:, None] & live[None, :]
        before = alike & (slots[None, :] < slots[:, None])
        share = share * tl.sum(alike.to(tl.int32), axis=1).to(tl.float32)[:, None]
        live = live & (tl.sum(before.to(tl.int32), axis=1) == 0)
        to = words + (mine * S_k + row)[:, None] * D + d[None, :]
        tl.atomic_add(to, share, mask=live[:, None] & (d < D)[None, :], sem="relaxed")
