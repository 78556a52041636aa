"""The edges law: boundary shapes, memory that must not matter, and arguments that must be refused.

A Case holds if every output comes back in its declared form and within its radius, the guards found nothing (inputs
unchanged, nothing written outside the outputs, nothing left unwritten), poison in margins and gaps does not show, and
each wrong argument raises a clear error before any kernel is launched.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from numcheck.case import DTYPES, Case
from numcheck.execute import Run, execute
from numcheck.far import REACH, far_rows, promised
from numcheck.judge import malformed
from numcheck.laws.arguments import Wrong, complaint, message_of, wrong_arguments, wrong_scalars
from numcheck.laws.ignored import FILLS, filled, ignored, oracle_reads
from numcheck.laws.law import Law
from numcheck.laws.measured import everywhere, found, hashes, saved, saved_alone, unavailable
from numcheck.laws.relation import Held, merged, same_bits, same_values, whole, within
from numcheck.profile import Profile
from numcheck.reading import Radius, Truth, nearest, read
from numcheck.sample import Sample, exact, sample
from numcheck.spec import KernelSpec
from numcheck.ulp import FORMATS, torch_dtype
from numcheck.unspecified import blank, unspecified
from numcheck.verdict import OutputVerdict, Status, Verdict

NAME = "edges"
# A size is doubled so often in search of one that a spec refuses: 2^20 in place of 1 is a tensor of 4 MiB.
MOST_DOUBLINGS = 20


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The Verdict of one Case, boundary or not; a Case outside the promise has to be refused where the spec says so."""
    shell = Verdict(spec.name, NAME, f"{spec.name} is right at its edges and touches nothing else", {})
    absent = unavailable(spec, case, profile, shell)
    if absent is not None:
        return absent
    illegal = spec.illegal(case)
    if illegal is not None:
        return _refused(spec, case, profile, illegal, shell)
    drawn = sample(spec.oracle, case, device=profile.device)
    run = execute(spec, drawn, device=profile.device, saved=saved_alone(spec, drawn))
    if run.error:
        return everywhere(spec, case, shell, Status.ERROR, run.error, run)
    forms = {name: malformed(spec, case, run.outputs, name) for name in spec.judged_for(case)}
    outputs = {
        name: OutputVerdict(Status.FAIL, why) if why else OutputVerdict(Status.PASS) for name, why in forms.items()
    }
    if any(forms.values()):
        return Verdict(spec.name, NAME, shell.claim, found(run, outputs), evidence=run.evidence)
    truth = _Truth.of(spec, drawn, run)
    held = truth.right(run)
    refusals: dict[Wrong, str] = {}
    if case not in spec.oracle.space.once:
        masks = ignored(spec.oracle, drawn)
        junk = {what: filled(drawn, masks, fill) for fill, what in enumerate(FILLS)} if masks else {}
        for changed in junk.values():
            doubt = oracle_reads(spec.oracle, drawn, changed)
            if doubt:
                return everywhere(spec, case, shell, Status.ERROR, doubt, run)
        held += _unpoisoned(spec, drawn, run, profile)
        for what, changed in junk.items():
            held += _undisturbed(truth, run, changed, f"{', '.join(masks)} filled with {what}", profile)
        held += _far(truth, run, profile)
        refusals = _refusals(spec, drawn, run, profile)
    for result in held:
        if not result.gate.held:
            name = result.gate.output
            outputs[name] = merged(outputs[name], OutputVerdict(Status.FAIL, result.gate.reason, result.where))
    for wrong, why in refusals.items():
        if why:
            failed = OutputVerdict(Status.FAIL, f"{wrong}: {why}")
            outputs = {name: merged(v, failed) for name, v in outputs.items()}
    return Verdict(
        spec.name,
        NAME,
        shell.claim,
        found(run, outputs),
        gates=tuple(h.gate for h in held),
        hashes=hashes(run),
        evidence=run.evidence,
        figures={"wrong_arguments": len(refusals), "accepted": sum(bool(why) for why in refusals.values())},
    )


@dataclass(frozen=True)
class _Truth:
    """What the outputs of one Sample have to be: truth and radius, and which elements the problem leaves open."""

    spec: KernelSpec
    drawn: Sample
    exact: Mapping[str, Tensor]
    radius: Mapping[str, Tensor]
    left_open: Mapping[str, Tensor]

    @classmethod
    def of(cls, spec: KernelSpec, drawn: Sample, run: Run) -> _Truth:
        """Read with the Run's own saved outputs."""
        given, kept, left_open = drawn.exact(), saved(spec, run), unspecified(spec.oracle, drawn)
        where = nearest(drawn)
        truth = read(spec.oracle, Truth(), given, kept, where)
        radius = read(spec.oracle, Radius(spec.contract.policy(drawn.case)), given, kept, where)
        return cls(spec, drawn, blank(truth, left_open), blank(radius, left_open), left_open)

    def right(self, run: Run) -> list[Held]:
        """Each output against the truth, within its radius; integers and bools exactly."""
        reason = "within the radius of the exact result, which is what the Contract allows in the worst case"
        return [self.near(name, run.outputs[name], reason) for name in self.spec.judged_for(self.drawn.case)]

    def near(self, name: str, got: Tensor, reason: str) -> Held:
        """One output against its truth."""
        got = self.closed(name, got)
        if self.spec.oracle.result(name).whole:
            return same_values(name, whole(got), whole(self.exact[name]), "integers and bools are exact or wrong")
        huge = FORMATS[self.spec.oracle.result(name).dtype_for(self.drawn.case)].huge
        return within(name, exact(got), self.exact[name], self.radius[name], reason, huge=huge)

    def closed(self, name: str, got: Tensor) -> Tensor:
        """An output, zero where the problem leaves an element open."""
        return blank({name: got}, self.left_open)[name]


def _unpoisoned(spec: KernelSpec, drawn: Sample, run: Run, profile: Profile) -> list[Held]:
    """The same bits whether margins and gaps of the inputs hold NaN or huge numbers (integers: 1 or 0, both valid)."""
    other = execute(spec, drawn.map(lambda _, t: _filled(t)), device=profile.device, saved=saved_alone(spec, drawn))
    held = []
    for name in spec.judged_for(drawn.case):
        got, expected = other.outputs.get(name), run.outputs[name]
        reason = "memory between and around the inputs' elements does not matter: huge numbers there change nothing"
        if got is None:
            reason = f"{reason}, but then it raised {other.error}"
        if got is not None and spec.contract.order_of(name, drawn.case) == "any":
            got, expected = _nonfinite(got), _nonfinite(expected)
        held.append(same_bits(name, got if got is not None else expected.new_empty(0), expected, reason))
    return held


def _undisturbed(truth: _Truth, run: Run, junk: Sample, what: str, profile: Profile) -> list[Held]:
    """The same bits with junk in elements that must not matter; in any order, the same truth."""
    spec, case = truth.spec, truth.drawn.case
    other = execute(spec, junk, device=profile.device, saved=saved_alone(spec, truth.drawn))
    held = []
    for name in spec.judged_for(case):
        reason = f"elements that must not matter do not: {what}, the same bits"
        got = other.outputs.get(name)
        if got is None or got.shape != run.outputs[name].shape:
            missing = other.error or "another shape came back"
            held.append(same_bits(name, run.outputs[name].new_empty(0), run.outputs[name], f"{reason}, but {missing}"))
        elif spec.contract.order_of(name, case) == "any":
            held.append(truth.near(name, got, f"{reason}, or for any order within the radius of the same truth"))
        else:
            held.append(same_bits(name, truth.closed(name, got), truth.closed(name, run.outputs[name]), reason))
    return held


def _far(truth: _Truth, run: Run, profile: Profile) -> list[Held]:
    """Interpreted kernels find rows beyond what an offset in 32 bits reaches, or refuse them before a launch."""
    spec, case = truth.spec, truth.drawn.case
    if not promised(spec) or run.evidence.backend != "interpreter":
        return []
    apart = far_rows(truth.drawn)
    if apart is None:
        return []
    other = execute(spec, apart, device=profile.device, saved=saved_alone(spec, truth.drawn))
    if other.error and not other.evidence.launches:
        return []
    reason = f"the last row of each matrix {REACH:,} elements or more from its first: within the radius all the same"
    held = []
    for name in spec.judged_for(case):
        got = other.outputs.get(name)
        if got is None or got.shape != run.outputs[name].shape:
            missing = other.error or "another shape came back"
            held.append(same_bits(name, run.outputs[name].new_empty(0), run.outputs[name], f"{reason}, but {missing}"))
        else:
            held.append(truth.near(name, got, reason))
    return held


def _nonfinite(tensor: Tensor) -> Tensor:
    # In any order bits may differ, but what is finite stays so; the radius of `_right` bounds the values of both.
    return torch.isfinite(tensor)


def _filled(tensor: Tensor) -> Tensor:
    """A tensor with the largest finite number, instead of NaN, wherever its storage holds no element of it.

    Integers get 0 instead of 1: an index that is read there must show, and not take the device down.
    """
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    huge = torch.finfo(tensor.dtype).max if tensor.dtype.is_floating_point else 0
    whole_storage = torch.full((length,), huge, dtype=tensor.dtype, device=tensor.device)
    return whole_storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(tensor)


def _refusals(spec: KernelSpec, drawn: Sample, run: Run, profile: Profile) -> dict[Wrong, str]:
    """Each wrong argument, and what was wrong with how the kernel took it ("" where it was refused clearly)."""
    outcomes: dict[Wrong, str] = {}
    halves = [spec.but(vjp=None)] if spec.forward else []
    halves += [spec.but(forward=None)] if spec.vjp else []
    for half in halves:
        name = "forward" if half.forward else "vjp"
        scalars = wrong_scalars(spec.oracle, drawn, name) if spec.contract.refuses else ()
        for wrong in (*wrong_arguments(spec.oracle, drawn, name), *scalars):
            bad = execute(half, wrong.sample, device=profile.device, saved=None if half.forward else dict(run.saved))
            outcomes[wrong] = complaint(wrong, bad)
    return outcomes


def _refused(spec: KernelSpec, case: Case, profile: Profile, illegal: str, shell: Verdict) -> Verdict:
    """A Case outside the promise raises before anything is launched, where the Contract says that it is refused."""
    if not spec.contract.refuses:
        return everywhere(spec, case, shell, Status.VACUOUS, f"outside the promise: {illegal}")
    drawn = sample(spec.oracle, case, device=profile.device)
    run = execute(spec, drawn, device=profile.device, saved=_unread(spec, case, profile))
    if not run.error:
        return everywhere(
            spec, case, shell, Status.FAIL, f"the Contract refuses this Case ({illegal}), but it ran", run
        )
    if run.evidence.launches:
        ran = ", ".join(launch.kernel for launch in run.evidence.launches)
        return everywhere(
            spec, case, shell, Status.FAIL, f"refused ({illegal}), but only after {ran} was launched", run
        )
    return everywhere(spec, case, shell, Status.PASS, f"refused: {message_of(run.error)}", run)


def _unread(spec: KernelSpec, case: Case, profile: Profile) -> dict[str, Tensor] | None:
    """Saved outputs for a backward alone that is to refuse: zeros, since the oracle has no answer for such a Case."""
    if spec.forward is not None:
        return None
    outputs = (spec.oracle.result(name) for name in spec.oracle.saved_for(case))
    return {
        o.name: torch.zeros(o.shape(case), dtype=torch_dtype(o.dtype_for(case))).to(profile.device) for o in outputs
    }


def cases(spec: KernelSpec) -> tuple[Case, ...]:
    """The problem's edges and what runs once, then for a spec that refuses, sizes and a dtype that it does not take."""
    space = spec.oracle.space
    edges = tuple(case for case in (*space.edges, *space.once) if spec.illegal(case) is None)
    if not spec.contract.refuses:
        return edges
    base = next((case for case in edges if spec.launches(case)), None)
    if base is None:
        return edges
    strangers = {name: _stranger(values) for name, values in space.choices.items()}
    refused = [base.but(**{name: value}) for name, value in strangers.items()]
    # One tensor in another dtype contradicts the others; all of them together contradict nothing but the promise.
    refused += [base.but(dtype=dtype) for dtype in DTYPES if dtype not in spec.dtypes][:1]
    refused += _beyond(spec, base)
    # What is no Case of the problem either has no tensors to refuse.
    own = (case for case in refused if space.legal(case) is None)
    return (*edges, *(case for case in own if spec.illegal(case) is not None))


def _beyond(spec: KernelSpec, base: Case) -> list[Case]:
    """For each size, the first of its doublings that the promise leaves out, if there is one within MOST_DOUBLINGS."""
    found = []
    for name, size in base.sizes:
        larger = (base.but(**{name: max(1, size) << k}) for k in range(1, MOST_DOUBLINGS + 1))
        found += list(itertools.islice((c for c in larger if spec.illegal(c) is not None), 1))
    return found


def _stranger(values: tuple[int, ...]) -> int:
    """The smallest size of at least 1 that is not among the allowed ones."""
    return next(size for size in range(1, max(values) + 2) if size not in values)


EDGES = Law(
    NAME,
    "boundary shapes are right; guards find nothing; poison does not matter; wrong arguments raise before a launch",
    judge=judge,
    cases=cases,
)
