"""Pool: what each Case leaves for the pooled verdict, and the gates over all Cases of one generated test.

Outputs of few elements have no band of their own: their figures are added up over Cases instead, draw by draw, so that
the pooled figure too has the spread of the same statistic over the noise draws.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numcheck.chance import student_tail
from numcheck.gate import Gate
from numcheck.judge import FEWEST, MATCH_RISK, Z_LIMIT, clumped, edges, off
from numcheck.residual import Residual

if TYPE_CHECKING:
    from numcheck.figures import Figures

# Pooled over many Cases the noise model holds to 0.93..1.10 for 16-bit outputs (25 Cases of mHC post); a pool is never
# judged tighter than this factor.
POOLED_MODEL = 1.1
# Below this many independent errors the logarithm of a mean square is too skewed for limits in spreads: for 30 its
# standard deviation is 0.13 and its shape near normal out to 6 of them.
FEWEST_POOLED = 30
# Variance of the mean square of n uniform errors, times n, in units of its mean: E[x^4] / E[x^2]^2 - 1 = 9/5 - 1.
UNIFORM = 0.8
# Figures kept in the records: six digits are beyond any spread here.
DIGITS = 6


def pooled_share(judged: Residual | Figures) -> dict[str, Any] | None:
    """What one output of one Case adds to the pool, JSON-plain; None where nothing could be learned from it.

    weight: how many equal uniform errors would scatter as the draws' mean squares do, at most FEWEST, so that one large
    Case cannot drown the small ones. square: mean square error over the predicted one; squares: the same of each noise
    draw. emulated: the emulation's mean square error over the predicted one. bias, biases: sum of error * sign(truth)
    over its root mean square in the draws. differ, flips: elements away from the emulation, and in each jitter.
    """
    r = judged.figures if isinstance(judged, Residual) else judged
    if r.exact or r.blind or r.wrong:
        return None
    share: dict[str, Any] = {
        "rounded": r.rounded,
        "elements": r.elements,
        "differ": r.differ,
        "flips": list(r.flips_by_run),
        "emulated": _short(r.emulation_share),
        "weight": 0.0,
    }
    mean, squares = r.mean_square, r.squares
    if r.independent == 0 or mean == 0:
        return share
    scatter = statistics.variance(s / mean for s in squares)
    share["weight"] = _short(min(r.independent, FEWEST, UNIFORM / scatter if scatter else FEWEST))
    signs = r.draw_leans
    scale = math.sqrt(statistics.fmean(s * s for s in signs)) or 1.0
    return {
        **share,
        "square": _short(r.error**2 / mean),
        "squares": [_short(s / mean) for s in squares],
        "bias": _short(r.bias.value / scale),
        "biases": [_short(s / scale) for s in signs],
    }


def pooled_gates(name: str, shares: Sequence[Mapping[str, Any]]) -> list[Gate]:
    """The gates of the output `name` over all Cases, from the shares that they left."""
    if not shares:
        return []
    rounded = all(share["rounded"] for share in shares)
    averaged = [share for share in shares if share["weight"]]
    found = [_match(name, shares)] if rounded else []
    weight = sum(share["weight"] for share in averaged)
    if weight < FEWEST_POOLED:
        errors = f"{weight:.0f} independent errors over {len(shares)} Cases {_which(rounded)}"
        why = f"{errors}, fewer than {FEWEST_POOLED}"
        return [*found, Gate("band", name, 0.0, math.inf, why, vacuous=why)]
    found.append(_band(name, averaged, weight, rounded))
    return [*found, _bias(name, averaged)] if rounded else found


def pooled_ratio(shares: Sequence[Mapping[str, Any]]) -> tuple[float, list[float]]:
    """Measured over predicted, root mean square over the shares by weight; and the same of each draw."""
    weight = sum(share["weight"] for share in shares)
    draws = min(len(share["squares"]) for share in shares)
    measured = sum(share["weight"] * share["square"] for share in shares) / weight
    drawn = [sum(share["weight"] * share["squares"][k] for share in shares) / weight for k in range(draws)]
    return math.sqrt(measured), [math.sqrt(d) for d in drawn]


def _band(name: str, shares: Sequence[Mapping[str, Any]], weight: float, rounded: bool) -> Gate:
    ratio, drawn = pooled_ratio(shares)
    draws = len(drawn)
    spread = statistics.stdev(map(math.log, drawn))
    width = max(math.log(POOLED_MODEL), Z_LIMIT * spread * math.sqrt(1 + 1 / draws))
    emulated = sum(share["weight"] * share["emulated"] for share in shares) / weight
    lower, upper = edges(emulated, width) if rounded else (-math.inf, math.exp(width))
    reason = (
        f"relL2 measured over predicted, pooled over {len(shares)} Cases {_which(rounded)} and {weight:.0f} "
        f"independent errors; allowed: "
        f"{Z_LIMIT:g} spreads of the same pool over {draws} noise draws (Student's t puts "
        f"{student_tail(Z_LIMIT, draws - 1):.2g} of right kernels beyond), at least a factor {POOLED_MODEL:g} for the "
        f"noise model{off(emulated) if rounded else ''}"
    )
    return Gate("band", name, ratio, upper, reason, spread, lower)


def _bias(name: str, shares: Sequence[Mapping[str, Any]]) -> Gate:
    draws = min(len(share["biases"]) for share in shares)
    drawn = [sum(share["biases"][k] for share in shares) for k in range(draws)]
    spread = statistics.stdev(drawn)
    distance = sum(share["bias"] for share in shares) - statistics.fmean(drawn)
    reason = (
        f"sum of error * sign(truth), each Case in units of its own spread, pooled over {len(shares)} Cases and in "
        f"spreads of the same pool over {draws} noise draws; Student's t puts "
        f"{student_tail(Z_LIMIT, draws - 1):.2g} of right kernels beyond {Z_LIMIT:g}"
    )
    z = distance / (spread * math.sqrt(1 + 1 / draws)) if spread else 0.0
    return Gate("bias", name, z, Z_LIMIT, reason, spread, -Z_LIMIT)


def _match(name: str, shares: Sequence[Mapping[str, Any]]) -> Gate:
    runs = min(len(share["flips"]) for share in shares)
    flips = [sum(share["flips"][k] for share in shares) for k in range(runs)]
    mean = statistics.fmean(flips)
    clump = max(1.0, statistics.variance(flips) / mean) if mean else 1.0
    limit = clumped(sum(flips), runs, clump, MATCH_RISK)
    elements = sum(share["elements"] for share in shares)
    differ = sum(share["differ"] for share in shares)
    reason = (
        f"elements of {elements} over {len(shares)} Cases that differ from the emulated Contract; {runs} jittered "
        f"emulations of each Case flip {sum(flips)}, so a right kernel flips more than {limit} with a chance below "
        f"{MATCH_RISK:g} (exact conditional Poisson test)"
    )
    why = f"{limit} flips are allowed of {elements} elements" if elements <= limit else ""
    return Gate("match", name, float(differ), float(limit), reason, vacuous=why)


def _which(rounded: bool) -> str:
    return "whose final cast is narrower than the sum" if rounded else "that keep the sum's precision"


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
