"""Shrink: the smallest Case that fails like a given one, found by a pure, cached predicate."""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from numcheck.case import Case
from numcheck.draw import bounded, cases, search, steer
from numcheck.errors import InvalidCase
from numcheck.laws.law import Law
from numcheck.profile import Profile
from numcheck.spec import KernelSpec
from numcheck.verdict import OutputVerdict, Status, Verdict

# emit(case, verdict, phase): a judged Case; starting(case, phase): one that is about to be judged.
Emit = Callable[[Case, Verdict, str], None]
Starting = Callable[[Case, str], None]

# Draws of a bounded search. Seven of eight are the failing Case itself, so that missing it in all of them has a
# chance of 8^-64; the search ends with the first failure, and shrinking then has a budget of its own (seconds).
DRAWS = 64


# Seeds tried for a smaller Case before it counts as holding, in the last round: an order that shows in two of three
# data sets is then missed once in 27 times instead of once in three.
SEEDS = 3


def _ignore(*row: object) -> None:
    return None


@dataclass(frozen=True)
class Likeness:
    """What a smaller failure must share with the first: its status, no further output, and an error's first words."""

    status: Status
    outputs: frozenset[str]
    errors: frozenset[str] = frozenset()

    @classmethod
    def of(cls, verdict: Verdict) -> Likeness:
        """The likeness of a failing verdict."""
        bad = {name: v for name, v in verdict.outputs.items() if v.status == verdict.status}
        errors = {_kind(v.why) for v in bad.values()} if verdict.status == Status.ERROR else set()
        return cls(verdict.status, frozenset(bad), frozenset(errors))

    def holds(self, other: Likeness) -> bool:
        """Whether `other` is the same failure, in the same outputs or fewer."""
        return other.status == self.status and other.outputs <= self.outputs and other.errors <= self.errors


def _kind(why: str) -> str:
    """An error's own name: what stands before its first colon."""
    return why.split(":")[0].strip()


@dataclass
class Trial:
    """One law and one spec, judged Case by Case; each Case once, so that a search sees a pure predicate.

    judged: the Cases of every phase but shrinking, in order.
    until: the moment (time.monotonic) after which no new Case is judged; unjudged: how many Cases that cost.
    """

    law: Law
    spec: KernelSpec
    profile: Profile
    emit: Emit = _ignore
    starting: Starting = _ignore
    judged: list[tuple[Case, Verdict]] = field(default_factory=list)
    until: float = float("inf")
    unjudged: int = 0
    known: dict[Case, Verdict] = field(default_factory=dict)

    def allow(self, seconds: float) -> None:
        """Judge new Cases for `seconds` from now."""
        self.until, self.unjudged = time.monotonic() + seconds, 0

    def verdict(self, case: Case, phase: str) -> Verdict | None:
        """The verdict on `case`, judged now or before; None where time is up and it was never judged."""
        found = self.known.get(case)
        if found is not None:
            return found
        if time.monotonic() > self.until:
            self.unjudged += 1
            return None
        self.starting(case, phase)
        verdict = self.known[case] = self._judge(case)
        self.emit(case, verdict, phase)
        if phase != "shrink":
            self.judged.append((case, verdict))
        return verdict

    def _judge(self, case: Case) -> Verdict:
        try:
            return self.law.judge(self.spec, case, self.profile)
        except Exception as error:
            return broken(self.law, self.spec, error)

    def counts(self) -> Mapping[str, int]:
        """How many Cases ended in each status, worst first."""
        tally = Counter(verdict.status for _, verdict in self.judged)
        return {status.name: tally[status] for status in sorted(tally, reverse=True)}


def broken(law: Law, spec: KernelSpec, error: Exception) -> Verdict:
    """The ERROR of a law that raised: numcheck's own fault or the oracle's, and never lost."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else ""
    why = f"{type(error).__name__}: {error} (raised by the law itself{where})"
    claim = f"the law {law.name} judges every Case without raising"
    return Verdict(spec.name, law.name, claim, {"*": OutputVerdict(Status.ERROR, why)})


@dataclass(frozen=True)
class Finding:
    """One failure: the Case that first showed it, the smallest that still does, and the verdict on that one.

    complete: False where the time for shrinking ran out, so that a smaller Case may exist.
    """

    first: Case
    shrunk: Case
    verdict: Verdict
    complete: bool = True


def search_failure(trial: Trial, examples: int, seed: int) -> Finding | None:
    """Draw up to `examples` Cases; the first failure among them, shrunk. Drawing stops at `trial.until`."""
    first: list[Case] = []

    def fails(case: Case) -> bool:
        verdict = trial.verdict(case, "shrink" if first else "draw")
        if verdict is None:
            return False
        steer(verdict)
        if verdict.held:
            return False
        if not first:
            first.append(case)
            trial.allow(trial.profile.shrinking)
        return Likeness.of(trial.known[first[0]]).holds(Likeness.of(verdict))

    smallest = search(cases(trial.spec, trial.profile.largest), fails, examples, seed)
    if smallest is None:
        return None
    smallest = _reseeded(trial, smallest, Likeness.of(trial.known[first[0]]), seed)
    return Finding(first[0], smallest, trial.known[smallest], complete=not trial.unjudged)


def minimise(trial: Trial, case: Case, seed: int) -> Finding:
    """The failing `case` of `trial` made smaller: searched again with every field bounded by its own."""
    like = Likeness.of(trial.known[case])
    trial.allow(trial.profile.shrinking)

    def fails(candidate: Case) -> bool:
        return _fails_like(trial, candidate, like)

    smallest = search(bounded(trial.spec, case), fails, DRAWS, seed) or case
    smallest = _reseeded(trial, smallest, like, seed)
    return Finding(case, smallest, trial.known[smallest], complete=not trial.unjudged)


def _fails_like(trial: Trial, case: Case, like: Likeness) -> bool:
    verdict = trial.verdict(case, "shrink")
    return verdict is not None and not verdict.held and like.holds(Likeness.of(verdict))


def _reseeded(trial: Trial, case: Case, like: Likeness, seed: int) -> Case:
    """A last round from `case`, in which a smaller Case fails if it does so with any of a few seeds.

    A failure that needs luck with the data, as an order of summation does, otherwise stops at the first smaller Case
    whose data happen not to show it.
    """
    seeds = dict.fromkeys((*range(SEEDS), case.seed))

    def failing(candidate: Case) -> Case | None:
        tried = (candidate.but(seed=k) for k in seeds)
        return next((c for c in tried if _fails_like(trial, c, like)), None)

    smallest = search(bounded(trial.spec, case, seed=False), lambda c: failing(c) is not None, DRAWS, seed)
    return (failing(smallest) if smallest else None) or case


def shrink(law: Law, spec: KernelSpec, case: Case, profile: Profile, *, emit: Emit = _ignore) -> Case:
    """The smallest Case found that fails like `case`: same status, no further output. `case` itself at worst.

    The same answer on every run. Raises InvalidCase where `case` holds, so that there is nothing to shrink.
    """
    trial = Trial(law, spec, profile, emit)
    verdict = trial.verdict(case, "shrink")
    if verdict is None or verdict.held:
        raise InvalidCase(f"{spec.name} holds under {law.name} on this Case, so there is nothing to shrink")
    return minimise(trial, case, int(case.key, 16)).shrunk
