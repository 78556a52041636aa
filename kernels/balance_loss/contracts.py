"""What each balance loss implementation promises, as functions of the Case.

Totals and points are the oracles': norm and d_scores (a row's dot product) add over experts, mass over tokens, raw over
experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels.balance_loss.native import clamp_is_strict
from kernels.balance_loss.tiles import MOST_EXPERTS, forward_tiles
from numcheck import Case, Contract, Sum
from numcheck.contract import OrderPromise

DTYPES = ("bf16", "fp32")
# The tree of torch's own sums is its own affair.
TORCH = Sum("fp32", tree="any")
BALANCED = Sum("fp32", tree="pairwise")
# Kinds of rows of which some have their norm at the clamp.
AT_THE_CLAMP = ("mixed", "clamp")
FP32_BYTES = 4


def final_cast(case: Case) -> Mapping[str, str]:
    """The gradient alone has the scores' dtype; for FP32 scores nothing rounds but FP32 arithmetic."""
    return {} if case.dtype == "fp32" else {"d_scores": "data"}


def balanced(case: Case) -> Mapping[str, Sum]:
    """Every sum is a balanced tree, but that a part of several tiles adds those one by one."""
    cut = forward_tiles(case["T"], case["E"])
    # Tiles of a part in a chain, parts in a tree: no deeper than all tiles in one chain.
    mass = BALANCED if cut.trips == 1 else Sum("fp32", tree="sequential", block=cut.rows)
    return {"": BALANCED, "mass": mass}


def by_atomics(case: Case) -> Mapping[str, Sum]:
    """As `balanced`, but that mass takes its tiles' sums in whatever order they arrive."""
    return {"": BALANCED, "mass": Sum("fp32", tree="any", block=forward_tiles(case["T"], case["E"]).rows)}


def legal(case: Case) -> str | None:
    """Why a Case is outside the promise of all of them, or None; `arguments.forward_sizes` refuses it."""
    if not 1 <= case["E"] <= MOST_EXPERTS:
        return f"E={case['E']}, but E must be from 1 to {MOST_EXPERTS}"
    return None


def legal_native(case: Case) -> str | None:
    """As `legal`; rows at the clamp only where the installed torch has the objective's policy there."""
    if case.fact("rows", "positive") in AT_THE_CLAMP and not clamp_is_strict():
        return "the installed torch passes the gradient of a clamp at equality, and the objective's policy is strict"
    return legal(case)


def writers(case: Case) -> Mapping[str, int]:
    """How many parts are added at an address of each output; raw is added up within one program."""
    parts = forward_tiles(case["T"], case["E"]).parts
    return {"frequencies": 1, "mass": parts, "loss": 1, "d_scores": 1}


def slots(case: Case) -> int:
    """Bytes of the forward's slots: a count and a sum for each part and expert."""
    return 2 * counts(case)


def counts(case: Case) -> int:
    """Bytes of the counts' slots."""
    return FP32_BYTES * forward_tiles(case["T"], case["E"]).parts * case["E"] if case["T"] else 0


def eager_map_workspace(case: Case) -> int:
    """Bytes of temporaries of `eager.vjp_map`, which takes more than its forward.

    push, sign and their product in FP32 [T, E], less the gradient that does not exist yet; norm, pull and the pull that
    counts [T]; weights [E]; and the scores' FP32 or masked copy.
    """
    T, E = case["T"], case["E"]
    return _copy(case) + 12 * T * E - _bytes(case) * T * E + 12 * T + 4 * E


def native_workspace(case: Case) -> int:
    """Bytes of temporaries of `native.vjp`, as autograd keeps them for the backward of F.normalize.

    The quotient and three gradients in FP32 [T, E], of which the last is the output for FP32 scores; norm and its
    gradient [T]; the gradient of mass [E] and of raw.
    """
    T, E = case["T"], case["E"]
    return _copy(case) + 16 * T * E - _bytes(case) * T * E + 8 * T + 4 * E + 4


def eager_topk_workspace(case: Case) -> int:
    """Bytes of temporaries of `eager.forward_topk`, whose sort keeps values and int64 indices [T, E], or of its vjp.

    The forward's outputs do not exist yet while it sorts; a GPU's sort of rows of up to 4096 takes an int64 row of
    positions [E] more. push and the FP32 gradient are the vjp's largest.
    """
    T, E = case["T"], case["E"]
    forward = 12 * T * E + 4 * T + 8 * E - _outputs(E)
    vjp = 8 * T * E - _bytes(case) * T * E + 8 * T + 4 * E
    return _copy(case) + max(forward, vjp)


def _outputs(E: int) -> int:
    """Bytes of the forward's outputs: frequencies and mass [E], raw and loss."""
    return FP32_BYTES * (2 * E + 2)


def _copy(case: Case) -> int:
    """Bytes of the scores in FP32 with zeros for padding, where that is not the scores themselves."""
    copied = case.dtype != "fp32" or case.fact("padding", "none") != "none"
    return FP32_BYTES * case["T"] * case["E"] if copied else 0


def _bytes(case: Case) -> int:
    return 2 if case.dtype == "bf16" else FP32_BYTES


def _order(mass: OrderPromise, raw: OrderPromise, loss: OrderPromise) -> Mapping[str, OrderPromise]:
    # Counts are integers, so what rests on them alone is the same in every order.
    return {"frequencies": "single", "mass": mass, "raw": raw, "loss": loss, "d_scores": "single"}


PROMISE = Contract(rounds=final_cast, dtypes=DTYPES, legal=legal, refuses=True)
EAGER = replace(PROMISE, accumulate=TORCH, order=_order("fixed", "fixed", "single"))
EAGER_MAP = replace(EAGER, workspace=eager_map_workspace)
EAGER_TOPK = replace(EAGER, workspace=eager_topk_workspace)
NATIVE = replace(EAGER, workspace=native_workspace, legal=legal_native, refuses=False)
FUSED = replace(PROMISE, accumulate=balanced, order=_order("fixed", "fixed", "single"), workspace=slots)
ATOMIC = replace(PROMISE, accumulate=by_atomics, order=_order("any", "any", "any"), workspace=counts)
