"""The cancellation law: a small exact result made of large terms survives, where the Contract promises it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from numcheck.case import Case
from numcheck.gate import Gate
from numcheck.judge import malformed, measure
from numcheck.laws.law import Law
from numcheck.laws.measured import everywhere, found, hashes, measured, named_in, saved, unanswered, where
from numcheck.reading import Recording, nearest, read
from numcheck.verdict import OutputVerdict, Status, Verdict, accuracy_status

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.oracle import Cancellation
    from numcheck.profile import Profile
    from numcheck.residual import Residual
    from numcheck.sample import Sample
    from numcheck.spec import KernelSpec

NAME = "cancellation"
# A result cancels where it is at most a sixteenth of its terms' size: four leading bits lost or more.
DEPTH = 2.0**-4
NONE_CANCELS = f"no nonzero element is as small as {DEPTH:g} of its terms"
# A result survives where its error stays below half of it: sign and magnitude are then still its own.
SURVIVES = 0.5
# The oracle and a named exact result may differ by FP64's rounding of the terms, with room for a few operations.
ORACLE = 2.0**-50
# Sizes for the Cases that this law adds: enough elements that some row cancels deep, few enough to be cheap.
LONGEST = 64


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The cancellation verdict of one Case; a named cancellation brings its own values."""
    claim = f"{spec.name}: where the result is at most {DEPTH:g} of its terms' size, it survives their cancellation"
    blank = Verdict(spec.name, NAME, claim, {})
    named = named_in(spec, case)
    walked = measured(spec, case, profile, blank)
    if isinstance(walked, Verdict):
        return walked
    truth = walked.readings.truth
    silent = unanswered(walked, [n for n in spec.judged_for(case) if bool(torch.isnan(truth[n]).any())], blank)
    if silent is not None:
        return silent
    sizes = _term_sizes(spec, walked.sample, saved(spec, walked.run))
    expected = _exact(named)
    doubt = _disagrees(expected, truth, sizes)
    if doubt:
        return everywhere(spec, case, blank, Status.ERROR, doubt, walked.run)
    gates: list[Gate] = []
    outputs: dict[str, OutputVerdict] = {}
    returned = walked.outputs
    for name in spec.judged_for(case):
        complaint = malformed(spec, case, returned, name)
        if complaint:
            outputs[name] = OutputVerdict(Status.FAIL, complaint)
            continue
        if spec.oracle.result(name).whole:
            outputs[name] = OutputVerdict(Status.VACUOUS, f"{NONE_CANCELS}: integers do not round")
            continue
        r = measure(spec, case, name, returned[name], walked.readings)
        gate = survival(r, sizes.get(name), expected.get(name))
        gates.append(gate)
        status = accuracy_status([gate])
        outputs[name] = status if status.status.held else OutputVerdict(status.status, status.why, where(r.figures))
    outputs = found(walked.run, outputs)
    # Outputs of which no element cancels say nothing, unless all of them are such; what is no sum never says anything.
    telling = {name: o for name, o in outputs.items() if not o.why.startswith(NONE_CANCELS)}
    sums = {name: o for name, o in outputs.items() if name in sizes}
    return Verdict(
        spec.name,
        NAME,
        claim,
        telling or sums or outputs,
        gates=tuple(gates),
        hashes=hashes(walked.run),
        evidence=walked.run.evidence,
        figures={"named": named.name} if named else {},
    )


def survival(r: Residual, size: Tensor | None, named: Tensor | None = None) -> Gate:
    """The relative error of the cancelling element that is worst for its radius.

    size: sum of |terms| of each element, where the output is a sum. named: an exact result; its nonzero elements are
    judged whatever the size of their terms.
    """
    cancels = torch.zeros(r.truth.shape, dtype=torch.bool)
    if size is not None:
        cancels = r.truth.abs() <= DEPTH * size
    if named is not None:
        cancels = cancels | (named != 0)
    cancels = cancels & (r.truth != 0) & torch.isfinite(r.truth)
    if not bool(cancels.any()):
        return _vacuous(r, NONE_CANCELS)
    relative = r.radius / r.truth.abs()
    promised = cancels & (relative < SURVIVES)
    if not bool(promised.any()):
        least = float(relative[cancels].min())
        return _vacuous(r, f"this Contract does not promise survival: its radius is {least:.3g} of the exact result")
    error = (r.got - r.truth).abs()
    excess = torch.where(promised, error / r.radius, torch.full_like(error, -math.inf))
    excess[promised & (error == 0)] = 0.0
    excess[promised & ~torch.isfinite(r.got)] = math.inf
    index = int(excess.flatten().argmax())
    exact, radius = float(r.truth.flatten()[index]), float(r.radius.flatten()[index])
    reason = (
        f"relative error against the exact result {exact:.9g}, of {int(promised.sum())} cancelling element(s) the "
        f"worst for its limit, which is the Contract's radius there, {radius:.3g}, over the exact result"
    )
    value = float(error.flatten()[index]) / abs(exact)
    return Gate("ceiling", r.name, value, radius / abs(exact), reason)


def cases(spec: KernelSpec) -> tuple[Case, ...]:
    """The oracle's named cancellations, and a cancelling Case of moderate size for each dtype."""
    named = [c.case for c in spec.oracle.cancellations]
    drawn = [c for dtype in spec.dtypes for c in _moderate(spec, dtype)]
    return tuple(case for case in (*named, *drawn) if spec.illegal(case) is None)


def _moderate(spec: KernelSpec, dtype: str) -> list[Case]:
    space = spec.oracle.space
    if "cancelling" not in space.regimes:
        return []
    sizes = {name: max(low, min(high, LONGEST)) for name, (low, high) in space.sizes.items()}
    sizes |= {name: values[len(values) // 2] for name, values in space.choices.items()}
    facts = {name: values[0] for name, values in space.facts.items()}
    drawn = Case(tuple(sizes.items()), dtype, "cancelling", facts=tuple(facts.items()))
    return [drawn.but(seed=seed) for seed in range(2)]


def _term_sizes(spec: KernelSpec, made: Sample, kept: dict[str, Tensor] | None) -> dict[str, Tensor]:
    """Output -> sum of |terms| of each element, for the outputs that are sums."""
    recording = Recording()
    truth = read(spec.oracle, recording, made.exact(), kept, nearest(made))
    found: dict[str, Tensor] = {}
    for name, addends in recording.terms.items():
        size = addends.size().cpu()
        # Axes of length 1 do not count: a row times its own matrix makes (rows, 1, columns) of an output's elements.
        if name in truth and _long(size) == _long(truth[name]):
            found[name] = size.reshape(truth[name].shape)
    return found


def _long(tensor: Tensor) -> list[int]:
    return [n for n in tensor.shape if n != 1]


def _exact(named: Cancellation | None) -> dict[str, Tensor]:
    given: dict[str, Any] = dict(named.exact) if named else {}
    return {name: torch.as_tensor(values, dtype=torch.float64) for name, values in given.items()}


def _disagrees(expected: dict[str, Tensor], truth: dict[str, Tensor], sizes: dict[str, Tensor]) -> str:
    """Where the oracle's truth is not the exact result that a named cancellation states, or ""."""
    for name, exact in expected.items():
        if exact.shape != truth[name].shape:
            return f"exact {name} has shape {tuple(exact.shape)}, the oracle's has {tuple(truth[name].shape)}"
        room = ORACLE * sizes.get(name, exact.abs())
        if bool(((exact - truth[name]).abs() > room).any()):
            got, stated = truth[name].flatten().tolist(), exact.flatten().tolist()
            return f"the oracle gives {name}={got}, but the exact result is stated as {stated}"
    return ""


def _vacuous(r: Residual, why: str) -> Gate:
    return Gate("ceiling", r.name, 0.0, math.inf, why, vacuous=why)


CANCELLATION = Law(
    NAME,
    "A small exact result made of large terms survives, where the Contract promises it.",
    judge,
    cases=cases,
)
