"""Score: which law catches which broken kernel, on which Case, and how long that takes.

A kill counts only where the honest spec passes the same law on the same Case in the same run. The first killing Case
ends a suspect; Cases that killed others of its function come first. Every Case is one that the law tries on any kernel.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from numcheck.capability import Capability, Unavailable
from numcheck.case import Case
from numcheck.errors import RAISED, InvalidSpec
from numcheck.execute import execute
from numcheck.far import far_rows, promised
from numcheck.laws import LAWS
from numcheck.laws.law import Law
from numcheck.laws.measured import saved_alone
from numcheck.mutate import REACHED, Mutant, Place, built, functions
from numcheck.patience import PATIENCE, Interrupted, OutOfTime, limited, patience, uninterrupted
from numcheck.profile import Profile
from numcheck.sample import sample
from numcheck.shrink import judged
from numcheck.spec import KernelSpec
from numcheck.suspect import Score, Suspect, hung
from numcheck.trials import DRAWN, LARGEST, Trial, affordable, ordered, reminders, trials
from numcheck.usual import Usual
from numcheck.verdict import OutputVerdict, Status, Verdict

# Killing Cases of a function that go before all others: more would cost a survivor little and a kill much.
FRONT = 6
LOADING = "the loading of its source"

Key = tuple[str, Case]
At = Callable[[str, Case], None]
Limit = Callable[[float, str], None]
# What a suspect hung at, how many seconds it had, and the Case where it was one.
Hang = tuple[str, float, Case | None]


def nothing(*said: object) -> None:
    return None


def unasked(spec: KernelSpec) -> None:
    """Nobody knows which other kernels there are."""


@dataclass
class Scorer:
    """Scores suspects one after another, and remembers what the honest specs did and which Cases killed.

    every: ask every law, so that the matrix is whole; else the first kill ends a suspect. at(law, case) is told before
    each Case of a suspect, for whoever outlives this process; limit(seconds, doing) how long what comes next may take,
    and 0.0 when it has ended. torn: a suspect was cut off here in the midst of anything. known(spec): all kernels that
    may share functions with one, itself among them; None where nobody can say. A mutant in a branch that none of them
    builds has survived.
    """

    profile: Profile
    every: bool = False
    largest: int = LARGEST
    at: At = nothing
    limit: Limit = nothing
    torn: bool = False
    known: Callable[[KernelSpec], Sequence[KernelSpec] | None] = unasked
    held: dict[tuple[int, str, Case], Verdict] = field(default_factory=dict)
    took: dict[tuple[int, str, Case], float] = field(default_factory=dict)
    specs: dict[int, KernelSpec] = field(default_factory=dict)
    killers: dict[str, Counter[Key]] = field(default_factory=dict)
    lists: dict[tuple[int, str], tuple[Trial, ...]] = field(default_factory=dict)
    present: dict[tuple[int, tuple[Place, ...]], bool] = field(default_factory=dict)
    reaches: dict[int, frozenset[str]] = field(default_factory=dict)
    usuals: dict[int, Usual | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The slow rungs start fresh processes, which know no mutant.
        self.profile = replace(self.profile, slow=0)

    def score(self, suspect: Suspect) -> Score:
        """How `suspect` fares. Never raises for what its source or its kernels do."""
        start = self._clock()
        if suspect.honest is None:
            why = "it names no honest spec, and a kill counts only where that passes; give Fault(..., honest=SPEC)"
            return Score(suspect, "SURVIVED", why=why)
        # A declared fault may need more than its honest spec does: streams and graphs are a GPU's.
        for spec in (suspect.honest, *([suspect.fault.spec] if suspect.fault is not None else [])):
            try:
                with uninterrupted():
                    found = self._here(spec)
            except (InvalidSpec, Interrupted) as error:
                return Score(suspect, "SURVIVED", why=f"no law could judge it: {error}")
            if isinstance(found, Unavailable):
                return Score(suspect, "UNAVAILABLE", why=found.reason)
        if suspect.mutant is not None and not self._built_in(suspect.mutant, suspect.honest):
            return replace(self._unbuilt(suspect, suspect.mutant, suspect.honest), seconds=self._clock() - start)
        with ExitStack() as stack:
            try:
                with self.within(PATIENCE, LOADING):
                    broken = stack.enter_context(suspect.broken())
            except OutOfTime:
                return hung(suspect, LOADING, PATIENCE)
            except RAISED as error:
                why = f"its source does not load: {type(error).__name__}: {error}"
                return Score(suspect, "STILLBORN", why=why, seconds=self._clock() - start)
            run = _Run(self, suspect, suspect.honest, broken)
            scored = run.result()
            # What has hung once would hang there too.
            usual = None if run.hang else self._usual(suspect.honest, broken)
            return replace(scored, usual=usual, seconds=self._clock() - start)

    @contextmanager
    def within(self, seconds: float, doing: str) -> Iterator[None]:
        """Inside, a suspect's code has so many seconds: raises OutOfTime then, and Interrupted for a feigned Ctrl-C."""
        self.limit(seconds, doing)
        try:
            with uninterrupted(), limited(seconds):
                yield
        except OutOfTime:
            self.torn = True
            raise
        finally:
            self.limit(0.0, "")

    def trials(self, honest: KernelSpec, law: str = "") -> tuple[Trial, ...]:
        """What a suspect is put to: everything of the law that a declared fault names; else small Cases of all laws."""
        self.specs[id(honest)] = honest
        if (id(honest), law) not in self.lists:
            laws = LAWS if not law or self.every else (_law(law),)
            drawn, largest = (self.profile.examples, math.inf) if law else (DRAWN, self.largest)
            found = trials(honest, laws, self.profile, drawn=drawn, largest=largest)
            # Who asks for other sizes than the usual ones is given all of them.
            self.lists[id(honest), law] = affordable(found) if not law and largest == LARGEST else found
        return self.lists[id(honest), law]

    def honest(self, spec: KernelSpec, trial: Trial) -> Verdict:
        """What the law says of the honest spec on this Case; judged once a run."""
        key = (id(spec), *trial.key)
        if key not in self.held:
            start = time.perf_counter()
            self.held[key] = judged(trial.law, spec, trial.case, self.profile)
            self.took[key] = time.perf_counter() - start
        return self.held[key]

    def seconds(self, spec: KernelSpec, trial: Trial) -> float:
        """What the honest spec took for this Case; 0.0 where it has not been judged."""
        return self.took.get((id(spec), *trial.key), 0.0)

    def _unbuilt(self, suspect: Suspect, mutant: Mutant, honest: KernelSpec) -> Score:
        """ABSENT where another kernel's Cases build it, which is then judged under that one; else it has survived."""
        why = "it stands in a branch of compile-time parameters that no Case of this spec builds"
        known = self.known(honest)
        if known is None:
            return Score(suspect, "ABSENT", why=why)
        others = (s for s in known if s.name != honest.name and not isinstance(self._here(s), Unavailable))
        sharing = (s for s in others if mutant.id.partition(":")[0] in self._functions(s))
        judged_under = next((s.name for s in sharing if self._built_in(mutant, s)), "")
        if judged_under:
            return Score(suspect, "ABSENT", why=f"{why}; judged under {judged_under}")
        reason = suspect.reason
        proven = reason is not None and reason.proves
        return Score(suspect, "EQUIVALENT" if proven else "SURVIVED", why=f"{why}, and no other kernel's either")

    def _clock(self) -> float:
        """Seconds of this process's own work, whoever else has the cores; on a GPU, which works beside it, of any."""
        return time.process_time() if self.profile.device == "cpu" else time.perf_counter()

    def _here(self, spec: KernelSpec) -> Capability:
        return spec.available(self.profile.device)

    def _functions(self, spec: KernelSpec) -> frozenset[str]:
        if id(spec) not in self.reaches:
            self.specs[id(spec)] = spec
            try:
                self.reaches[id(spec)] = frozenset(functions(spec))
            except InvalidSpec:
                self.reaches[id(spec)] = frozenset()
        return self.reaches[id(spec)]

    def _built_in(self, mutant: Mutant, honest: KernelSpec) -> bool:
        """Whether some Case enters a compile-time branch that leads to the mutant, if only such do."""
        marked = mutant.marked()
        if not marked:
            return True
        key = (id(honest), tuple((m.module, m.edit.start, m.edit.end) for m in marked))
        if key not in self.present:
            cases = dict.fromkeys(t.case for t in sorted(self.trials(honest), key=Trial.price))
            legal = [case for case in cases if not honest.illegal(case)]
            self.present[key] = any(self._entered(honest, mark, legal) for mark in marked)
        return self.present[key]

    def _entered(self, honest: KernelSpec, mark: Mutant, cases: Sequence[Case]) -> bool:
        with built(honest, mark) as broken:
            return any(self._enters(broken, case) for case in cases)

    def _enters(self, broken: KernelSpec, case: Case) -> bool:
        drawn = sample(broken.oracle, case, device=self.profile.device)
        saved = saved_alone(broken, drawn)
        # The edges law lays rows far apart, for which a kernel may have a build of its own.
        apart = far_rows(drawn) if promised(broken) else None
        return any(
            REACHED in execute(broken, given, device=self.profile.device, guard=False, saved=saved).error
            for given in (drawn, apart)
            if given is not None
        )

    def _usual(self, honest: KernelSpec, broken: KernelSpec) -> bool | None:
        if id(honest) not in self.usuals:
            self.usuals[id(honest)] = Usual.of(honest, self.profile.device)
        usual = self.usuals[id(honest)]
        if usual is None:
            return None
        try:
            with self.within(PATIENCE, "the usual test"):
                return usual.catches(broken)
        except (OutOfTime, Interrupted):
            return True


@dataclass
class _Run:
    """One suspect on its way through its trials."""

    scorer: Scorer
    suspect: Suspect
    honest: KernelSpec
    broken: KernelSpec
    judged: dict[str, list[tuple[Case, Verdict, Verdict]]] = field(default_factory=dict)
    kills: dict[str, tuple[Case | None, Verdict]] = field(default_factory=dict)
    doubted: int = 0
    changed: bool = False
    hang: Hang | None = None

    def result(self) -> Score:
        """Judge trial after trial, then what the laws say of all Cases together."""
        for trial in self._order():
            if trial.law.name not in self.kills:
                self._try(trial)
            if self.hang or (self.kills and not self.scorer.every):
                break
        if not self.hang and (not self.kills or self.scorer.every):
            self._pool()
        return self._scored()

    @property
    def trials(self) -> tuple[Trial, ...]:
        """What the suspect is put to."""
        return self.scorer.trials(self.honest, self.suspect.fault.law if self.suspect.fault is not None else "")

    def _order(self) -> Sequence[Trial]:
        found, suspect = self.trials, self.suspect
        known = self.scorer.killers.setdefault(suspect.unit, Counter())
        first = [key for key, _ in known.most_common(FRONT)] if suspect.mutant is not None else []
        order = ordered(found, suspect.operator, first)
        if suspect.reason is None or self.scorer.profile.name == "deep":
            return order
        return reminders(order, first)

    def _try(self, trial: Trial) -> None:
        before = self.scorer.honest(self.honest, trial)
        if not before.held:
            self.doubted += 1
            return
        self.scorer.at(trial.law.name, trial.case)
        verdict = self._judged(trial)
        if verdict is None:
            return
        self.changed |= not verdict.held or dict(verdict.hashes) != dict(before.hashes)
        if verdict.held:
            self.judged.setdefault(trial.law.name, []).append((trial.case, verdict, before))
            return
        self.kills[trial.law.name] = (trial.case, verdict)
        self.scorer.killers[self.suspect.unit][trial.key] += 1

    def _judged(self, trial: Trial) -> Verdict | None:
        """What the law says; None where the Case did not end, which is then `hang`."""
        took = self.scorer.seconds(self.honest, trial)
        seconds, doing = patience(took), f"{trial.law.name} on its Case, for which the honest spec took {took:.2g} s,"
        try:
            with self.scorer.within(seconds, doing):
                return judged(trial.law, self.broken, trial.case, self.scorer.profile)
        except OutOfTime:
            self.hang = (doing, seconds, trial.case)
            return None
        except Interrupted as error:
            outputs = dict.fromkeys(self.broken.judged, OutputVerdict(Status.ERROR, f"raised {error}"))
            return Verdict(self.broken.name, trial.law.name, "the kernel raises nothing", outputs)

    def _pool(self) -> None:
        for law in LAWS:
            rows = self.judged.get(law.name, [])
            if not rows or law.name in self.kills:
                continue
            pooled = self._pooled(law, rows)
            if self.hang:
                return
            if pooled is None or pooled.held:
                continue
            before = _pooled(law, self.honest, [(case, honest) for case, _, honest in rows])
            if before is None or before.held:
                self.kills[law.name] = (None, pooled)

    def _pooled(self, law: Law, rows: Sequence[tuple[Case, Verdict, Verdict]]) -> Verdict | None:
        took = sum(self.scorer.took.get((id(self.honest), law.name, case), 0.0) for case, _, _ in rows)
        seconds, doing = patience(took), f"what {law.name} says of all Cases together"
        try:
            with self.scorer.within(seconds, doing):
                return _pooled(law, self.broken, [(case, after) for case, after, _ in rows])
        except OutOfTime:
            self.hang = (doing, seconds, None)
            return None
        except Interrupted as error:
            outputs = dict.fromkeys(self.broken.judged, OutputVerdict(Status.ERROR, f"raised {error}"))
            return Verdict(self.broken.name, law.name, "the law pools its Cases", outputs, pooled=True)

    def _scored(self) -> Score:
        tried = {name: len(rows) for name, rows in self.judged.items()}
        asked = {trial.law.name for trial in self.trials}
        laws = {name: name in self.kills for name in sorted(asked) if name in self.kills or self._to_the_end(name)}
        if self.hang and not self.kills:
            doing, seconds, case = self.hang
            found = hung(self.suspect, doing, seconds, case)
            return replace(found, tried=tried, laws=laws, changed=self.changed)
        base = Score(self.suspect, "SURVIVED", tried=tried, laws=laws, changed=self.changed, why=self._held())
        reason = self.suspect.reason
        if not self.kills:
            if reason is None or not reason.proves:
                return base
            if reason.claim == "equal" and self.changed:
                return replace(base, status="REFUTED", why="the reason says that no bit can differ, and one did")
            return replace(base, status="EQUIVALENT")
        law = self._credited()
        case, verdict = self.kills[law]
        killed = replace(base, law=law, case=case, why=_said(verdict), raised=_raised(verdict), status="KILLED")
        if reason is not None:
            said = f"the reason says that it survives ({reason.claim}), but {law} catches it: {killed.why}"
            return replace(killed, status="REFUTED", why=said)
        named = self.suspect.fault.law if self.suspect.fault is not None else law
        return killed if law == named else replace(killed, status="SURVIVED", why=f"{named} passes it; {law} does not")

    def _credited(self) -> str:
        """The law that a fault names, where it is among those that caught it; else the first."""
        named = self.suspect.fault.law if self.suspect.fault is not None else ""
        return named if named in self.kills else next(iter(self.kills))

    def _to_the_end(self, law: str) -> bool:
        return not self.hang and (self.scorer.every or not self.kills)

    def _held(self) -> str:
        doubt = f"; on {self.doubted} more the honest spec fails too, which counts for nothing" if self.doubted else ""
        count = sum(map(len, self.judged.values()))
        same = "" if self.changed else ", without a bit that differs"
        return f"held on {count} Cases{same}{doubt}"


def _pooled(law: Law, spec: KernelSpec, rows: list[tuple[Case, Verdict]]) -> Verdict | None:
    try:
        return law.pool(spec, rows)
    except RAISED as error:
        outputs = {"*": OutputVerdict(Status.ERROR, f"{type(error).__name__}: {error} (raised by the law itself)")}
        return Verdict(spec.name, law.name, "the law pools its Cases", outputs, pooled=True)


def _law(name: str) -> Law:
    for law in LAWS:
        if law.name == name:
            return law
    raise InvalidSpec(f"a fault names the law {name!r}; there is {', '.join(law.name for law in LAWS)}")


def _said(verdict: Verdict) -> str:
    """What the worst output's verdict says, in one line."""
    name, worst = max(verdict.outputs.items(), key=lambda item: item[1].status)
    return " ".join(f"{name}: {worst.why}{'; ' if worst.where else ''}{worst.where}".split())


def _raised(verdict: Verdict) -> bool:
    return verdict.status is Status.ERROR and verdict.law != "evidence"
