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
