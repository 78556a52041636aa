"""The Triton kernels around `cudnn_sliced_kernel`: the slots of one tile of KV rows, and the slices added in order."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.sparse_mla.common import live_rows

# Slots, or words, that a step takes.
SLOTS, WORDS = tl.constexpr(256), tl.constexpr(1024)


@triton.jit
def sparse_mla_tile_slots(
    topk_idxs, topk_length, tile_idxs, tile_length, first, rows, S_k, topk, HAS_LENGTH: tl.constexpr
):
    """Of each query (a program) the live slots that list rows first to first + rows, in order and counted from first.

    tile_idxs [queries, topk] int32, of which tile_length [queries] are written.
    """
    t = tl.program_id(0).to(tl.int64)
    found = 0
    length = tl.load(topk_length + t) if HAS_LENGTH else topk
    for start in range(0, topk, SLOTS):
        slots = start + tl.arange(0, SLOTS)
        row, live = live_rows(topk_idxs, t, slots, length, topk, S_k, topk, 1)
        here = live & (row >= first) & (row < first + rows)
        one = here.to(tl.int32)
        place = found + tl.cumsum(one, axis=0) - 1
        tl.store(tile_idxs + t * topk + place, (row - first).to(tl.int32), mask=here)
        found += tl.sum(one, axis=0)
    tl.store(tile_length + t, found)


@triton.jit
def sparse_mla_add_slices(words, stride, slices):
    """words [slices, stride] FP32: the first slice becomes the sum of all, added one after the other."""
    at = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    total = tl.load(words + at, mask=at < stride, other=0.0)
    for s in range(1, slices):
        total += tl.load(words + s * stride + at, mask=at < stride, other=0.0)
    tl.store(words + at, total, mask=at < stride)
