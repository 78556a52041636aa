"""Shrink: the smallest Case that fails like a given one, found by a pure, cached predicate."""

from __future__ import annotations

import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from numcheck.case import Case
from numcheck.draw import below, bounded, cases, cost, search, steer
from numcheck.errors import RAISED, InvalidCase
from numcheck.laws.law import Law
from numcheck.profile import Profile
from numcheck.spec import KernelSpec
from numcheck.verdict import OutputVerdict, Status, Verdict

# emit(case, verdict, phase): a judged Case; starting(case, phase): one that is about to be judged.
Emit = Callable[[Case, Verdict, str], None]
Starting = Callable[[Case, str], None]
# answered(case): the verdict that another process has given, or None.
Answered = Callable[[Case], Verdict | None]

# Draws of a bounded search. Seven of eight are the failing Case itself, so that missing it in all of them has a
# chance of 8^-64. The search ends with the first failure, and shrinking then has a budget of its own (seconds).
DRAWS = 64
# Seeds that a smaller Case is tried with, after its own, before it counts as holding. An order of summation that shows
# in two of three data sets is then missed once in nine times; a missed step is met again from further down.
SEEDS = (0, 1)


# A Case with more elements than this takes seconds to judge a dozen times over.
DEAR = 2**12


# Statuses of a Case on which the slow rungs are worth their seconds: something could have differed, and did not fail.
TELLING = (Status.PASS, Status.ORDER_DEPENDENT)


def ignore(*row: object) -> None:
    return None


@dataclass(frozen=True)
class Likeness:
    """What a smaller failure must share with the first: its status, and its outputs or else its words.

    A law that stops at the first sign of trouble names now one, now another of the outputs that share a cause; the same
    first words (up to the first number) then say that it is the same trouble. Every output of a kernel that raises is
    an ERROR, so there the words alone decide.
    """

    status: Status
    outputs: frozenset[str]
    words: frozenset[str]

    @classmethod
    def of(cls, verdict: Verdict) -> Likeness:
        """The likeness of a failing verdict."""
        bad = {name: v for name, v in verdict.outputs.items() if v.status == verdict.status}
        words = {re.split(r"\d", v.why, maxsplit=1)[0].strip() for v in bad.values()}
        return cls(verdict.status, frozenset(bad), frozenset(words))

    def holds(self, other: Likeness) -> bool:
        """Whether `other` is the same failure."""
        if other.status != self.status:
            return False
        same_outputs = other.outputs <= self.outputs and self.status != Status.ERROR
        return same_outputs or other.words <= self.words


@dataclass
class Trial:
    """One law and one spec, judged Case by Case; each Case once, so that a search sees a pure predicate.

    judged: the Cases of every phase but shrinking, in order. The slow rungs (`profile.slow`) are climbed by those in
    `climbed` alone, or by every further one while `climbing`, which is for shrinking what only those rungs show.
    answered: asked first for a verdict without the slow rungs.
    until: the moment (time.monotonic) after which no new Case is judged; unjudged: how many Cases that cost.
    """

    law: Law
    spec: KernelSpec
    profile: Profile
    emit: Emit = ignore
    starting: Starting = ignore
    judged: dict[Case, Verdict] = field(default_factory=dict)
    climbed: list[Case] = field(default_factory=list)
    climbing: bool = False
    answered: Answered = ignore
    until: float = float("inf")
    unjudged: int = 0
    known: dict[tuple[Case, bool], Verdict] = field(default_factory=dict)

    def allow(self, seconds: float) -> None:
        """Judge new Cases for `seconds` from now."""
        self.until, self.unjudged = time.monotonic() + seconds, 0

    def verdict(self, case: Case, phase: str, *, may_climb: bool = False) -> Verdict | None:
        """The verdict on `case`, judged now or before; None where time is up and it was never judged.

        may_climb: climb the slow rungs too, if Cases are left to do so and this one has something to tell.
        """
        found = self.known.get((case, self.climbing))
        if found is not None:
            return found
        if time.monotonic() > self.until:
            self.unjudged += 1
            return None
        self.starting(case, phase)
        verdict = self._judge(case, self.climbing)
        if may_climb and verdict.status in TELLING and len(self.climbed) < self.profile.slow:
            verdict = self._judge(case, climbing=True)
            self.climbed.append(case)
        self._keep(case, verdict, phase)
        return verdict

    def climb(self, case: Case, phase: str) -> None:
        """Judge `case` once more, with the slow rungs."""
        self.starting(case, phase)
        self.climbed.append(case)
        self._keep(case, self._judge(case, climbing=True), phase)

    def _keep(self, case: Case, verdict: Verdict, phase: str) -> None:
        self.emit(case, verdict, phase)
        if phase != "shrink":
            self.judged[case] = verdict

    def _judge(self, case: Case, climbing: bool) -> Verdict:
        effort = self.profile if climbing else replace(self.profile, slow=0)
        verdict = None if climbing else self.answered(case)
        verdict = verdict or judged(self.law, self.spec, case, effort)
        self.known[case, climbing] = verdict
        return verdict

    def counts(self) -> Mapping[str, int]:
        """How many Cases ended in each status, worst first."""
        tally = Counter(verdict.status for verdict in self.judged.values())
        return {status.name: tally[status] for status in sorted(tally, reverse=True)}


def judged(law: Law, spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The law's Verdict; an ERROR where the law, or a callable of the spec or oracle that it asked, raised."""
    try:
        return law.judge(spec, case, profile)
    except RAISED as error:
        return broken(law, spec, error)


def broken(law: Law, spec: KernelSpec, error: BaseException) -> Verdict:
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


def first_failure(trial: Trial, examples: int, seed: int) -> Case | None:
    """Draw up to `examples` Cases; the first that fails, or None. Drawing stops at `trial.until`.

    Where the profile is derandomised the draws are not steered: what a kernel answers would choose its Cases, and then
    neither two kernels nor two revisions of one would be tried on the same ones.
    """

    def fails(case: Case) -> bool:
        verdict = trial.verdict(case, "draw")
        if verdict is None:
            return False
        if not trial.profile.derandomize:
            steer(verdict)
        return not verdict.held

    return search(cases(trial.spec, trial.profile.largest), fails, examples, seed, shrink=False)


def draws(trial: Trial, examples: int, seed: int) -> Iterator[Case]:
    """The Cases that `first_failure` goes through as long as all hold; none where verdicts steer them."""
    found: list[Case] = []

    def holds(case: Case) -> bool:
        found.append(case)
        return False

    if trial.profile.derandomize:
        search(cases(trial.spec, trial.profile.largest), holds, examples, seed, shrink=False)
    yield from found


def minimise(trial: Trial, first: Case, seed: int) -> Finding:
    """The failure that `first` of `trial` showed, made smaller.

    It starts from the cheapest Case that failed alike, walks down field by field, and then lets Hypothesis search
    below what was reached, for what only a move of several fields at once makes smaller.
    """
    start = trial.judged.get(first) or trial.known[first, False]
    trial.climbing = trial.known.get((first, False), start).held
    trial.allow(trial.profile.shrinking)
    descent = Descent(trial, Likeness.of(start), trial.spec.illegal(first) is None)
    alike = [case for case in trial.judged if (case, trial.climbing) in trial.known and descent.fails(case)]
    smallest = descent.walk(min(alike, key=cost, default=first))
    if descent.left(smallest) > 1:
        searched = search(bounded(trial.spec, smallest), descent.fails, DRAWS, seed)
        smallest = descent.walk(searched) if searched is not None else smallest
    found = trial.known[smallest, trial.climbing]
    trial.climbing = False
    return Finding(first, smallest, found, complete=not trial.unjudged)


@dataclass(frozen=True)
class Descent:
    """A walk from a failing Case to smaller ones that fail alike; `legal`: whether they are to be legal."""

    trial: Trial
    like: Likeness
    legal: bool

    def fails(self, case: Case) -> bool:
        """Whether `case` fails alike; pure, since the trial judges each Case once."""
        if (self.trial.spec.illegal(case) is None) != self.legal:
            return False
        verdict = self.trial.verdict(case, "shrink")
        return verdict is not None and not verdict.held and self.like.holds(Likeness.of(verdict))

    def lower(self, case: Case, name: str, position: int) -> Case | None:
        """`case` with one field at a lower position where that fails, with its own seed or another; None if it holds.

        A failure that needs luck with the data, as an order of summation does, would otherwise stop the walk at the
        first smaller Case whose data happen not to show it.
        """
        ladder = below(self.trial.spec, case)[name]
        if position >= ladder.last:
            return None
        seeds = dict.fromkeys((case.seed, *SEEDS)) if name != "seed" else (0,)
        candidates = (case.but(**{name: ladder.at(position), "seed": seed}) for seed in seeds)
        return next((candidate for candidate in candidates if self.fails(candidate)), None)

    def walk(self, case: Case) -> Case:
        """The Case from which no step in a single field leads further down."""
        names = list(below(self.trial.spec, case))
        # Every field is tried at its simplest first. The sizes, which are drawn first, go last: a failure in a larger
        # Case outlives a change of dtype or layout better. But a dear Case is made cheap before anything else.
        for name in names if cost(case) > DEAR else reversed(names):
            case = self.lower(case, name, 0) or case
        start = None
        while case != start:
            start = case
            for name in names:
                case = self.bisect(case, name) if name != "seed" else case
        return case

    def left(self, case: Case) -> int:
        """How many fields of `case` are not at their simplest value."""
        return sum(ladder.last > 0 for name, ladder in below(self.trial.spec, case).items() if name != "seed")

    def bisect(self, case: Case, name: str) -> Case:
        """`case` with one field lowered by halving the distance to a value at which it holds.

        It starts where it fails a step or half the way lower: of a field that was lowered before, this says at once
        whether that is still its end.
        """
        last = below(self.trial.spec, case)[name].last
        for start in dict.fromkeys((last - 1, last // 2)) if last else ():
            found = self.lower(case, name, start)
            if found is not None:
                return self.halve(found, name, start)
        return case

    def halve(self, case: Case, name: str, failing: int) -> Case:
        """`case`, which fails at position `failing` of a field, with the lowest that halving leads to."""
        holding = -1
        while failing - holding > 1:
            middle = (holding + failing) // 2
            found = self.lower(case, name, middle)
            if found is None:
                holding = middle
            else:
                case, failing = found, middle
        return case


def shrink(law: Law, spec: KernelSpec, case: Case, profile: Profile, *, emit: Emit = ignore) -> Case:
    """The smallest Case found that fails like `case`: same status, no further output. `case` itself at worst.

    The same answer on every run. Raises InvalidCase where `case` holds, so that there is nothing to shrink.
    """
    trial = Trial(law, spec, profile, emit)
    verdict = trial.verdict(case, "shrink", may_climb=True)
    if verdict is None or verdict.held:
        raise InvalidCase(f"{spec.name} holds under {law.name} on this Case, so there is nothing to shrink")
    trial.judged[case] = verdict
    return minimise(trial, case, int(case.key, 16)).shrunk
