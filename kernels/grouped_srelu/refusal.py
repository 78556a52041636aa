"""Who may add in any order when determinism is requested, and what to do instead."""

from __future__ import annotations

from kernels.grouped_srelu.arguments import Sizes
from kernels.grouped_srelu.tiles import FEATURES, ROWS, cut, widest
from numcheck.determinism import NVTE, requested
from numcheck.determinism import require as require_of_numcheck


def shared(n: Sizes, *, weighted: bool, biased: bool) -> dict[str, str]:
    """Output -> the remedy, for each output to which more than one program may add by atomics.

    One N tile makes d_prob alone, one row tile d_bias; the number of an expert's row tiles is on the device, so the
    rows of the whole buffer bound it.
    """
    found = {}
    if weighted and cut(n.N, FEATURES) > 1:
        found["d_prob"] = (
            f"{cut(n.N, FEATURES)} N tiles of {FEATURES} add to each d_prob: call vjp_slots, which adds them in order, "
            "or pass prob=None where every routing weight is 1"
        )
    if biased and widest(n.M) > 1:
        found["d_bias"] = (
            f"up to {widest(n.M)} row tiles of {ROWS} add to each d_bias: call vjp_slots, which folds them in order, "
            "or pass generate_dbias=False and sum d_c over each expert's rows"
        )
    return found


def require(kernel: str, n: Sizes, *, weighted: bool, biased: bool) -> None:
    """Nothing where nobody asks for determinism, or where no two programs share a sum.

    Asked are NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 and torch.use_deterministic_algorithms(True).
    Raises NotDeterministic with the remedy of each sum that is shared.
    """
    reasons = {} if n.empty else shared(n, weighted=weighted, biased=biased)
    if reasons:
        require_of_numcheck(kernel, requested(NVTE), remedy="; ".join(reasons.values()))
