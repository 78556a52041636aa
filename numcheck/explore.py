"""Explore: one generated test, that is one law on one spec, from its first Case to the pooled verdict."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Protocol

from numcheck.capability import Unavailable
from numcheck.case import Case
from numcheck.draw import cost, grid
from numcheck.errors import RAISED, RecordsLost
from numcheck.laws.law import Law
from numcheck.profile import STOPPED, Profile
from numcheck.shrink import Emit, Finding, Starting, Trial, broken, draws, first_failure, ignore, minimise
from numcheck.spec import KernelSpec
from numcheck.verdict import Status, Verdict, across


class Others(Protocol):
    """Who judges Cases beside this process; see `numcheck.helpers`."""

    def ask(self, cases: Iterable[Case]) -> None:
        """Begin to judge `cases`, in their order."""

    def answer(self, case: Case) -> Verdict | None:
        """The verdict on a Case that was asked for, once it is there; None where it is for the caller to judge."""


class Nobody:
    """No others: `cases` are not even looked at."""

    def ask(self, cases: Iterable[Case]) -> None:
        return None

    def answer(self, case: Case) -> Verdict | None:
        return None


Ahead = Callable[[Law, KernelSpec, Profile], AbstractContextManager[Others]]


@dataclass(frozen=True)
class Missing:
    """What could not be judged here: why, what it needs (a tier or a package, "" where nobody said), how many Cases."""

    reason: str
    needs: str = ""
    cases: int = 0


@dataclass(frozen=True)
class Outcome:
    """What one generated test found.

    status: over all its Cases and the pooled verdict. findings: at most one failure of each kind (ERROR, FAIL),
    worst first. counts: status -> Cases, shrinking left out. pooled: the law's verdict over all Cases, None where
    it has none. reason: why the test as a whole is in this status, where no single Case says it. missing: what was
    UNAVAILABLE. notes: what a reader must know (which outputs depend on the order; drawing or shrinking cut short).
    """

    spec: str
    law: str
    status: Status
    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    pooled: Verdict | None = None
    reason: str = ""
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    seed: int = 0
    seconds: float = 0.0

    @property
    def judged(self) -> int:
        """How many Cases were judged, shrinking left out."""
        return sum(self.counts.values())

    @property
    def first(self) -> Case | None:
        """The Case that first showed the worst failure."""
        return self.findings[0].first if self.findings else None

    @property
    def shrunk(self) -> Case | None:
        """The smallest Case that shows the worst failure."""
        return self.findings[0].shrunk if self.findings else None

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the shrunk Case, or else the pooled one where that failed."""
        if self.findings:
            return self.findings[0].verdict
        return self.pooled if self.pooled is not None and not self.pooled.held else None


def _alone(law: Law, spec: KernelSpec, profile: Profile) -> AbstractContextManager[Others]:
    return nullcontext(Nobody())


def explore(
    law: Law,
    spec: KernelSpec,
    profile: Profile,
    emit: Emit = ignore,
    regressions: Sequence[Case] = (),
    *,
    starting: Starting = ignore,
    seed: int | None = None,
    ahead: Ahead = _alone,
) -> Outcome:
    """Judge `spec` by `law`: regression Cases, the law's own and the named grid, then Cases that Hypothesis draws.

    `emit(case, verdict, phase)` is given every judged Case, `starting(case, phase)` each before it runs. The grid
    runs whole, also past a failure; the first failure of each kind is then shrunk, and nothing further is drawn.
    `seed` of the draws: by default one fixed by the names of oracle and law where the profile is derandomised, so that
    kernels of one problem are tried on the same Cases, else a new one; the Outcome names it. `ahead`: who judges
    Cases beside this process: those that always run, and the draws of a derandomised profile.
    """
    start = time.monotonic()
    spec = spec.on(profile.device)
    seed = _seed(law, spec, profile) if seed is None else seed
    trial = Trial(law, spec, profile, emit, starting)
    try:
        capability = spec.available(profile.device)
        if isinstance(capability, Unavailable):
            missing = Missing(capability.reason, capability.needs)
            return Outcome(spec.name, law.name, Status.UNAVAILABLE, reason=capability.reason, missing=(missing,))
        named = tuple(_always(law, spec, profile, regressions))
        notes: tuple[str, ...] = ()
        with ahead(law, spec, replace(profile, slow=0)) as others:
            trial.answered = others.answer
            others.ask(case for _, case in named)
            _judge_named(trial, named)
            findings = [_shrunk(trial, case, seed) for case in _failures(trial)]
            if not findings and law.drawn:
                others.ask(draws(trial, profile.examples, seed))
                findings, notes = _draw(trial, seed)
    except RecordsLost:
        raise
    except RAISED as error:
        # The spec or oracle contradicts itself, one of its callables raised, or a law cannot list its own Cases.
        reason = broken(law, spec, error).outputs["*"].why
        return Outcome(spec.name, law.name, Status.ERROR, counts=trial.counts(), reason=reason, seed=seed)
    return _outcome(trial, findings, notes, seed, time.monotonic() - start)


def _seed(law: Law, spec: KernelSpec, profile: Profile) -> int:
    if not profile.derandomize:
        return secrets.randbits(32)
    return int.from_bytes(hashlib.sha256(f"{law.name}/{spec.oracle.name}".encode()).digest()[:4], "big")


def _always(law: Law, spec: KernelSpec, profile: Profile, regressions: Iterable[Case]) -> Iterator[tuple[str, Case]]:
    """The Cases that always run, with their phase."""
    yield from (("regression", case) for case in regressions if spec.illegal(case) is None)
    named = (*law.cases(spec), *(grid(spec, profile) if law.drawn else ()))
    # The cheapest first: what they show, a dear one need not be waited for.
    yield from (("grid", case) for case in sorted(named, key=cost))


def _judge_named(trial: Trial, named: Sequence[tuple[str, Case]]) -> None:
    """Judge the Cases that always run. The slow rungs are for the largest quarter, where threads have work."""
    large = sorted((case for _, case in named), key=cost, reverse=True)[: max(trial.profile.slow, len(named) // 4)]
    for phase, case in named:
        trial.verdict(case, phase, may_climb=case in large)
    held = [case for case in large if case in trial.judged and trial.judged[case].held]
    if trial.profile.slow and not trial.climbed and held:
        # Nothing was seen that could have differed here; another process still may.
        trial.climb(held[0], "grid")


def _failures(trial: Trial) -> list[Case]:
    """The first Case of each failing status, worst first."""
    first: dict[Status, Case] = {}
    for case, verdict in trial.judged.items():
        if not verdict.held:
            first.setdefault(verdict.status, case)
    return [first[status] for status in sorted(first, reverse=True)]


def _shrunk(trial: Trial, case: Case, seed: int) -> Finding:
    """The failure at `case` made smaller, where the law speaks of any Case and not of its own alone."""
    return minimise(trial, case, seed) if trial.law.drawn else Finding(case, case, trial.judged[case])


def _draw(trial: Trial, seed: int) -> tuple[list[Finding], tuple[str, ...]]:
    """Draw Cases within the time budget; the failure found, and what a reader must know of the drawing."""
    profile, before = trial.profile, len(trial.judged)
    trial.allow(profile.seconds)
    found = first_failure(trial, profile.examples, seed)
    if found is not None:
        return [minimise(trial, found, seed)], ()
    if trial.unjudged:
        drawn = len(trial.judged) - before
        return [], (f"{STOPPED}{profile.seconds:g} s, after {drawn} of up to {profile.examples} Cases",)
    return [], ()


def _outcome(trial: Trial, findings: Sequence[Finding], notes: Sequence[str], seed: int, seconds: float) -> Outcome:
    late = [
        f"shrinking stopped at its {trial.profile.shrinking:g} s; a smaller failing Case may exist"
        for f in findings
        if not f.complete
    ]
    pooled, status, reason = _decide(trial)
    space = trial.spec.oracle.space
    return Outcome(
        trial.spec.name,
        trial.law.name,
        status,
        tuple(findings),
        trial.counts(),
        pooled,
        reason,
        _missing(trial),
        (*_dependent(trial), *notes, *late, *((space.note,) if space.note else ())),
        seed,
        seconds,
    )


def _decide(trial: Trial) -> tuple[Verdict | None, Status, str]:
    """The pooled verdict, the status of the whole, and why where no Case says it."""
    if not trial.judged:
        return None, Status.ERROR, "no Case was judged: none of the grid, of the law's own or drawn was legal"
    status = across(trial.judged.values())
    try:
        pooled = trial.law.pool(trial.spec, tuple(trial.judged.items()))
    except RAISED as error:
        pooled = broken(trial.law, trial.spec, error)
    if pooled is not None and not pooled.held:
        status = max(status, pooled.status)
    return pooled, status, _why(trial, status)


def _why(trial: Trial, status: Status) -> str:
    """Where nothing was proven, the reason that most outputs gave."""
    if status not in (Status.VACUOUS, Status.UNAVAILABLE):
        return ""
    reasons = Counter(o.why for v in trial.judged.values() for o in v.outputs.values() if o.status == status and o.why)
    return reasons.most_common(1)[0][0] if reasons else ""


def _dependent(trial: Trial) -> tuple[str, ...]:
    """A note that names the outputs whose bits depended on the order, as was promised; none where none did."""
    outputs = (item for verdict in trial.judged.values() for item in verdict.outputs.items())
    # A dict keeps the order of the outputs and names each once.
    names = dict.fromkeys(name for name, output in outputs if output.status == Status.ORDER_DEPENDENT)
    return (f"ORDER_DEPENDENT, as promised: {', '.join(names)}",) if names else ()


def _missing(trial: Trial) -> tuple[Missing, ...]:
    """What was UNAVAILABLE, with how many Cases each reason cost."""
    tally: Counter[tuple[str, str]] = Counter()
    for verdict in trial.judged.values():
        needs = str(verdict.figures.get("needs", ""))
        tally.update({(o.why, needs) for o in verdict.outputs.values() if o.status == Status.UNAVAILABLE})
    return tuple(Missing(reason, needs, cases) for (reason, needs), cases in tally.items())
