"""Known: what a run says of each kernel, Case by Case, without tensors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from numcheck.case import Case
from numcheck.gate import Gate, GateKind
from numcheck.selection import Kernel, Place

T = TypeVar("T")
# A Gate's place: law, output, kind.
GateKey = tuple[str, str, str]


@dataclass(frozen=True)
class Figure:
    """A Gate as a comparison needs it: its value, its limits, its spread."""

    value: float
    limit: float
    lower: float = -math.inf
    spread: float = 0.0
    vacuous: bool = False

    def gate(self, kind: GateKind, output: str) -> Gate:
        """The Gate that it was."""
        return Gate(
            kind, output, self.value, self.limit, "", self.spread, self.lower, "vacuous" if self.vacuous else ""
        )

    def headroom(self, key: GateKey) -> float:
        """As `numcheck.gate.Gate.headroom`: 1 and above holds."""
        kind: Any = key[2]
        return self.gate(kind, key[1]).headroom


@dataclass(frozen=True)
class Seen:
    """One Case of a kernel on one device.

    status: law -> its status. outputs: law -> output -> status. hashes: law -> output -> digest of its bits (laws may
    give a Case values of their own, so each compares with itself). gates: the Gate nearest to its limit, for each law,
    output and kind. phase: grid, regression or draw.
    """

    case: Case
    phase: str = "grid"
    status: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    hashes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gates: Mapping[GateKey, Figure] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    measured_bytes: int | None = None
    formula_bytes: int | None = None


@dataclass(frozen=True)
class Subject:
    """A kernel on one device: where its verdicts come from."""

    kernel: Kernel
    place: Place

    @property
    def name(self) -> str:
        """As sentences name it."""
        return f"{self.kernel.spec} on {self.place.name}"

    @property
    def key(self) -> str:
        """One line that tells it from every other, also from a kernel of the same name in another module."""
        return f"{self.kernel.specs} {self.name}"


@dataclass(frozen=True)
class Known:
    """What one run says of one kernel on one device.

    laws: law -> the status of the whole generated test. pooled: the Gates over all Cases. declared: the Contract in
    words, by what it says it of. skipped: law -> why nothing ran. machine: what bits and times depend on.
    """

    subject: Subject
    laws: Mapping[str, str] = field(default_factory=dict)
    pooled: Mapping[GateKey, Figure] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    cases: Mapping[str, Seen] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Acceptance:
    """Why a baseline was accepted: the reason in words, when, of which commit, and what had changed."""

    reason: str
    when: str
    commit: str
    changed: str


@dataclass(frozen=True)
class Baseline:
    """One side of a comparison.

    unfinished: what was started and never judged, and files that could not be read. torn: Cases of which the run
    itself holds two hashes, so that neither can stand for it.
    """

    kernels: Mapping[str, Known]
    when: str = ""
    commit: str = ""
    accepted: tuple[Acceptance, ...] = ()
    unfinished: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()


def narrowed(base: Baseline, head: Baseline) -> Baseline:
    """Of `base`, the kernels and laws that `head` judged: for a run that asked for a part only."""
    kept = {}
    for key, now in head.kernels.items():
        if key in base.kernels:
            then = base.kernels[key]
            # A law that could not run was asked for; a skip without a law is one of every law.
            asked = {*now.laws, *now.skipped, *(then.laws if "" in now.skipped else ())}
            laws = {law: status for law, status in then.laws.items() if law in asked}
            skipped = {law: why for law, why in then.skipped.items() if law in asked}
            cases = {name: seen for name, seen in then.cases.items() if any(law in laws for law in seen.status)}
            kept[key] = replace(then, laws=laws, skipped=skipped, cases=cases)
    return replace(base, kernels=kept)


def within(base: Baseline, modules: Collection[str]) -> Baseline:
    """Of `base`, the kernels of these specs modules."""
    kept = {key: known for key, known in base.kernels.items() if known.subject.kernel.specs in modules}
    return replace(base, kernels=kept)


def joined(then: Known, now: Known) -> Known:
    """`then` with each law that `now` judged, or says could not run, replaced whole; the other laws stay, Case by Case.

    Bits of a law that stays are kept only where both were judged on one machine: the file names one machine a kernel.
    """
    replaced = {*now.laws, *now.skipped}
    one = all(then.machine[name] == fact for name, fact in now.machine.items() if name in then.machine)
    cases = {key: _less(seen, replaced, one) for key, seen in then.cases.items()}
    cases = {key: seen for key, seen in cases.items() if seen.status}
    cases |= {key: _both(cases[key], seen) if key in cases else seen for key, seen in now.cases.items()}
    return replace(
        now,
        laws={**_but(then.laws, replaced), **now.laws},
        pooled={**{key: f for key, f in then.pooled.items() if key[0] not in replaced}, **now.pooled},
        declared=now.declared or then.declared,
        skipped={**_but(then.skipped, {*replaced, ""}), **now.skipped},
        cases=dict(sorted(cases.items())),
        machine={**then.machine, **now.machine},
    )


def _but(by_law: Mapping[str, T], laws: Collection[str]) -> dict[str, T]:
    return {law: value for law, value in by_law.items() if law not in laws}


def _less(seen: Seen, laws: Collection[str], hashes: bool) -> Seen:
    """`seen` without what these laws said of it."""
    bytes_of = (None, None) if "memory" in laws else (seen.measured_bytes, seen.formula_bytes)
    return Seen(
        seen.case,
        seen.phase,
        _but(seen.status, laws),
        _but(seen.outputs, laws),
        _but(seen.hashes, laws) if hashes else {},
        {key: figure for key, figure in seen.gates.items() if key[0] not in laws},
        _but(seen.seconds, laws) if hashes else {},
        *bytes_of,
    )


def _both(one: Seen, other: Seen) -> Seen:
    """What two sets of laws, with none in common, say of one Case."""
    measured = other if other.measured_bytes is not None else one
    return Seen(
        other.case,
        other.phase,
        {**one.status, **other.status},
        {**one.outputs, **other.outputs},
        {**one.hashes, **other.hashes},
        {**one.gates, **other.gates},
        {**one.seconds, **other.seconds},
        measured.measured_bytes,
        measured.formula_bytes,
    )
