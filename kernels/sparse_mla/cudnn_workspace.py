"""Bytes that the cuDNN specs allocate beyond their results, free of cuDNN, so that a Contract can read the formulas."""

from __future__ import annotations

from typing import NamedTuple

import torch

from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.cudnn_tables import WORDS
from numcheck import Case

# The kernels' tiles: 64 queries or KV rows, 32 columns; scratch starts at multiples of 128 bytes.
ROWS, COLUMNS, SCRATCH = 64, 32, 128
FP32 = 4


def stock_scratch(n: Sizes) -> int:
    """What `flash_attn_bwd_sm90_workspace_size` gives: D and the base-2 L, FP32 [S_q, H], and FP32 d_kv [S_k, D]."""
    statistic = _up(_up(n.S_q, ROWS) * n.H * FP32, SCRATCH)
    return 2 * statistic + _up(_up(n.S_k, ROWS) * _up(n.D, COLUMNS) * FP32, SCRATCH)


def stock_bytes(n: Sizes, has_sink: bool) -> int:
    """The scratch; without a sink also one of -inf and its gradient, which is not returned."""
    return stock_scratch(n) + (0 if has_sink else 2 * FP32 * n.H)


def sizes_of(case: Case) -> Sizes:
    """The sizes of a Case."""
    return Sizes(case["S_q"], case["S_k"], case["H"], case["D"], case["D_v"], case["topk"])


def stock_workspace(case: Case) -> int:
    """`stock_bytes` of a Case; nothing where nothing is launched."""
    n = sizes_of(case)
    return 0 if n.empty else stock_bytes(n, case.fact("sink", "none") != "none")


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# Queries x head tiles of the sample: nearly one CTA on each of an H200's 132 multiprocessors. A constant, so that
# another device chooses the same scales.
SAMPLED = 128
# Words after the lengths: two int64 totals, the decision, the largest |d_out|, and two that pad.
FLAGS = 8


def head_tiles(n: Sizes) -> int:
    """CTAs of one query, which add to its rows apart."""
    return -(-n.H // ROWS)


def sample_of(n: Sizes) -> int:
    """Every how many-th query the sample takes; 1: all of them."""
    return max(1, n.S_q * head_tiles(n) // SAMPLED)


def padded_rows(n: Sizes) -> int:
    """KV rows that have sums and tables."""
    return _up(n.S_k, ROWS)


def fixed_point_scratch(n: Sizes) -> int:
    """D and the base-2 L, FP32 [S_q, H]; sums and tables of each KV row, int32 [S_k, D + WORDS]; lengths and flags."""
    statistic = _up(n.S_q, ROWS) * n.H
    return FP32 * (2 * statistic + padded_rows(n) * (n.D + WORDS) + _up(n.S_q, COLUMNS) + FLAGS)


def fixed_point_bytes(n: Sizes, has_sink: bool) -> int:
    """The scratch; without a sink also one of -inf."""
    return fixed_point_scratch(n) + (0 if has_sink else FP32 * n.H)


def fixed_point_workspace(case: Case) -> int:
    """`fixed_point_bytes` of a Case; nothing where nothing is launched."""
    n = sizes_of(case)
    return 0 if n.empty else fixed_point_bytes(n, case.fact("sink", "none") != "none")


# Bytes of slices at most: all 132 of an H200 in one tile at the deployed S_k 16384, with 576 features too.
SLICED_BYTES = 5 * 2**30
# Of an H200, for a formula that is read where no GPU is.
MULTIPROCESSORS = 132
# cuDNN's kernel takes its operands at addresses of 16 bytes only. Where a launch begins in the int32 slots and lengths
# of its queries is such an address whatever topk is, if a launch has a multiple of 4 queries.
ALIGNED_QUERIES = 4


class Slicing(NamedTuple):
    """How `cudnn_sliced` cuts a call: queries a launch, its CTAs (each a slice), KV rows of one tile, and tiles."""

    queries: int
    slices: int
    rows: int
    tiles: int


def slicing(n: Sizes, multiprocessors: int) -> Slicing:
    """As many CTAs a launch as run at once, in steps of ALIGNED_QUERIES; tiles within SLICED_BYTES."""
    steps = max(1, multiprocessors // (head_tiles(n) * ALIGNED_QUERIES))
    queries = min(n.S_q, steps * ALIGNED_QUERIES)
    slices = queries * head_tiles(n)
    most = max(ROWS, SLICED_BYTES // (slices * n.D * FP32) // ROWS * ROWS)
    rows = min(padded_rows(n), most)
    return Slicing(queries, slices, rows, -(-padded_rows(n) // rows))


def multiprocessors() -> int:
    """Of the current GPU, or of an H200 where there is none."""
    if not torch.cuda.is_available():
        return MULTIPROCESSORS
    return torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count


def sliced_scratch(n: Sizes, cut: Slicing) -> int:
    """D and the base-2 L, FP32 [S_q, H]; the slices, FP32; with several tiles also the slots of one, int32."""
    statistic = _up(n.S_q, ROWS) * n.H
    slots = cut.queries * (_up(n.topk, 4) + 4) if cut.tiles > 1 else 0
    return FP32 * (2 * statistic + cut.slices * cut.rows * n.D + slots)


def sliced_bytes(n: Sizes, has_sink: bool) -> int:
    """The scratch; without a sink also one of -inf."""
    return sliced_scratch(n, slicing(n, multiprocessors())) + (0 if has_sink else FP32 * n.H)


def sliced_workspace(case: Case) -> int:
    """`sliced_bytes` of a Case; nothing where nothing is launched."""
    n = sizes_of(case)
    return 0 if n.empty else sliced_bytes(n, case.fact("sink", "none") != "none")
