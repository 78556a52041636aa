"""The repeat ladder of each kernel as a row of rungs, with what their repeats can tell; outputs whose order showed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numcheck.report.failures import weight
from numcheck.report.text import count, percent
from numcheck.selection import Judged, Kernel, Place, Selection
from numcheck.verdict import flip_bound

# The rungs that there are, cheap and general first; a run that climbs none of a kind should say so.
RUNGS = (
    "same process",
    "permuted order",
    "new allocation, dirty memory",
    "autograd modes",
    "thread counts",
    "fresh process",
    "compiled",
    "new addresses",
    "other work on the device",
    "late inputs on a stream",
    "graph replay",
)


@dataclass
class RungView:
    """One rung over all Cases of a kernel: runs, how many flipped each output, and why it was not climbed.

    smallest: of the Cases in which something flipped.
    """

    name: str
    cases: int = 0
    runs: int = 0
    fewest: int = 0
    flips: Counter[str] = field(default_factory=Counter)
    expected: set[str] = field(default_factory=set)
    notes: Counter[str] = field(default_factory=Counter)
    smallest: Mapping[str, Any] | None = None

    @property
    def state(self) -> str:
        """`still`, `order` (only outputs that promise any order flipped), `flip`, or `unclimbed`."""
        if not self.runs:
            return "unclimbed"
        if not self.flips:
            return "still"
        return "order" if set(self.flips) <= self.expected else "flip"

    @property
    def told(self) -> str:
        """What happened, in words."""
        if not self.runs:
            return self.notes.most_common(1)[0][0] if self.notes else "not climbed"
        if not self.flips:
            return f"no flip in {count(self.runs, 'run')}"
        return "; ".join(f"{name} flipped in {count(n, 'run')}" for name, n in self.flips.most_common())

    @property
    def power(self) -> str:
        """What the repeats without a flip bound, at 95 % confidence."""
        if not self.runs:
            return ""
        each = f"{percent(flip_bound(self.fewest))} in one Case ({count(self.fewest, 'run')})"
        if self.flips:
            return f"rates up to {each} stay unseen"
        return f"rates up to {percent(flip_bound(self.runs))} over {count(self.cases, 'Case')}, or {each}, stay unseen"


@dataclass(frozen=True)
class Ladder:
    """All rungs of one kernel on one device."""

    kernel: Kernel
    place: Place
    ran: str
    cases: int
    rungs: dict[str, RungView]


@dataclass(frozen=True)
class OrderDependent:
    """An output that promises any order, and differed: an expected finding."""

    kernel: Kernel
    place: Place
    output: str
    cases: int
    differed: int
    rungs: str
    why: str
    smallest: Mapping[str, Any]


def ladders(chosen: Selection) -> list[Ladder]:
    """One ladder a kernel and device."""
    rows: dict[tuple[Kernel, Place], list[Judged]] = defaultdict(list)
    for judged in chosen.cases:
        if judged.row["rungs"]:
            rows[judged.kernel, judged.place].append(judged)
    return [Ladder(kernel, place, some[0].backend, len(some), _rungs(some)) for (kernel, place), some in rows.items()]


def columns(found: Sequence[Ladder]) -> tuple[list[str], list[str]]:
    """The rungs that some kernel met, in their order; and those that none climbed at all."""
    met = dict.fromkeys(name for ladder in found for name in ladder.rungs)
    shown = sorted(met, key=lambda name: RUNGS.index(name) if name in RUNGS else len(RUNGS))
    return shown, [name for name in RUNGS if name not in met]


def _rungs(rows: list[Judged]) -> dict[str, RungView]:
    views: dict[str, RungView] = {}
    for judged in rows:
        outputs: Mapping[str, Any] = judged.row["outputs"]
        for rung in judged.row["rungs"]:
            view = views.setdefault(rung["name"], RungView(rung["name"]))
            if not rung["runs"]:
                view.notes[rung.get("note", "")] += 1
                continue
            view.cases += 1
            view.runs += rung["runs"]
            view.fewest = min(view.fewest or rung["runs"], rung["runs"])
            for output, flips in rung.get("flips", {}).items():
                if flips:
                    view.smallest = min(view.smallest or judged.row["case"], judged.row["case"], key=weight)
                    view.flips[output] += flips
                    if outputs.get(output, {}).get("status") == "ORDER_DEPENDENT":
                        view.expected.add(output)
    return views


def order_dependent(chosen: Selection) -> list[OrderDependent]:
    """Outputs that differed in another order, as they may."""
    cases: Counter[tuple[Kernel, Place, str]] = Counter()
    differed: dict[tuple[Kernel, Place, str], list[Judged]] = defaultdict(list)
    for judged in chosen.cases:
        if not judged.row["rungs"]:
            continue
        for output, verdict in judged.row["outputs"].items():
            key = judged.kernel, judged.place, output
            cases[key] += 1
            if verdict["status"] == "ORDER_DEPENDENT":
                differed[key].append(judged)
    return [
        _order_dependent(kernel, place, output, cases[kernel, place, output], rows)
        for (kernel, place, output), rows in differed.items()
    ]


def _order_dependent(kernel: Kernel, place: Place, output: str, cases: int, rows: list[Judged]) -> OrderDependent:
    smallest = min(rows, key=lambda judged: weight(judged.row["case"]))
    why = smallest.row["outputs"][output].get("why", "")
    return OrderDependent(kernel, place, output, cases, len(rows), _where(rows, output), why, smallest.row["case"])


def _where(rows: list[Judged], output: str) -> str:
    names = dict.fromkeys(r["name"] for j in rows for r in j.row["rungs"] if r.get("flips", {}).get(output))
    return ", ".join(names)
