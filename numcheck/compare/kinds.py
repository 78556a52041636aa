"""What a comparison is made of: bits, what moved, times; a kernel's part; the three answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from numcheck.baseline import Baseline, Subject
from numcheck.case import Case
from numcheck.compare.words import count


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
class Compared:
    """One kernel on one device. incomparable: why bits and times are not compared, or "".

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
            *self.claims, *self.cases, *self.contract, *self.limits, *self.gates, *self.memory, *self.skips
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
    """One of the three: the question, a word (`no`, `yes`, `unknown`), and the sentences behind it."""

    question: str
    word: str
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """The whole: `answers` first, then each kernel that both sides know, those that came and those that went."""

    base: Baseline
    head: Baseline
    kernels: tuple[Compared, ...] = ()
    added: tuple[Subject, ...] = ()
    gone: tuple[Subject, ...] = ()
    answers: tuple[Answer, ...] = field(default=())

    @property
    def held(self) -> bool:
        """Something was compared, nothing of it changed or fell, no output lost its bits, and the head's run ended.

        Bits of two machines are no one's fault and cannot be compared: that alone lets a comparison hold, and
        `verdict` says so.
        """
        lost = any(b.unhashed for k in self.kernels for b in k.bits)
        fell = any(a.word == "yes" for a in self.answers[:2])
        return self.judged and not lost and not fell and not self.head.unfinished

    @property
    def judged(self) -> bool:
        """Whether any Case was judged on both sides."""
        return any(k.shared for k in self.kernels)

    @property
    def verdict(self) -> str:
        """What the exit code stands for, in words that claim no more than was compared."""
        if not self.judged:
            return (
                "does not hold: nothing was compared, since no Case was judged on both sides; "
                "`numcheck accept RECORDS --reason TEXT` adds a device or a kernel to a baseline"
            )
        if self.head.unfinished:
            return "does not hold: the head's run was cut off, and says nothing of what it did not come to"
        if not self.held:
            return "does not hold: bits changed or are missing, or accuracy or coverage fell"
        failing = sum(len(k.failing) for k in self.kernels)
        still = f"; {count(failing, 'claim')} did not hold on either side" if failing else ""
        if self.answers[0].word == "unknown":
            return f"held but for bits: bits not compared{still}"
        return f"held: no bits changed, and nothing fell{still}"
