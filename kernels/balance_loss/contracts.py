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


def _order(mass: OrderPromise, raw: OrderPromise, loss: OrderPromise) -> Mapping[str, OrderPromise]:
    # Counts are integers, so what rests on them alone is the same in every order.
    return {"frequencies": "single", "mass": mass, "raw": raw, "loss": loss, "d_scores": "single"}


PROMISE = Contract(rounds=final_cast, dtypes=DTYPES, legal=legal, refuses=True)
EAGER = replace(PROMISE, accumulate=TORCH, order=_order("fixed", "fixed", "single"))
NATIVE = replace(EAGER, legal=legal_native, refuses=False)
FUSED = replace(PROMISE, accumulate=balanced, order=_order("fixed", "fixed", "single"), workspace=slots)
ATOMIC = replace(PROMISE, accumulate=balanced, order=_order("any", "any", "any"), workspace=counts)
