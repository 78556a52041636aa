"""Faults: which law catches which broken kernel, what survives, and what the usual test would have caught."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numcheck.record import Records, Row
from numcheck.report.text import short
from numcheck.selection import law_order

# Below this share of mistakes killed, the laws do not pin a kernel down.
LEAST = 0.9
# What is no mutant of this kernel here: it does not load, stands in a branch that another kernel builds, or cannot run.
UNJUDGED = ("STILLBORN", "ABSENT", "UNAVAILABLE")


@dataclass
class Line:
    """One line of the matrix: a declared fault, or all mutants of one operator.

    killed: law -> how many it caught first. missed: laws that were asked to the end and did not catch it.
    """

    name: str
    about: str = ""
    spec: str = ""
    expected: str = ""
    total: int = 0
    killed: Counter[str] = field(default_factory=Counter)
    missed: set[str] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    raised: int = 0
    caught: int = 0
    compared: int = 0
    seconds: float = 0.0
    case: str = ""
    why: str = ""
    again: str = ""

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row."""
        self.total += 1
        self.statuses[row["status"]] += 1
        self.seconds += float(row.get("seconds", 0.0))
        self.raised += bool(row.get("raised")) and row["status"] == "KILLED"
        # The usual test and the laws are compared on the same faults: those that load, and that no reason excuses.
        if "usual" in row and row["status"] in ("KILLED", "SURVIVED"):
            self.compared += 1
            self.caught += bool(row["usual"])
        if row["status"] == "KILLED":
            self.killed[row["law"]] += 1
        for law, caught in row.get("laws", {}).items():
            if caught and law != row["law"]:
                self.killed[law] += 1
            elif not caught:
                self.missed.add(law)

    @property
    def dead(self) -> int:
        """How many were killed."""
        return self.statuses["KILLED"]

    @property
    def alive(self) -> int:
        """How many no law kills: survivors, and those of a refuted reason that no law catches."""
        return self.statuses["SURVIVED"] + self.statuses["REFUTED"]

    @property
    def hung(self) -> int:
        """How many did not end where the honest spec did: the run has caught them, and no law."""
        return self.statuses["HUNG"]

    @property
    def elsewhere(self) -> int:
        """How many stand in a branch that this kernel never builds, and another does, under which they are judged."""
        return self.statuses["ABSENT"]

    @property
    def each(self) -> float:
        """Seconds a fault, on average."""
        return self.seconds / self.total if self.total else 0.0

    @property
    def judged(self) -> int:
        """How many could be judged: all but those that do not load, others alone build, or that cannot run here."""
        return self.total - sum(self.statuses[status] for status in UNJUDGED)

    @property
    def share(self) -> str:
        """Killed, over all that were judged, in whole per cent and never rounded up."""
        return f"{100 * self.dead // self.judged} %" if self.judged else ""

    @property
    def usual(self) -> str:
        """What the usual test caught of the same."""
        return f"{self.caught} of {self.compared}" if self.compared else ""


@dataclass(frozen=True)
class Mark:
    """One fault that needs a reader: a survivor, an explained one, a refuted reason, one that does not load."""

    id: str
    spec: str
    status: str
    where: str
    text: str
    before: str
    after: str
    why: str
    tried: str
    reason: str
    again: str


@dataclass(frozen=True)
class Faults:
    """The section: the matrix, the score of each kernel, and what survived.

    survivors: those without a reason. reasoned: those whose written reason says what finding them would take.
    explained: those that a written reason proves to be no mistake. hung: those that did not end.
    idle: laws that caught nothing. whole: other laws were asked too where one had caught a fault.
    """

    laws: list[str]
    declared: list[Line]
    operators: list[Line]
    specs: list[Line]
    survivors: list[Mark]
    reasoned: list[Mark]
    explained: list[Mark]
    refuted: list[Mark]
    hung: list[Mark]
    stillborn: list[Mark]
    idle: list[str]
    whole: bool
    mutants: Line
    faults: Line

    @property
    def held(self) -> bool:
        """Every declared fault is caught by its law, no reason is refuted, of each kernel's mistakes enough are killed.

        A mutant that a reviewed reason proves to be none is no mistake, and one that hangs proves nothing of the laws;
        the shares count all mutants all the same. A declared fault that hangs is not caught by the law that it names.
        """
        counted = ((line, line.judged - line.statuses["EQUIVALENT"] - line.hung) for line in self.specs)
        enough = all(line.dead >= LEAST * count for line, count in counted)
        return not self.faults.alive and not self.faults.hung and not self.refuted and enough

    @property
    def idleness(self) -> str:
        """The laws that caught nothing, called out; "" where there are none."""
        if not self.idle:
            return ""
        if self.whole:
            return f"Caught nothing anywhere: {', '.join(self.idle)}"
        why = "a fault ends with its first kill; --all-laws asks every law of every fault"
        return f"Caught nothing first: {', '.join(self.idle)} ({why})"

    @property
    def sentences(self) -> list[str]:
        """The section in a few clauses, for the head of the page."""
        said = []
        if self.faults.total:
            said.append(f"{self.faults.dead} of {self.faults.judged} declared faults caught by the law that they name")
        if self.mutants.total:
            said.append(f"{self.mutants.dead} of {self.mutants.judged} source mutants killed")
        if self.faults.hung + self.mutants.hung:
            said.append(f"{self.faults.hung + self.mutants.hung} hung, which no law has judged")
        if self.refuted:
            said.append(f"{len(self.refuted)} written reasons refuted")
        return said


def faults(records: Records) -> Faults | None:
    """What the "fault" rows say together; None where there are none. Of one fault the latest row counts."""
    latest: dict[tuple[str, str, str], Row] = {}
    for row in records.of("fault"):
        latest[row["specs"], row["spec"], row["fault"]] = row
    return board(list(latest.values())) if latest else None


def board(rows: Sequence[Mapping[str, Any]]) -> Faults:
    """The section that these rows make."""
    declared = [row for row in rows if row["made"] == "declared"]
    mutants = [row for row in rows if row["made"] == "mutant"]
    marks: dict[str, list[Mark]] = {}
    for row in mutants:
        marks.setdefault(row["status"], []).append(_mark(row))
    asked = {law for row in rows for law in (*row.get("tried", {}), *row.get("laws", {}), row["law"]) if law}
    laws = sorted(asked, key=law_order)
    total = _lines(rows, lambda row: "all")
    killing = total[0].killed if total else Counter[str]()
    return Faults(
        laws,
        [_declared(row) for row in declared],
        sorted(_lines(mutants, lambda row: row.get("operator", "")), key=lambda line: line.name),
        _lines(mutants, lambda row: row["spec"]),
        [mark for mark in marks.get("SURVIVED", []) if not mark.reason],
        [mark for mark in marks.get("SURVIVED", []) if mark.reason],
        marks.get("EQUIVALENT", []),
        marks.get("REFUTED", []),
        marks.get("HUNG", []),
        marks.get("STILLBORN", []),
        [law for law in laws if not killing[law]],
        any(not caught for row in rows if row["status"] == "KILLED" for caught in row.get("laws", {}).values()),
        next(iter(_lines(mutants, lambda row: "mutants")), Line("mutants")),
        next(iter(_lines(declared, lambda row: "declared")), Line("declared")),
    )


def _lines(rows: Iterable[Mapping[str, Any]], name: Any) -> list[Line]:
    found: dict[str, Line] = {}
    for row in rows:
        found.setdefault(name(row), Line(name(row))).add(row)
    return list(found.values())


def _declared(row: Mapping[str, Any]) -> Line:
    about = f"{row.get('doc', '')} ({row['source']})" if row.get("source") else row.get("doc", "")
    line = Line(row["fault"], about, row["spec"], row.get("expected", ""), why=row["why"], again=_again(row))
    line.add(row)
    line.case = short(row["case"]) if "case" in row else "over all Cases" if row["law"] else ""
    return line


def _mark(row: Mapping[str, Any]) -> Mark:
    place = f"{str(row.get('file', '')).rsplit('/', 1)[-1]}:{row['line']}" if "line" in row else ""
    tried = ", ".join(f"{law} {count}" for law, count in row.get("tried", {}).items())
    reason = f"{row.get('claim', '')}: {row['reason']}" if row.get("reason") else ""
    text, before, after = (str(row.get(key, "")) for key in ("text", "before", "after"))
    return Mark(
        row["fault"], row["spec"], row["status"], place, text, before, after, row["why"], tried, reason, _again(row)
    )


def _again(row: Mapping[str, Any]) -> str:
    """The line that scores one fault again."""
    made = "--declared" if row["made"] == "declared" else "--mutants"
    return f"numcheck faults --specs {shlex.quote(row['specs'])} {made} -k {shlex.quote(row['fault'])}"
