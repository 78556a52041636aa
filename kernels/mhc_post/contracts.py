"""What each mHC post implementation promises, as functions of the Case.

Totals and points are the oracle's: a total carries the name of the output that it makes; `px` is post*x, `mix` the sum
over the sources without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels.mhc_post.arguments import STREAM_COUNTS
from kernels.mhc_post.blocks import SPLITS, block_of, blocks_of
from numcheck import Case, Contract, Sum
from numcheck.contract import OrderPromise

DTYPES = ("bf16", "fp32")
# The few terms over streams are added one by one, in the order of the streams. Products are rounded in eager mode and
# in the interpreter and contracted to FMA on a GPU; a rounded product is the larger error of the two.
STREAMS = Sum("fp32", tree="sequential", products=True)
# torch.sum, tl.sum and atomics each take a tree of their own.
FEATURES = Sum("fp32", tree="any", products=True)
ACCUMULATE: Mapping[str, Sum] = {
    "out": STREAMS,
    "d_x": STREAMS,
    "d_residual": STREAMS,
    "d_post": FEATURES,
    "d_comb": FEATURES,
}


def final_cast(case: Case) -> Mapping[str, str]:
    """Only outputs round, and for FP32 data not even they: the accumulator has that dtype."""
    return {} if case.dtype == "fp32" else {"out": "data", "d_x": "data", "d_residual": "data"}


def every_intermediate(case: Case) -> Mapping[str, str]:
    """The policy before FP32 coefficients; d_post and d_comb go through the dtype of the rounded coefficients."""
    if case.dtype == "fp32":
        return {}
    points = ("post", "comb", "px", "mix", "out", "d_x", "d_residual", "d_post", "d_comb")
    return dict.fromkeys(points, "data")


def legal(case: Case) -> str | None:
    """Why a Case is outside the promise of all of them, or None; `arguments.sizes` refuses it."""
    if case["H"] not in STREAM_COUNTS:
        return f"H={case['H']}, but H must be one of {', '.join(map(str, STREAM_COUNTS))}"
    return None


def eager_workspace(case: Case) -> int:
    """Bytes of temporaries of `eager.vjp`, which takes more than `eager.forward`.

    One FP32 product [S, H, D] with its sum [S, H]; for bf16 data also x, a cotangent and d_x in FP32 [S, D], residual
    and d_residual in FP32 [S, H, D], less the bf16 gradients that do not exist yet.
    """
    S, H, D = case["S"], case["H"], case["D"]
    product = 4 * S * H * D + 4 * S * H
    if case.dtype == "fp32":
        return product
    return product + 3 * 4 * S * D + 2 * 4 * S * H * D - 2 * S * D - 2 * S * H * D


def eager_forward_workspace(case: Case) -> int:
    """Bytes of temporaries of `eager.forward`.

    One FP32 product [S, H, D]; for bf16 data also the FP32 sum [S, H, D] and a stream in FP32 [S, D], less the bf16
    output that does not exist yet.
    """
    S, H, D = case["S"], case["H"], case["D"]
    if case.dtype == "fp32":
        return 4 * S * H * D
    return 2 * 4 * S * H * D + 4 * S * D - 2 * S * H * D


def bf16_rounding_workspace(case: Case) -> int:
    """Bytes of temporaries of `eager_bf16_rounding`: of its forward or, where H is 1 or 2, of its vjp.

    forward: the mix, post*x, the rounded mix and their sum in FP32 [S, H, D], less the bf16 output that does not exist
    yet. vjp: as in `eager`, or, where D is 1, a sum and its two roundings in place of a product. Both keep the rounded
    coefficients in FP32, [S, H] and [S, H, H]. FP32 data is not rounded and needs neither.
    """
    S, H, D = case["S"], case["H"], case["D"]
    if case.dtype == "fp32":
        return 2 * 4 * S * H * D
    coefficients = 4 * S * H + 4 * S * H * H
    vjp = eager_workspace(case) + max(0, (2 + 4) * S * H - 4 * S * H * D)
    return coefficients + max(4 * 4 * S * H * D - 2 * S * H * D, vjp)


def slots(case: Case) -> int:
    """Bytes of the slots of `split.vjp_ordered`: H + H*H FP32 sums for each token and block of D."""
    S, H, D = case["S"], case["H"], case["D"]
    return 4 * S * split_blocks(D) * (H + H * H)


def split_blocks(D: int) -> int:
    """Programs that share a token's d_post and d_comb."""
    return blocks_of(D, block_of(D, SPLITS))


def split_writers(case: Case) -> Mapping[str, int]:
    """How many programs add to an address of each output."""
    blocks = split_blocks(case["D"])
    return {"out": 1, "d_x": 1, "d_residual": 1, "d_post": blocks, "d_comb": blocks}


def one_writer(case: Case) -> Mapping[str, int]:
    """One program writes each address."""
    return dict.fromkeys(("out", "d_x", "d_residual", "d_post", "d_comb"), 1)


def _order(coefficients: OrderPromise) -> Mapping[str, OrderPromise]:
    rows: OrderPromise = "single"
    return {"out": rows, "d_x": rows, "d_residual": rows, "d_post": coefficients, "d_comb": coefficients}


PROMISE = Contract(rounds=final_cast, accumulate=ACCUMULATE, dtypes=DTYPES, legal=legal, refuses=True)
EAGER = replace(PROMISE, workspace=eager_workspace)
EAGER_FORWARD = replace(PROMISE, workspace=eager_forward_workspace)
BF16_ROUNDING = replace(PROMISE, rounds=every_intermediate, workspace=bf16_rounding_workspace)
FUSED = replace(PROMISE, order=_order("single"))
SPLIT_ATOMIC = replace(PROMISE, order=_order("any"))
SPLIT_ORDERED = replace(PROMISE, order=_order("fixed"), workspace=slots)
