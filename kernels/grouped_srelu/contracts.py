"""What each grouped backward promises, as functions of the Case.

Totals and points are the oracle's: `dot` is the first GEMM, `g` the gradient in the epilogue, `d_c` what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from kernels.grouped_srelu.tiles import FEATURES, ROWS, cut, row_tiles
from numcheck import Case, Contract, Sum
from numcheck.contract import OrderPromise
from numcheck.oracles.grouped_rows import counts

DTYPES = ("bf16", "fp32")
# GEMMs, torch.sum, tl.sum and atomics each take a tree of their own.
ANY = Sum("fp32", tree="any", products=True)
# cuDNN rounds d_bias to bf16 at every row tile.
BF16_SUM = Sum("bf16", tree="any", products=True)
# What 4-bit floats hold of a Case's data, so that it reaches cuDNN's dSReLU unrounded: the integers from -3 to 3.
FOUR_BIT = ("integers", "ones", "zeros")


def final_cast(case: Case) -> Mapping[str, str]:
    """d_c and d_x round, and for FP32 data not even they. d_x is made of the rounded d_c, d_bias of the other."""
    return {} if case.dtype == "fp32" else {"d_c": "data", "d_x": "data"}


def row_tile_count(case: Case) -> int:
    """Row tiles of the expert that has most, which all add to one address of d_bias."""
    return max(cut(count, ROWS) for count in counts(case))


def addends(case: Case) -> Mapping[str, int]:
    """How many values are added to one address: one for each tile, and what a caller's buffer holds."""
    start = 0 if case.fact("onto", "zeros") == "zeros" else 1
    parts, tiles = cut(case["N"], FEATURES), row_tile_count(case)
    return {"d_c": 1, "d_prob": parts + start, "d_bias": tiles + start, "d_x": 1}


def slots(case: Case) -> int:
    """Bytes of the slots: an FP32 sum for each row and N tile, and for each feature and row tile."""
    M, N = case["M"], case["N"]
    if M == 0:
        return 0
    prob = 4 * M * cut(N, FEATURES) if case.fact("prob", "mixed") != "none" else 0
    return prob + (4 * row_tiles(M, case["E"]) * N if case.fact("bias", True) else 0)


def eager_workspace(width: int) -> Callable[[Case], int]:
    """Bytes of temporaries of the eager backwards, at most; width: columns of c for a feature.

    Everything is FP32: z and g [M, width N], R [M, N]. Beside them live, in the first GEMM, its sum, one expert's
    product and their mix, FP32 copies of d_out and, of 16-bit data, of one expert's w2; in the epilogue four more of
    the size of g; for d_bias one expert's rows of g and all sums twice; in the second GEMM a copy of d_c, [M, H] three
    times, one expert's w1, and d_bias's sums. Finding the owners takes an integer for each row and expert.
    """

    def bytes_of(case: Case) -> int:
        M, N, H, E = (case[name] for name in "MNHE")
        sixteen = 0 if case.dtype == "fp32" else 1
        r, g = 4 * M * N, 4 * M * N * width
        first = g + 3 * r + 4 * M * H + sixteen * 4 * N * H
        epilogue = g + r + 4 * g
        bias = 2 * g + r + g + 2 * 4 * E * N * width
        second = 2 * g + r + g + 4 * E * N * width + 3 * 4 * M * H + sixteen * 4 * N * width * H
        return 8 * M * (E + 3) + max(first, epilogue, bias, second)

    return bytes_of


def four_bit(case: Case) -> str | None:
    """Why a Case's data would not reach a 4-bit GEMM unrounded, or None."""
    if case.regime in FOUR_BIT:
        return None
    return f"{case.regime} data, but this kernel takes 4-bit floats, which hold the regimes {', '.join(FOUR_BIT)} alone"


def _order(sums: OrderPromise, rows: OrderPromise = "single") -> Mapping[str, OrderPromise]:
    return {"d_c": rows, "d_prob": sums, "d_bias": sums, "d_x": rows}


PROMISE = Contract(rounds=final_cast, accumulate={"": ANY}, dtypes=DTYPES, refuses=True)
EAGER = replace(PROMISE, order={"d_c": "single"}, workspace=eager_workspace(1))
ATOMIC = replace(PROMISE, order=_order("any"))
SLOTS = replace(PROMISE, order=_order("fixed"), workspace=slots)
EAGER_SWIGLU = replace(EAGER, workspace=eager_workspace(2))
CUDNN_DSRELU = replace(PROMISE, order=_order("any"), accumulate={"": ANY, "d_bias": BF16_SUM}, legal=four_bit)
CUDNN_DGLU = replace(PROMISE, order=_order("any"), accumulate={"": ANY, "d_bias": BF16_SUM}, dtypes=("bf16",))
