"""Kernels with one bug each, for `kernels.grouped_srelu.faults`."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.grouped_srelu.backward import _find


@triton.jit
def grouped_srelu_add_tiles(
    slots, tokens, offsets, d_bias, N, E, tokens_e, offsets_e,
    EXPERTS: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    tile, part = tl.program_id(0), tl.program_id(1)
    expert, _, _, _ = _find(tile, tokens, offsets, tokens_e, offsets_e, E, EXPERTS, ROWS)
    if expert < E:
        n = part * FEATURES + tl.arange(0, FEATURES)
        share = tl.load(slots + tile.to(tl.int64) * N + n, mask=n < N, other=0.0)
        at = d_bias + expert.to(tl.int64) * N + n
        # The bug: load, add, store where other row tiles do the same, instead of an atomic add.
        tl.store(at, tl.load(at, mask=n < N, other=0.0) + share, mask=n < N)
