"""The bitwise law: the same Case gives the same bits, output by output, as far as each one promises.

Vacuity comes first: could another order of summation have shown here at all? Then the repeat ladder is climbed until a
broken promise shows. The law is pure in (spec, case, profile): orders are seeded from the Case's hash, and a flip on a
device that runs programs in an order of its own is the finding, never retried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from numcheck.advice import advice, neighbours
from numcheck.case import Case, Fact
from numcheck.evidence import ADDENDS, WORKSPACE, Evidence
from numcheck.execute import Run
from numcheck.laws.law import Judged, Law, covered
from numcheck.laws.measured import everywhere, unjudged
from numcheck.oracle import CaseSpace, full_grid
from numcheck.order import Order, orders
from numcheck.profile import Profile
from numcheck.promise import Witness, decide, raced
from numcheck.repeat import (
    Enough,
    Step,
    Subject,
    compiled,
    dirty_memory,
    fresh_process,
    permuted,
    same_process,
    threads,
)
from numcheck.repeat_autograd import autograd_modes
from numcheck.repeat_cuda import busy_device, graph_replay, late_inputs, moved
from numcheck.sample import sample
from numcheck.spec import KernelSpec
from numcheck.vacuity import Proof, Terms, prove, record
from numcheck.verdict import ORDER, OutputVerdict, Status, Verdict, worst

NAME = "bitwise"
# A large Case makes torch split its work over threads, yet takes well under a second a run.
LARGE = 2**16
# A size that neither grid nor choices bound; prime and beyond one vector register, as odd sizes have the most teeth.
LARGE_SIZE = 257


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The Verdict of one Case: each output against its order promise.

    The slow rungs are climbed where profile.slow > 0; which Cases get such a profile is explore's to say.
    """
    blank = Verdict(spec.name, NAME, _claim(spec, case), {})
    nothing = unjudged(spec, case, profile, blank)
    if nothing is not None:
        return nothing
    drawn = sample(spec.oracle, case, device=profile.device)
    recorded = record(spec, drawn)
    subject = Subject.of(spec, drawn, profile.device, recorded.saved(spec, drawn))
    broken = subject.first.error or _nothing_ran(spec, case, subject.first)
    if broken:
        return replace(everywhere(spec, case, blank, Status.ERROR, broken), evidence=subject.first.evidence)
    proofs = prove(spec, case, recorded.terms, subject.first.evidence)
    steps: list[Step] = []
    outputs: dict[str, OutputVerdict] = {}
    for step in _ladder(subject, profile, proofs):
        steps.append(step)
        outputs = _decided(subject, proofs, steps)
        # A broken promise stands; what the other rungs would add is not worth a shrinking run's time.
        if step.error or not worst(v.status for v in outputs.values()).held:
            break
    if steps[-1].error:
        outputs = {name: _errored(v, steps[-1].error) for name, v in outputs.items()}
    known = neighbours(spec)
    return Verdict(
        spec.name,
        NAME,
        blank.claim,
        {name: _advised(subject, proofs.get(name), v, known) for name, v in outputs.items()},
        rungs=tuple(step.rung for step in steps),
        hashes=subject.hashes,
        evidence=subject.first.evidence,
        figures={"vacuity": {name: proof.to_json() for name, proof in proofs.items()}},
    )


def _claim(spec: KernelSpec, case: Case) -> str:
    promises = ", ".join(f"{name} {spec.contract.order_of(name, case)}" for name in spec.judged_for(case))
    return f"{spec.name} gives the same bits for the same Case{ORDER}{promises}"


def _nothing_ran(spec: KernelSpec, case: Case, run: Run) -> str:
    missing = [name for name in spec.judged_for(case) if name not in run.outputs]
    if missing:
        return f"returned no {', '.join(missing)}"
    if not spec.launches(case):
        return ""
    if spec.must_run and not run.evidence.launches:
        return "no kernel was seen running, though the spec says that this Case launches some"
    if not spec.must_run and not (run.evidence.launches or run.evidence.operators):
        return "no torch operator was seen running, though the spec says that this Case launches some"
    return ""


def _ladder(subject: Subject, profile: Profile, proofs: Mapping[str, Proof]) -> Iterator[Step]:
    """The rungs for this Case, cheap and general first; each is climbed when it is asked for."""
    dirty = max(1, profile.repeats // 2)
    # The dirty-memory rung repeats in this process too; on a device, where each repeat may differ, none is left out.
    yield same_process(subject, profile.repeats if profile.device == "cuda" else max(1, profile.repeats - dirty))
    yield permuted(subject, _orders(subject, profile, proofs), _enough(subject))
    yield dirty_memory(subject, range(1, 1 + dirty))
    yield autograd_modes(subject)
    if profile.device == "cuda":
        yield moved(subject, profile.repeats)
        yield busy_device(subject, profile.repeats)
        yield late_inputs(subject)
        yield graph_replay(subject, profile.repeats)
    if profile.slow > 0:
        yield threads(subject)
        yield fresh_process(subject)
        yield compiled(subject)


def _orders(subject: Subject, profile: Profile, proofs: Mapping[str, Proof]) -> tuple[Order, ...]:
    evidence, case = subject.first.evidence, subject.sample.case
    programs = max((math.prod(launch.grid or (1,)) for launch in evidence.launches), default=0)
    lanes = max((f.addends for f in evidence.footprints.values()), default=0)
    # Where nothing has three addends, or one writer each, no order is expected to show: one catches a surprise.
    several = [name for name, proof in proofs.items() if proof.addends >= ADDENDS]
    telling = any(subject.spec.contract.order_of(name, case) != "single" for name in several)
    return orders(case.key, max(programs, lanes), profile.orders if telling else 1)


def _enough(subject: Subject) -> Enough:
    """When flips settle the permuted rung: one broken promise, or nothing left but `any` outputs that have flipped."""
    case = subject.sample.case
    promises = {name: subject.spec.contract.order_of(name, case) for name in subject.spec.judged_for(case)}
    firm = [name for name, promise in promises.items() if promise != "any"]
    # A single output is proven by its map, and all repeats before and after this rung watch it too.
    watched = [name for name, promise in promises.items() if promise != "single"]
    return lambda flips: any(flips[name] for name in firm) or (bool(watched) and all(flips[name] for name in watched))


def _decided(subject: Subject, proofs: Mapping[str, Proof], steps: Sequence[Step]) -> dict[str, OutputVerdict]:
    """The status of each output, and of whatever else the measured map shows a race in (an input, the workspace)."""
    outputs = {name: decide(_witness(subject, proof, steps)) for name, proof in proofs.items()}
    shared = {n: f for n, f in subject.first.evidence.footprints.items() if f.races and n not in outputs}
    return {**outputs, **{name: raced(name, footprint) for name, footprint in shared.items()}}


def _witness(subject: Subject, proof: Proof, steps: Sequence[Step]) -> Witness:
    evidence: Evidence = subject.first.evidence
    output = proof.output
    return Witness(
        output,
        subject.spec.contract.order_of(output, subject.sample.case),
        proof,
        evidence.footprints.get(output),
        evidence.footprints.get(WORKSPACE),
        subject.first.outputs[output].numel(),
        evidence.backend,
        tuple(steps),
    )


def _errored(verdict: OutputVerdict, error: str) -> OutputVerdict:
    return verdict if verdict.status is Status.FAIL else OutputVerdict(Status.ERROR, error)


def _advised(
    subject: Subject, proof: Proof | None, verdict: OutputVerdict, terms_of: Callable[[Case], Terms]
) -> OutputVerdict:
    """A VACUOUS `fixed` promise says what would make it worth judging."""
    case = subject.sample.case
    if (
        proof is None
        or verdict.status is not Status.VACUOUS
        or subject.spec.contract.order_of(proof.output, case) != "fixed"
    ):
        return verdict
    return replace(verdict, why=f"{verdict.why}; {advice(subject.spec, case, proof, terms_of)}")


def large_cases(spec: KernelSpec) -> tuple[Case, ...]:
    """For each data dtype the largest Case of the named grid that stays small enough, with values spread out.

    They run before the grid; threads have work to share there, so explore gives them the slow rungs.
    """
    space = spec.oracle.space
    facts = {name: values[0] for name, values in space.facts.items()}
    rows = full_grid({name: _sizes(space, name) for name in space.sizes})
    cases = [Case.from_json({"sizes": row, "dtype": dtype, "facts": facts}) for dtype in spec.dtypes for row in rows]
    fitting = [c for c in cases if space.work(c) <= LARGE and spec.illegal(c) is None and spec.launches(c)]
    by_dtype = ([c for c in fitting if c.dtype == dtype] for dtype in spec.dtypes)
    return tuple(max(some, key=space.work) for some in by_dtype if some)


def _sizes(space: CaseSpace, name: str) -> tuple[Fact, ...]:
    smallest, largest = space.sizes[name]
    return space.grid.get(name) or space.choices.get(name) or (min(largest, max(smallest, LARGE_SIZE)),)


def pool(spec: KernelSpec, judged: Judged) -> Verdict | None:
    """Over all Cases of a generated test: a `fixed` promise of which every Case was VACUOUS fails."""
    names = covered(spec, judged)
    outputs = {name: _pooled(spec, name, judged) for name in names}
    claim = f"{spec.name}: each output promised in a fixed order has a Case that could have shown another order"
    counts = {name: _counts(name, judged) for name in names}
    return Verdict(spec.name, NAME, claim, outputs, figures={"counts": counts}, pooled=True)


def _counts(output: str, judged: Judged) -> dict[str, int]:
    """Status name -> Cases that showed it."""
    return dict(Counter(v.outputs[output].status.name for _, v in judged if output in v.outputs))


def _pooled(spec: KernelSpec, output: str, judged: Judged) -> OutputVerdict:
    counts = _counts(output, judged)
    told = ", ".join(f"{status} {count}" for status, count in sorted(counts.items())) or "no Case"
    seen = {Status[name] for name in counts} - {Status.UNAVAILABLE}
    for status in (Status.ERROR, Status.FAIL):
        if status in seen:
            return OutputVerdict(status, told)
    fixed = any(spec.contract.order_of(output, case) == "fixed" for case, v in judged if output in v.outputs)
    if seen == {Status.VACUOUS} and fixed:
        last = next(v.outputs[output].why for _, v in reversed(judged) if output in v.outputs)
        return OutputVerdict(Status.FAIL, f"promised fixed, yet no Case could have differed ({told}): {last}")
    judgeable = seen - {Status.VACUOUS} or seen
    return OutputVerdict(worst(judgeable) if judgeable or not counts else Status.UNAVAILABLE, told)


BITWISE = Law(
    NAME,
    "same Case, same bits, as integers, for each output as far as its order promise goes",
    judge=judge,
    pool=pool,
    cases=large_cases,
)
