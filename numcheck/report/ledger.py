"""What proved nothing, what could not run, and what one Case says on two devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from numcheck.finding import same
from numcheck.record import replay_line
from numcheck.report.text import short
from numcheck.selection import Judged, Kernel, Place, Selection, law_order

# Rows of one table: the rest is counted.
ROWS = 200
# Differing Cases listed a kernel and law where two devices are set side by side.
DIFFERING = 10


@dataclass
class Vacuous:
    """An output, or one gate of it, that could not have failed in some Cases, and the reason given most often."""

    kernel: Kernel
    place: Place
    law: str
    output: str
    what: str
    cases: int = 0
    vacuous: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def why(self) -> str:
        """The reason given most often."""
        return self.reasons.most_common(1)[0][0] if self.reasons else ""

    @property
    def further(self) -> int:
        """How many other reasons were given."""
        return max(0, len(self.reasons) - 1)


def vacuous(chosen: Selection) -> tuple[list[Vacuous], list[Vacuous]]:
    """Outputs whose verdict, and gates whose figure, could not have failed."""
    outputs: dict[tuple[Any, ...], Vacuous] = {}
    gates: dict[tuple[Any, ...], Vacuous] = {}
    for judged in chosen.cases:
        kernel, place, law = judged.kernel, judged.place, judged.law
        for name, verdict in judged.row["outputs"].items():
            key = kernel, place, law, name
            if key not in outputs:
                outputs[key] = Vacuous(kernel, place, law, name, "verdict")
            _count(outputs[key], verdict["status"] == "VACUOUS", verdict.get("why", ""))
        for gate in judged.row["gates"]:
            one = kernel, place, law, gate["output"], gate["kind"]
            if one not in gates:
                gates[one] = Vacuous(kernel, place, law, gate["output"], gate["kind"])
            _count(gates[one], bool(gate.get("vacuous")), gate.get("vacuous", ""))
    return _sorted(outputs.values()), _sorted(gates.values())


def _count(entry: Vacuous, empty: bool, why: str) -> None:
    entry.cases += 1
    if empty:
        entry.vacuous += 1
        entry.reasons[why] += 1


def _sorted(entries: Iterable[Vacuous]) -> list[Vacuous]:
    """Those that were ever vacuous; those that always were come first."""
    found = [e for e in entries if e.vacuous]
    return sorted(found, key=lambda e: (-e.vacuous / e.cases, law_order(e.law), e.kernel, e.place))


@dataclass
class Skip:
    """What could not run: why, what it needs, and which claims and Cases wait for it."""

    reason: str
    needs: str
    place: Place
    claims: list[str] = field(default_factory=list)
    cases: int = 0


def skips(chosen: Selection) -> list[Skip]:
    """The skip ledger, by reason."""
    found: dict[tuple[str, str, Place], Skip] = {}

    def skip(reason: str, needs: str, place: Place, claim: str) -> Skip:
        entry = found.setdefault((reason, needs, place), Skip(reason, needs, place))
        if claim not in entry.claims:
            entry.claims.append(claim)
        return entry

    for kernel, law, place, row in chosen.unavailable:
        skip(row["reason"], row["needs"], place, f"{kernel.spec} under {law or 'every law'}")
    for judged in chosen.cases:
        if judged.status == "UNAVAILABLE":
            needs = str(judged.row["figures"].get("needs", ""))
            why = next((o.get("why", "") for o in judged.row["outputs"].values() if o["status"] == "UNAVAILABLE"), "")
            skip(why, needs, judged.place, f"{judged.kernel.spec} under {judged.law}").cases += 1
    return list(found.values())


@dataclass
class Beside:
    """One kernel and law whose Cases were judged on several devices."""

    kernel: Kernel
    law: str
    left: str
    right: str
    cases: int = 0
    agree: int = 0
    bits: int = 0
    compared: int = 0
    differing: list[tuple[str, str, str, str]] = field(default_factory=list)


def side_by_side(chosen: Selection) -> list[Beside]:
    """Cases judged on two devices: does the status agree, and do the bits?"""
    seen: dict[tuple[Kernel, str, Hashable], dict[Place, Judged]] = defaultdict(dict)
    several = len({judged.place for judged in chosen.cases}) > 1
    for judged in chosen.cases if several else ():
        seen[judged.kernel, judged.law, same(judged.row["case"])][judged.place] = judged
    found: dict[tuple[Kernel, str, Place, Place], Beside] = {}
    for (kernel, law, _), by_place in seen.items():
        first, *rest = sorted(by_place)
        for other in rest:
            left, right = by_place[first], by_place[other]
            entry = found.setdefault((kernel, law, first, other), Beside(kernel, law, left.backend, right.backend))
            _compare(entry, left, right)
    return list(found.values())


def _compare(entry: Beside, left: Judged, right: Judged) -> None:
    entry.cases += 1
    hashes, others = left.row["hashes"], right.row["hashes"]
    shared = [o for o in hashes if o in others and _ordered(left, o) and _ordered(right, o)]
    entry.compared += bool(shared)
    entry.bits += bool(shared) and all(hashes[o] == others[o] for o in shared)
    if left.status == right.status:
        entry.agree += 1
    elif len(entry.differing) < DIFFERING:
        case = left.row["case"]
        line = replay_line(entry.kernel.specs, entry.kernel.spec, entry.law, case)
        entry.differing.append((short(case), left.status, right.status, line))


def _ordered(judged: Judged, output: str) -> bool:
    return bool(judged.row["outputs"].get(output, {}).get("status") != "ORDER_DEPENDENT")
