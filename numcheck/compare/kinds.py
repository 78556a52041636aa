"""What a comparison is made of: bits, what moved, times; a kernel's part; the three answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numcheck.baseline import Baseline, Subject
from numcheck.case import Case
from numcheck.compare.words import count
from numcheck.verdict import Status


@dataclass(frozen=True)
class Bits:
    """One output over the Cases of both sides. changed: those whose hashes differ; unhashed: those of which the head
    judged what the base hashed, and has no hash; free: compared nowhere, since its order is."""

    output: str
    same: int = 0
    changed: tuple[Case, ...] = ()
    unhashed: tuple[Case, ...] = ()
    free: bool = False


@dataclass(frozen=True)
class Moved:
    """One thing that is otherwise: what, then and now; case None where it is about all Cases.

    output: of which output; gate: the kind of Gate, where it is of one.
    """

    what: str
    before: str
    after: str
    case: Case | None = None
    law: str = ""
    loss: bool = False
    output: str = ""
    gate: str = ""


@dataclass(frozen=True)
class Ratio:
    """Kernel seconds now over then: geometric mean over so many shared Cases, with Student's 95 % interval."""

    ratio: float
    low: float
    high: float
    cases: int

    @property
    def clear(self) -> bool:
        """Whether the interval leaves 1 out."""
        return not self.low <= 1.0 <= self.high


@dataclass(frozen=True)
class Drawing:
    """How two runs drew. alike: in the same profiles; repeats: the same Cases, as those profiles do in every run."""

    alike: bool = True
    repeats: bool = False


@dataclass(frozen=True)
class Compared:
    """One kernel on one device. incomparable: why bits and times are not compared, or "". power: what a check could
    have shown then and could not now.

    failing: laws that did not hold then and do not now. undrawn: law -> how many Cases were drawn then and now, where
    the head's are a part of the base's.
    """

    subject: Subject
    bits: tuple[Bits, ...] = ()
    claims: tuple[Moved, ...] = ()
    cases: tuple[Moved, ...] = ()
    gates: tuple[Moved, ...] = ()
    limits: tuple[Moved, ...] = ()
    contract: tuple[Moved, ...] = ()
    memory: tuple[Moved, ...] = ()
    power: tuple[Moved, ...] = ()
    skips: tuple[Moved, ...] = ()
    time: Ratio | None = None
    new: int = 0
    vanished: tuple[Case, ...] = ()
    failing: Mapping[str, str] = field(default_factory=dict)
    undrawn: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    shared: int = 0
    incomparable: str = ""

    @property
    def changed(self) -> tuple[Bits, ...]:
        """The outputs whose bits changed."""
        return tuple(b for b in self.bits if b.changed)

    @property
    def moved(self) -> tuple[Moved, ...]:
        """All that is otherwise, but for bits, times and which Cases ran; verdicts first, then what they rest on."""
        return (
            *self.claims, *self.cases, *self.contract, *self.limits, *self.gates, *self.memory, *self.power, *self.skips
        )  # fmt: skip

    @property
    def losses(self) -> tuple[Moved, ...]:
        """What fell: verdicts, gates, limits that were loosened, memory, coverage."""
        return tuple(m for m in self.moved if m.loss)

    @property
    def quiet(self) -> bool:
        """Whether nothing moved, as far as it could be compared."""
        unknown = any(b.unhashed for b in self.bits)
        return not (self.changed or unknown or self.moved or self.vanished)


@dataclass(frozen=True)
class Answer:
    """One of the three: the question, a word (`no`, `yes`, `unknown`), and the sentences behind it.

    fallen: how many of the sentences, the first ones, say what fell.
    """

    question: str
    word: str
    sentences: tuple[str, ...] = ()
    fallen: int = 0


@dataclass(frozen=True)
class Claim:
    """A claim that did not hold at the base: what it says now, of the whole law ("") or of one output of it.

    cases: in how many Cases the output failed; held: in how many of them it is shown to hold now; case: the smallest
    of those. fixed: it is shown to hold now. why: what was wrong with it in that Case, or in another that failed.
    dropped: named Cases that failed and that nobody judges any more.
    """

    subject: Subject
    law: str
    before: str
    after: str
    output: str = ""
    cases: int = 0
    held: int = 0
    case: Case | None = None
    fixed: bool = False
    why: str = ""
    dropped: int = 0

    @property
    def state(self) -> str:
        """`fixed`, `does not hold` or `no longer judged`."""
        if self.fixed:
            return "fixed"
        return "does not hold" if self.after and not Status[self.after].held else "no longer judged"

    def told(self, at: str = "") -> str:
        """One sentence; at: what the base's revision is called."""
        where = f"{self.subject.name} under {self.law}{f', {self.output}' if self.output else ''}"
        cases = f" in {count(self.cases, 'Case')}" if self.cases else ""
        then = f"{self.before} at {at or 'the base'}{cases}"
        now = f"{self.after or 'not judged'} {'here' if at else 'now'}"
        return f"{where}: {then}, {now}{self._where}"

    @property
    def _where(self) -> str:
        if self.case is not None:
            share = "" if self.held == self.cases else f" in {self.held} of them"
            return f"{share}; the smallest on both sides {self.case.line()}"
        return f"; {count(self.dropped, 'named Case')} that failed there not judged" if self.dropped else ""


@dataclass(frozen=True)
class Conclusion:
    """What all of it comes to. Text, JSON, Markdown, the page and the exit code read this, and nothing else decides.

    headline: a few words for the top of a page; sentence: what is known, by name.
    """

    held: bool = False
    headline: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Comparison:
    """The whole: `answers` first, then each kernel that both sides know, those that came and those that went.

    at: the revision of the base, where the question is whether the head repairs what fails there. claims: what did not
    hold at the base. certificates: of the oracles of kernels on both sides, what certifies otherwise.
    """

    base: Baseline
    head: Baseline
    kernels: tuple[Compared, ...] = ()
    added: tuple[Subject, ...] = ()
    gone: tuple[Subject, ...] = ()
    answers: tuple[Answer, ...] = field(default=())
    certificates: tuple[Moved, ...] = ()
    claims: tuple[Claim, ...] = ()
    at: str = ""
    repeats: bool = False
    conclusion: Conclusion = Conclusion()

    @property
    def held(self) -> bool:
        """As `numcheck.compare.conclusion` concludes."""
        return self.conclusion.held

    @property
    def verdict(self) -> str:
        """What the exit code stands for, in words that claim no more than was compared."""
        return self.conclusion.sentence

    @property
    def repairs(self) -> tuple[Claim, ...]:
        """The claims as a first screen shows them; what stays broken is the second answer, unless asked for."""
        return tuple(c for c in self.claims if self.at or c.state != "does not hold")

    @property
    def judged(self) -> bool:
        """Whether any Case was judged on both sides."""
        return any(k.shared for k in self.kernels)
