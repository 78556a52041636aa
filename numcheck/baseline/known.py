"""Known: what a run says of each kernel, Case by Case, without tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from numcheck.case import Case
from numcheck.gate import headroom
from numcheck.selection import Kernel, Place

# A Gate's place: law, output, kind.
GateKey = tuple[str, str, str]
# What of a drawn Case is counted -> its value -> in how many.
Draws = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Figure:
    """A Gate as a comparison needs it: its value, its limits, its spread."""

    value: float
    limit: float
    lower: float = -math.inf
    spread: float = 0.0
    vacuous: bool = False

    @property
    def headroom(self) -> float:
        """As `numcheck.gate.Gate.headroom`: 1 and above holds."""
        return headroom(self.value, self.limit, self.lower)


@dataclass(frozen=True)
class Seen:
    """One Case of a kernel on one device.

    status: law -> its status. outputs: law -> output -> status. hashes: law -> output -> digest of its bits (laws may
    give a Case values of their own, so each compares with itself). gates: the Gate nearest to its limit, for each law,
    output and kind. phase: grid, regression or draw. rungs: law -> rung of the repeat ladder -> its runs, 0 where there
    was nothing to vary, none where it was not climbed; None where the file was written before rungs were kept. why:
    law -> output that did not hold -> in a line why, and its worst element. order: what the Contract promises of each
    output's order in this Case, "out fixed, d_x any", or "" where nothing judged it.
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
    rungs: Mapping[str, Mapping[str, int]] | None = None
    why: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    order: str = ""


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
    words, by what it says it of. skipped: law -> why nothing ran. machine: what bits and times depend on. oracle: by
    name, "" where unknown. drawn: law -> what of a Case -> its value -> how many Cases were drawn with it; None where
    the file was written before they were counted. stopped: laws whose time for drawing ran out.
    """

    subject: Subject
    laws: Mapping[str, str] = field(default_factory=dict)
    pooled: Mapping[GateKey, Figure] = field(default_factory=dict)
    declared: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    cases: Mapping[str, Seen] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    oracle: str = ""
    drawn: Mapping[str, Draws] | None = None
    stopped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Certified:
    """An oracle's certificate: status, origin of the gradients, limit, number of Cases, outputs."""

    status: str
    vjp: str = ""
    limit: float = math.nan
    cases: int = 0
    outputs: tuple[str, ...] = ()


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
    itself holds two hashes, so that neither can stand for it. profiles: how hard the runs looked. certificates: by
    oracle; None where the file was written before they were kept. remarks: what else a reader of the run has to know.
    """

    kernels: Mapping[str, Known]
    when: str = ""
    commit: str = ""
    accepted: tuple[Acceptance, ...] = ()
    unfinished: tuple[str, ...] = ()
    torn: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    certificates: Mapping[str, Certified] | None = None
    remarks: tuple[str, ...] = ()
