"""Bytes that the cuDNN specs allocate beyond their results, free of cuDNN, so that a Contract can read the formulas."""

from __future__ import annotations

from kernels.sparse_mla.arguments import Sizes
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
