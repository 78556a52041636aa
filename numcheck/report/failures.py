"""What did not hold: claimed, got and expected, the gates and why, the shrunk Case beside the first, the replay."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

from numcheck.finding import same
from numcheck.record import Row, replay_line
from numcheck.report.headroom import headroom, room_of
from numcheck.report.inputs import made
from numcheck.report.text import BROKEN, anchor, facts_of, figure, number, short
from numcheck.selection import Judged, Kernel, Place, Selection, law_order

# Failures shown in full, and further failing Cases listed under each: the rest is counted, and is in the records.
SHOWN = 60
OTHERS = 10
Claim = tuple[Kernel, str, Place]
# A gate that did not hold, as laws say why.
_BEYOND = re.compile(r"(?P<kind>\w+) (?P<value>\S+) beyond (?P<limit>\S+)")


@dataclass(frozen=True)
class FailedGate:
    """A gate that did not hold."""

    output: str
    kind: str
    value: str
    allowed: str
    reason: str


@dataclass(frozen=True)
class Fact:
    """One fact of the shrunk Case beside that of the first failing one."""

    name: str
    shrunk: str
    first: str

    @property
    def moved(self) -> bool:
        """Whether shrinking changed it."""
        return self.shrunk != self.first


@dataclass(frozen=True)
class Failure:
    """All failures of one claim, told by the smallest of them."""

    kernel: Kernel
    law: str
    place: Place
    status: str
    ran: str
    claim: str
    failed: int
    judged: int
    outputs: list[tuple[str, str, str, str]]
    gates: list[FailedGate]
    facts: list[Fact]
    shrunk: bool
    phase: str
    replay: str
    others: list[tuple[str, str]]
    pooled: bool = False
    anchor: str = ""
    made: str = ""


def failures(chosen: Selection) -> list[Failure]:
    """One Failure a claim, errors first; pooled verdicts that failed follow their claim's Cases."""
    cases: dict[Claim, list[Judged]] = defaultdict(list)
    for judged in chosen.cases:
        cases[judged.kernel, judged.law, judged.place].append(judged)
    shrunk: dict[Claim, list[Judged]] = defaultdict(list)
    for judged in chosen.shrunk:
        if judged.status in BROKEN:
            shrunk[judged.kernel, judged.law, judged.place].append(judged)
    told = _findings(chosen)
    found = [
        _failure(bad, shrunk[key], len(rows), told.get(key, []))
        for key, rows in cases.items()
        if (bad := [j for j in rows if j.status in BROKEN])
    ]
    found += [_pooled(j, cases[j.kernel, j.law, j.place]) for j in chosen.pooled if j.status in BROKEN]
    seen = {(f.kernel, f.law, f.place) for f in found}
    # Runs of the same code that end alike are told once.
    ended = {
        (kernel, law, place, row["status"], row.get("reason", "")): (kernel, law, place, row)
        for kernel, law, place, row in chosen.outcomes
        if row["status"] in BROKEN and (kernel, law, place) not in seen
    }
    found += [_unjudged(*one, len(cases[one[:3]])) for one in ended.values()]
    found.sort(key=lambda f: (BROKEN.index(f.status), law_order(f.law), f.kernel, f.place, f.pooled))
    return list(_anchored(found))


def _anchored(found: list[Failure]) -> Iterator[Failure]:
    """The first failure of a claim carries the claim's anchor."""
    seen: set[str] = set()
    for failure in found:
        place = claim_anchor(failure.kernel, failure.law, failure.place)
        yield failure if place in seen else replace(failure, anchor=place)
        seen.add(place)


def claim_anchor(kernel: Kernel, law: str, place: Place) -> str:
    """Where the page tells the failure of a claim."""
    return anchor("claim", kernel.specs, kernel.spec, law, place.name)


def _findings(chosen: Selection) -> Mapping[Claim, list[Mapping[str, Any]]]:
    """What each generated test said of its failures, by claim; runs of older versions said nothing."""
    found: dict[Claim, list[Mapping[str, Any]]] = defaultdict(list)
    for kernel, law, place, row in chosen.outcomes:
        found[kernel, law, place] += [f for f in row.get("findings", []) if f["status"] in BROKEN]
    return found


def _first_and_smallest(
    bad: list[Judged], smaller: list[Judged], said: list[Mapping[str, Any]]
) -> tuple[Judged, Judged | None]:
    """The first failure and the shrunk one, as the test itself told them: the worst, and of several runs the smallest.

    Where no test said anything, the first row and the smallest: tries that failed otherwise are among those.
    """
    for finding in sorted(said, key=lambda f: (BROKEN.index(f["status"]), weight(f["shrunk"]))):
        first = _row_of(bad, finding, "first")
        shrunk = _row_of([*smaller, *bad], finding, "shrunk")
        if first is not None and shrunk is not None:
            return first, shrunk if shrunk.row["case"] != first.row["case"] else None
    return bad[0], min(smaller, key=lambda j: weight(j.row["case"])) if smaller else None


def _row_of(rows: list[Judged], finding: Mapping[str, Any], name: str) -> Judged | None:
    """The last verdict on a finding's Case: one of the slow rungs comes after one without them."""
    alike = (j for j in rows if j.status == finding["status"] and same(j.row["case"]) == same(finding[name]))
    return max(alike, key=lambda j: j.row["time"], default=None)


def _failure(bad: list[Judged], smaller: list[Judged], judged: int, said: list[Mapping[str, Any]]) -> Failure:
    first, smallest = _first_and_smallest(bad, smaller, said)
    told = smallest or first
    row = told.row
    others = [j for j in bad if j is not first and j is not told][:OTHERS]
    return Failure(
        told.kernel,
        told.law,
        told.place,
        min((j.status for j in bad), key=BROKEN.index),
        first.backend,
        row["claim"],
        len(bad),
        judged,
        _outputs(row),
        _gates(row),
        _facts(row["case"], first.row["case"]),
        smallest is not None,
        first.row["phase"],
        _replay(told),
        [(short(j.row["case"]), _replay(j)) for j in others],
        made=made(row["case"]),
    )


def _pooled(judged: Judged, cases: list[Judged]) -> Failure:
    row, count = judged.row, len(cases)
    gates, outputs = _gates(row), _outputs(row)
    # A pooled row ran nothing itself, so it has no Evidence of its own: where its Cases ran is where it ran.
    ran = ", ".join(sorted({case.backend for case in cases})) or judged.backend
    return Failure(judged.kernel, judged.law, judged.place, judged.status, ran, row["claim"], count, count,
                   outputs, gates, [], False, "pooled", "", [], pooled=True)  # fmt: skip


def _unjudged(kernel: Kernel, law: str, place: Place, row: Row, judged: int) -> Failure:
    """A generated test that failed although no Case of it did: none was legal, or the spec contradicts itself."""
    outputs = [("*", str(row["status"]), "", row.get("reason", ""))]
    return Failure(kernel, law, place, row["status"], place.name, "", judged, judged,
                   outputs, [], [], False, "", "", [], True)  # fmt: skip


def weight(case: Mapping[str, Any]) -> tuple[int, int, int, int]:
    """How large a Case is: elements, then sizes, then facts that are not plain, then the seed."""
    sizes = [int(v) for v in case["sizes"].values()]
    odd = (case["layout"] != "contiguous") + (case["offset"] > 0)
    return prod(sizes), sum(sizes), odd, int(case.get("seed", 0))


def _replay(judged: Judged) -> str:
    return replay_line(judged.kernel.specs, judged.kernel.spec, judged.law, judged.row["case"])


def furthest(gate: Mapping[str, Any]) -> tuple[bool, float]:
    """What gates that did not hold are ordered by: how many times the limit, at most; a limit of 0 is no measure."""
    return number(gate["limit"]) == 0, room_of(gate)[0]


def led(why: str) -> str:
    """`why`, an output's reasons, with its gates in that order: the one furthest beyond its limit tells most.

    What is no gate (a write outside, a race) stays in front.
    """
    parts = why.split("; ")
    return "; ".join(sorted(parts, key=_beyond)) if sum(_BEYOND.match(part) is not None for part in parts) > 1 else why


def _beyond(part: str) -> tuple[bool, bool, float]:
    found = _BEYOND.match(part)
    if found is None:
        return False, False, 0.0
    kind, value, limit = found["kind"], abs(number(found["value"])), abs(number(found["limit"]))
    if kind == "band" and 0 < value < 1 and limit > 0:
        value, limit = 1 / value, 1 / limit
    return True, limit == 0, headroom(kind, value, limit, -inf)


def _outputs(row: Row) -> list[tuple[str, str, str, str]]:
    """Output, status, where, why; those that failed alone."""
    return [
        (name, o["status"], o.get("where", ""), led(o.get("why", "")))
        for name, o in row["outputs"].items()
        if o["status"] in BROKEN
    ]


def _gates(row: Row) -> list[FailedGate]:
    found = []
    for gate in sorted(row["gates"], key=furthest):
        value, limit, lower = number(gate["value"]), number(gate["limit"]), number(gate["lower"])
        if not lower <= value <= limit:
            found.append(
                FailedGate(
                    gate["output"],
                    gate["kind"],
                    figure(value),
                    allowed(limit, lower),
                    gate.get("reason", ""),
                )
            )
    return found


def allowed(limit: float, lower: float) -> str:
    """A gate's limits in words."""
    return f"at most {figure(limit)}" if lower == -float("inf") else f"{figure(lower)} to {figure(limit)}"


def _facts(shrunk: Mapping[str, Any], first: Mapping[str, Any]) -> list[Fact]:
    left, right = facts_of(shrunk), facts_of(first)
    return [Fact(name, left.get(name, ""), right.get(name, "")) for name in dict.fromkeys([*left, *right])]
