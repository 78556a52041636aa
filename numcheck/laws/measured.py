"""What laws share: why a Case is not judged, one status for every output, a Case walked through run and readings."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from numcheck.capability import Unavailable
from numcheck.execute import Run, execute
from numcheck.reading import Readings, Truth, nearest, readings
from numcheck.reading.slices import upcast
from numcheck.sample import Sample, exact, sample
from numcheck.stream import Streamed, streamed
from numcheck.ulp import digest
from numcheck.unspecified import blank as blanked
from numcheck.unspecified import blank_readings, unspecified
from numcheck.vacuity import Recorded, record
from numcheck.verdict import OutputVerdict, Status, Verdict

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.case import Case
    from numcheck.figures import Figures
    from numcheck.oracle import Cancellation
    from numcheck.profile import Profile
    from numcheck.spec import KernelSpec

# Jittered emulations behind a match limit. With none of them flipping anything, a right kernel flips more than 6
# elements (16 jitters) or 8 (8) with a chance below 1e-8; among more than SMALL elements that is nothing.
JITTERS_SMALL, JITTERS_LARGE, SMALL = 16, 8, 16_384


@dataclass(frozen=True)
class Measured:
    """One Run to be held beside the readings of its Contract, in parts or whole, when they are asked for.

    Every element that the problem leaves open is zero in readings and outputs alike.
    """

    spec: KernelSpec
    sample: Sample
    run: Run
    draws: int

    @cached_property
    def left_open(self) -> Mapping[str, Tensor]:
        """Masks of the elements that the problem leaves open."""
        return unspecified(self.spec.oracle, self.sample)

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """The Run's outputs, open elements zero like those of the readings."""
        return blanked(self.run.outputs, self.left_open)

    @cached_property
    def streamed(self) -> Streamed:
        """The figures of each output; no reading is ever held whole."""
        return streamed(
            self.spec,
            self.sample,
            self.outputs,
            saved=saved(self.spec, self.run),
            draws=self.draws,
            jitters=_jitters(self.spec, self.sample.case),
            device=nearest(self.sample),
            left_open=self.left_open,
        )

    @cached_property
    def readings(self) -> Readings:
        """Truth, emulation and worst case whole, for what looks at single elements; nothing here asks for a spread."""
        spec, case = self.spec, self.sample.case
        policy, kept = spec.contract.policy(case), saved(spec, self.run)
        read = readings(spec.oracle, policy, self.sample, draws=0, saved=kept, jitters=0)
        return blank_readings(read, self.left_open)


def named_in(spec: KernelSpec, case: Case) -> Cancellation | None:
    """The named cancellation whose Case this is, or None."""
    return next((c for c in spec.oracle.cancellations if c.case == case), None)


def measured(spec: KernelSpec, case: Case, profile: Profile, blank: Verdict) -> Measured | Verdict:
    """The Run of `case`, or the verdict (made from `blank`) where there is nothing to judge.

    A named cancellation's Case has that cancellation's values.
    UNAVAILABLE where the spec cannot run here, VACUOUS for a Case outside its promise, ERROR where the kernel raised.
    """
    nothing = unjudged(spec, case, profile, blank)
    if nothing is not None:
        return nothing
    named = named_in(spec, case)
    made = sample(spec.oracle, case, device=profile.device, values=named.values if named else None)
    run = execute(spec, made, device=profile.device, saved=saved_alone(spec, made))
    if run.error:
        return everywhere(spec, case, blank, Status.ERROR, run.error, run)
    return Measured(spec, made, run, profile.draws)


def unanswered(walked: Measured, silent: Sequence[str], blank: Verdict) -> Verdict | None:
    """ERROR where the oracle has no answer, a NaN in the truth of `silent`, although every input is finite."""
    if not silent or not all(bool(torch.isfinite(t).all()) for t in walked.sample.exact_tensors().values()):
        return None
    oracle, names = walked.spec.oracle.name, ", ".join(silent)
    why = f"oracle {oracle} gives NaN in {names} though every input is finite: it cannot judge"
    return everywhere(walked.spec, walked.sample.case, blank, Status.ERROR, why, walked.run)


def redrawn(walked: Measured, draws: int) -> Measured:
    """The same Run beside readings with `draws` noise draws; the kernel does not run again."""
    return replace(walked, draws=draws)


def saved_alone(spec: KernelSpec, drawn: Sample) -> dict[str, Tensor] | None:
    """Saved outputs for a spec without a forward: the oracle's, rounded once. None where its own forward makes them."""
    if spec.forward is not None or not spec.oracle.saved:
        return None
    where = nearest(drawn)
    if where == "cpu":
        return record(spec, drawn).saved(spec, drawn)
    # Neither its VJP nor the terms of its sums are asked for.
    truth, given = Truth(), {name: upcast(t, where) for name, t in drawn.tensors.items()}
    forward = spec.oracle.forward(truth, **spec.oracle.for_forward({**given, **drawn.scalars}))
    return Recorded({name: truth.leave(t).cpu() for name, t in forward.items()}, {}).saved(spec, drawn)


def saved(spec: KernelSpec, run: Run) -> dict[str, Tensor] | None:
    """The kernel's own saved outputs, upcast exactly, for readings of its VJP.

    None where it saves nothing, and where the spec asks to be judged with the readings' own.
    """
    if spec.saved == "recomputed":
        return None
    return {name: exact(t) for name, t in run.saved.items()} or None


def _jitters(spec: KernelSpec, case: Case) -> int:
    elements = max((math.prod(spec.oracle.result(name).shape(case)) for name in spec.judged_for(case)), default=0)
    return JITTERS_SMALL if elements <= SMALL else JITTERS_LARGE


def unjudged(spec: KernelSpec, case: Case, profile: Profile, blank: Verdict) -> Verdict | None:
    """UNAVAILABLE where `spec` cannot run here, VACUOUS for a Case outside its promise; None for one to be judged."""
    absent = unavailable(spec, case, profile, blank)
    if absent is not None:
        return absent
    illegal = spec.illegal(case)
    if illegal is None and not spec.judged_for(case):
        illegal = "this Case has none of the outputs that the spec computes"
    return None if illegal is None else everywhere(spec, case, blank, Status.VACUOUS, f"outside the promise: {illegal}")


def unavailable(spec: KernelSpec, case: Case, profile: Profile, blank: Verdict) -> Verdict | None:
    """UNAVAILABLE with the reason and what it needs; None where `spec` can run here."""
    capability = spec.available(profile.device)
    if not isinstance(capability, Unavailable):
        return None
    needs = f"; needs {capability.needs}" if capability.needs else ""
    return everywhere(spec, case, blank, Status.UNAVAILABLE, f"{capability.reason}{needs}")


def everywhere(
    spec: KernelSpec, case: Case, blank: Verdict, status: Status, why: str, run: Run | None = None
) -> Verdict:
    """`blank` with one status and reason for every output of `spec` in `case`."""
    outputs = {name: OutputVerdict(status, why) for name in spec.judged_for(case)}
    if run is None:
        return Verdict(blank.spec, blank.law, blank.claim, outputs)
    return Verdict(blank.spec, blank.law, blank.claim, outputs, hashes=hashes(run), evidence=run.evidence)


def hashes(run: Run) -> dict[str, str]:
    """Output -> digest of its raw bits."""
    return {name: digest(t) for name, t in run.outputs.items()}


def found(run: Run, outputs: dict[str, OutputVerdict]) -> dict[str, OutputVerdict]:
    """`outputs`, failed by what the guards found: a finding fails the outputs that it names, or else all of them."""
    for finding in run.findings:
        mentioned = re.findall(r"output (\w+)", finding)
        named = [name for name in outputs if name in mentioned]
        for name in named or tuple(outputs):
            old = outputs[name]
            why = f"{finding}; {old.why}" if old.why else finding
            outputs[name] = OutputVerdict(max(old.status, Status.FAIL), why, old.where)
    return outputs


def where(f: Figures) -> str:
    """The worst element of an output, as "tensor got= expected= at index"."""
    worst = f.worst
    if worst is None:
        return ""
    return (
        f"{f.name} got={worst.got!r} expected={worst.emulation!r} at {list(worst.index)} "
        f"(exact {worst.truth!r}, radius {worst.radius:.3g})"
    )
