"""Judge: the accuracy gates of one Run. Every limit is derived from the Contract's readings of that same Case.

An output whose predicted error is 0 must equal the emulation (exact). Any other gets a ceiling at every element,
and, where its final cast is narrower than its accumulator, a match against the emulated Contract, a band on relL2 and
a bias; an output that keeps its accumulator's precision has an error that only its sum tree knows, so it gets a
one-sided band. A flat cap is added where the spec sets one. What could not have failed says so (`Gate.vacuous`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from numcheck.chance import most_flips, student_limit, student_tail
from numcheck.clock import timed
from numcheck.figures import Figures
from numcheck.gate import Gate, GateKind
from numcheck.residual import Residual, residual
from numcheck.ulp import torch_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.case import Case
    from numcheck.reading import Readings
    from numcheck.spec import KernelSpec

# A standardised figure of a right kernel is Student's t with draws - 1 degrees of freedom: at 16 draws 2.4e-5 of them
# are beyond 6, the rate that `numcheck alarms` checks.
Z_LIMIT = 6.0
# The noise model takes rounding errors as uniform over one spacing. Where values fill the grid unevenly it is off by up
# to this factor, and a right kernel with it (40 attention cases: 0.79 to 1.29), so no band is tighter.
MODEL = 1.5
# The relL2 of n independent errors scatters by about 0.9 / sqrt(n) / 2: below this many (3 %), Cases are pooled.
FEWEST = 300
# A block of differing elements may be as much larger than the largest block that a jitter moved: among a few jitters
# the largest clump of a row is known to a factor of two or three.
CLUMP = 3
# From so many elements on, the bias is also measured from the emulation's own: errors of rounding to nearest are not
# quite uniform over a spacing h, where the values' density falls off over a width s, and lean by (h/s)^2/12. For bf16
# that is 1e-3 of a single error, one spread among 10^6.
LEANING = 2**20
# The chance that the match gate accuses a right kernel, in one output of one Case.
MATCH_RISK = 1e-8
# How far from 1 the emulation's own ratio is worth a word.
NOTABLE = 0.05


@timed("judge")
def gates(spec: KernelSpec, case: Case, outputs: Mapping[str, Tensor], readings: Readings) -> tuple[Gate, ...]:
    """The gates of every output that `spec` computes; a missing, misshapen or mistyped one fails an `exact` gate."""
    found: list[Gate] = []
    for name in spec.judged_for(case):
        complaint = malformed(spec, case, outputs, name)
        if complaint:
            found.append(Gate("exact", name, math.inf, 0.0, complaint))
        else:
            found += output_gates(measure(spec, case, name, outputs[name], readings), spec.caps.get(name))
    return tuple(found)


@timed("judge")
def measure(spec: KernelSpec, case: Case, name: str, got: Tensor, readings: Readings) -> Residual:
    """The Residual of the output called `name`."""
    return residual(spec.oracle.result(name), case, spec.contract.policy(case), got, readings)


def malformed(spec: KernelSpec, case: Case, outputs: Mapping[str, Tensor], name: str) -> str:
    """Why the output `name` is not what the oracle declares, or ""."""
    declared = spec.oracle.result(name)
    got = outputs.get(name)
    if got is None:
        return f"{spec.oracle.name} declares {name}, but the kernel returned {', '.join(outputs) or 'nothing'}"
    dtype, shape = declared.dtype_for(case), declared.shape(case)
    if tuple(got.shape) != shape:
        return f"{name}.shape={tuple(got.shape)}, but {spec.oracle.name} declares {shape}"
    if got.dtype != torch_dtype(dtype):
        return f"{name}.dtype={got.dtype}, but {spec.oracle.name} declares {dtype} for this Case"
    return ""


@timed("judge")
def output_gates(judged: Residual | Figures, cap: float | None = None) -> list[Gate]:
    """The gates of one output."""
    r = judged.figures if isinstance(judged, Residual) else judged
    if r.elements == 0:
        return [_vacuous("exact", r, "the output has no elements")]
    if r.exact and not r.wrong:
        found = [_exact(r), *(_vacuous(kind, r, "nothing rounds here: the exact gate judges") for kind in _kinds(r))]
    else:
        found = [_ceiling(r), _match(r), _band(r), _bias(r)] if r.rounded else [_ceiling(r), _upper(r)]
    return found if cap is None else [*found, _cap(r, cap)]


def _kinds(r: Figures) -> tuple[GateKind, ...]:
    return ("ceiling", "match", "band", "bias") if r.rounded else ("ceiling", "band")


def _vacuous(kind: GateKind, r: Figures, why: str, value: float = 0.0) -> Gate:
    return Gate(kind, r.name, value if math.isfinite(value) else 0.0, math.inf, why, vacuous=why)


def _exact(r: Figures) -> Gate:
    why = "the truth is all zeros: an output of zeros holds" if not r.nonzero else ""
    reason = (
        "elements that differ from the emulated Contract, whose predicted error is 0: every value on the way is "
        "representable, so nothing may round (zeros of either sign are equal here; the bitwise law tells them apart)"
    )
    return Gate("exact", r.name, float(r.differ), 0.0, reason, vacuous=why)


def _ceiling(r: Figures) -> Gate:
    if not r.bound:
        return _vacuous("ceiling", r, "the worst case was not asked for")
    if r.wrong:
        reason = (
            f"{r.wrong} element(s) are NaN or infinite where the truth is not, or the reverse: NaN never holds, and an "
            "infinity only where the Contract's cast overflows"
        )
        return Gate("ceiling", r.name, math.inf, 1.0, reason)
    reason = (
        "largest |error| / radius over all elements; the radius is the worst case of every declared rounding and sum "
        "at that element (running error analysis), so above 1 no legal rounding explains the error"
    )
    return Gate("ceiling", r.name, r.slack, 1.0, reason, vacuous=r.blind)


def _match(r: Figures) -> Gate:
    count, runs = r.differ, r.jitters
    limit = flip_limit(r)
    block = _bad_block(r) if count <= limit else None
    if block is not None:
        where, inside, allowed, flips = block
        reason = (
            f"{inside} of the elements that differ from the emulated Contract lie in {where}, where {runs} emulations "
            f"jittered by accumulator-level noise flip {flips}: more than {allowed} there is a bad block "
            f"(exact conditional Poisson test at {MATCH_RISK:g} over all blocks)"
        )
        return Gate("match", r.name, float(inside), float(allowed), reason)
    reason = (
        f"elements of {r.elements} that differ from the emulated Contract (rms match {r.match:.3g}); {runs} "
        f"emulations jittered by accumulator-level noise flip {r.seen}, so a right kernel flips more than {limit} with "
        f"a chance below {MATCH_RISK:g} (exact conditional Poisson test); the ceiling holds each to 1 ulp and the sum"
    )
    why = r.blind
    if not why and r.emulated <= limit:
        why = f"{limit} flips are allowed of {r.elements} elements: pooled over Cases instead"
    return Gate("match", r.name, float(count), float(limit), reason, vacuous=why)


def flip_limit(r: Figures) -> int:
    """The most elements that a right kernel may differ in from the emulation."""
    return clumped(r.seen, r.jitters, dispersion(r.flips_by_run), MATCH_RISK)


def dispersion(counts: Sequence[int]) -> float:
    """Variance over mean of the flip counts, at least 1: one shared error that flips a whole row clumps them."""
    mean = statistics.fmean(counts) if counts else 0.0
    if mean == 0:
        return 1.0
    return max(1.0, statistics.variance(counts) / mean) if len(counts) > 1 else 1.0


def clumped(seen: int, runs: int, clump: float, risk: float) -> int:
    """`most_flips` of counts that come in clumps of size `clump` (quasi-Poisson)."""
    return math.ceil(clump * most_flips(math.ceil(seen / clump), runs, risk))


def _bad_block(r: Figures) -> tuple[str, int, int, int] | None:
    """The worst slice along an axis, or contiguous tile, that differs too often: (where, differ, allowed, flips).

    A block fails beyond the Poisson quantile of its own flips, and beyond CLUMP times what one jitter moved in any
    block of its kind: a shared error that flips half of a row in one run flips another row's in the next.
    """
    kinds = r.blocks.found() if r.blocks else []
    total = sum(kind.differ.numel() for kind in kinds)
    clump = dispersion(r.flips_by_run)
    worst: tuple[float, str, int, int, int] | None = None
    for kind in kinds:
        differ, flips = kind.differ[kind.differ > 0], kind.flips[kind.differ > 0]
        seen, which = torch.unique(flips, return_inverse=True)
        most = torch.zeros_like(seen).scatter_reduce(0, which, differ, "amax")
        for flipped, inside in zip(seen.tolist(), most.tolist(), strict=True):
            if inside <= CLUMP * kind.most or (worst is not None and inside <= worst[0]):
                # Whatever the quantile, it could not be the worst.
                continue
            allowed = max(clumped(flipped, r.jitters, clump, MATCH_RISK / total), CLUMP * kind.most)
            excess = inside / allowed
            if excess > 1 and (worst is None or excess > worst[0]):
                index = int(torch.nonzero((kind.differ == inside) & (kind.flips == flipped))[0])
                worst = (excess, kind.label.format(index), inside, allowed, flipped)
    return None if worst is None else worst[1:]


def too_few(r: Figures) -> str:
    """Why a per-Case band or bias over this output means nothing, or ""."""
    if r.independent == 0:
        return "fewer than half of the values that round are distinct: one error many times over is no average"
    if r.independent < FEWEST:
        return f"{r.independent} independent errors, fewer than {FEWEST}: pooled over Cases instead"
    return ""


def _band(r: Figures) -> Gate:
    why = r.blind or too_few(r)
    if why:
        return _vacuous("band", r, why, r.ratio)
    standing = r.log_error
    width = max(math.log(MODEL), Z_LIMIT * standing.width)
    reason = (
        f"relL2 {r.relative:.3g} measured over {r.predicted:.3g} predicted by {standing.draws} noise draws of the "
        f"Contract; allowed: {Z_LIMIT:g} spreads of the same figure over the draws, at least a factor {MODEL:g} for "
        f"the noise model{off(r.emulation_share)}; above it something rounds that is not declared, below it a "
        "declared rounding is missing"
    )
    lower, upper = edges(r.emulation_share, width)
    return Gate("band", r.name, r.ratio, upper, reason, standing.spread, lower)


def edges(emulated: float, width: float) -> tuple[float, float]:
    """Lower and upper end of a two-sided band of a ratio, as wide again as the emulation itself is off."""
    return math.exp(-width) * math.sqrt(min(1.0, emulated)), math.exp(width) * math.sqrt(max(1.0, emulated))


def off(emulated: float) -> str:
    """What a two-sided band says of roundings that are not as large as predicted."""
    ratio = math.sqrt(emulated)
    return f", and the emulation itself, which is at {ratio:.3g}" if abs(ratio - 1.0) >= NOTABLE else ""


def _upper(r: Figures) -> Gate:
    why = r.blind or ("the oracle is FP64 itself: the ceiling judges" if r.grid == "fp64" else "")
    if why:
        return _vacuous("band", r, why, r.ratio)
    standing = r.log_error
    if too_few(r):
        limit = student_limit(MATCH_RISK, standing.draws - 1)
        allowed = f"Student's t at {MATCH_RISK:g}, as if all {r.elements} elements had one error"
    else:
        limit = math.exp(max(math.log(MODEL), Z_LIMIT * standing.width))
        allowed = f"{Z_LIMIT:g} spreads over the draws, at least a factor {MODEL:g} for the noise model"
    reason = (
        f"relL2 {r.relative:.3g} measured over {r.predicted:.3g} predicted by {standing.draws} noise draws of the "
        f"declared sum (sequential where the tree is unknown, at least ulp^2/12); one-sided, since products are often "
        f"exact; allowed: {allowed}"
    )
    spread = standing.spread if math.isfinite(standing.spread) else 0.0
    return Gate("band", r.name, r.ratio, limit, reason, spread)


def _bias(r: Figures) -> Gate:
    why = r.blind or too_few(r)
    if why:
        return _vacuous("bias", r, why, r.bias.z)
    draws, own = r.bias.draws, r.leaning.z if r.elements >= LEANING else 0.0
    reason = (
        f"sum of error * sign(truth), in spreads of the same sum over {draws} noise draws (shared roundings too); "
        f"Student's t puts {student_tail(Z_LIMIT, draws - 1):.2g} of right kernels beyond {Z_LIMIT:g}, and a "
        "truncation far beyond"
    )
    if r.elements >= LEANING:
        reason += f"; among {r.elements} elements the emulation's own {own:.3g} counts as no error"
    return Gate("bias", r.name, r.bias.z, max(own, 0.0) + Z_LIMIT, reason, r.bias.spread, min(own, 0.0) - Z_LIMIT)


def _cap(r: Figures, cap: float) -> Gate:
    value = math.nan if r.wrong else r.relative
    return Gate("cap", r.name, value, cap, "relL2 against the flat cap that the spec adds to its derived gates")
