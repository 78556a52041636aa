"""Gates as pictures: where each Case sits within its limits, headroom by shape, and the Cases that come nearest."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from markupsafe import Markup

from numcheck.gate import GATE_KINDS
from numcheck.record import replay_line
from numcheck.report import shapes, svg
from numcheck.report.failures import allowed
from numcheck.report.selection import Judged, Kernel, Place, Selection, law_order
from numcheck.report.text import anchor, clean, count, figure, number, short

# Pictures in one page: beyond, the gates with most headroom are left out and counted, to keep the page under 5 MB.
STRIPS = 800
PANELS = 200
WORST_CASES = 20

Facts = Mapping[str, Any]
GateKey = tuple[Kernel, Place, str, str, str]
Points = dict[tuple[Kernel, Place], list[tuple[Facts, float]]]


@dataclass
class Tally:
    """All that was seen of one gate of one output."""

    held: list[float] = field(default_factory=list)
    failed: list[float] = field(default_factory=list)
    pooled: list[tuple[float, bool]] = field(default_factory=list)
    vacuous: int = 0
    worst: tuple[float, Judged, Facts] | None = None

    @property
    def cases(self) -> int:
        """How many Cases had this gate."""
        return len(self.held) + len(self.failed) + self.vacuous

    @property
    def least(self) -> float:
        """The lowest headroom, of a pooled figure too."""
        return min([*self.held, *self.failed, *(h for h, _ in self.pooled)], default=math.inf)

    @property
    def broken(self) -> bool:
        """Whether it did not hold somewhere."""
        return bool(self.failed) or not all(held for _, held in self.pooled)


@dataclass(frozen=True)
class GateView:
    """One gate of one output: its picture (None where every value is 0 or vacuous) and the same in figures."""

    law: str
    output: str
    kind: str
    cases: int
    failed: int
    vacuous: int
    lowest: str
    median: str
    pooled: str
    picture: Markup | None
    each: int
    reason: str
    note: str


@dataclass(frozen=True)
class Grid:
    """The pictures of one law: outputs down, gates across."""

    law: str
    kinds: list[str]
    rows: list[tuple[str, list[GateView | None]]]


@dataclass(frozen=True)
class KernelView:
    """A kernel's gates on one device, and its shape pictures."""

    kernel: Kernel
    place: Place
    ran: str
    grids: list[Grid]
    quiet: list[tuple[str, list[GateView]]]
    rows: list[GateView]
    panels: list[tuple[str, Markup]]
    left_out: int
    points: int

    @property
    def anchor(self) -> str:
        """Where in the page it is."""
        return kernel_anchor(self.kernel, self.place)


def kernel_anchor(kernel: Kernel, place: Place) -> str:
    """Where the page shows a kernel's gates."""
    return anchor("kernel", kernel.specs, kernel.spec, place.name)


@dataclass(frozen=True)
class Near:
    """A Case that held with little to spare."""

    kernel: Kernel
    place: Place
    law: str
    output: str
    kind: str
    value: str
    allowed: str
    headroom: str
    case: str
    replay: str
    ran: str


def headroom(value: float, limit: float, lower: float) -> float:
    """How much larger the value might be: limit / value, 1 at the limit, 0 for NaN, inf where nothing bounds it.

    Of a two-sided gate it is that of the nearer side. At least 1 exactly where the gate holds.
    """
    if math.isnan(value):
        return 0.0
    above = limit / value if value > 0 else math.inf
    below = math.inf
    if value < 0 and lower > -math.inf:
        below = lower / value
    elif lower > 0:
        below = value / lower
    room = min(above, below)
    if math.isnan(room):
        room = 1.0  # an infinite value within an infinite limit
    return max(1.0, room) if lower <= value <= limit else min(math.nextafter(1.0, 0.0), max(0.0, room))


def tally(chosen: Selection) -> tuple[dict[GateKey, Tally], Points]:
    """Every gate by kernel, device, law, output and kind; and each Case's lowest headroom by kernel and device."""
    gates: dict[GateKey, Tally] = defaultdict(Tally)
    points: Points = defaultdict(list)
    for judged in chosen.cases:
        least = math.inf
        for gate in judged.row["gates"]:
            into = gates[judged.kernel, judged.place, judged.law, gate["output"], gate["kind"]]
            if gate.get("vacuous"):
                into.vacuous += 1
                continue
            room, holds = _room(gate)
            (into.held if holds else into.failed).append(room)
            if into.worst is None or room < into.worst[0]:
                into.worst = room, judged, gate
            least = min(least, room)
        if least < math.inf:
            points[judged.kernel, judged.place].append((judged.row["case"], least))
    for judged in chosen.pooled:
        for gate in judged.row["gates"]:
            into = gates[judged.kernel, judged.place, judged.law, gate["output"], gate["kind"]]
            if not gate.get("vacuous"):
                into.pooled.append(_room(gate))
                into.worst = into.worst or (into.pooled[-1][0], judged, gate)
    return gates, points


def _room(gate: Facts) -> tuple[float, bool]:
    value, limit, lower = number(gate["value"]), number(gate["limit"]), number(gate["lower"])
    return headroom(value, limit, lower), lower <= value <= limit


def kernels(chosen: Selection) -> tuple[list[KernelView], list[Near]]:
    """A view a kernel and device, and the Cases with least headroom of all."""
    gates, lowest = tally(chosen)
    ran = {(judged.kernel, judged.place): judged.backend for judged in chosen.cases}
    drawn = set(sorted(gates, key=lambda k: gates[k].least)[:STRIPS])
    by_kernel: dict[tuple[Kernel, Place], list[GateKey]] = defaultdict(list)
    for key in gates:
        by_kernel[key[0], key[1]].append(key)
    views: list[KernelView] = []
    panels = 0
    for (kernel, place), mine in by_kernel.items():
        outputs = list(dict.fromkeys(key[3] for key in mine))
        mine.sort(key=lambda k: (law_order(k[2]), outputs.index(k[3]), _kind_order(k[4])))
        rows = [_view(key, gates[key]) for key in mine if key in drawn]
        points = lowest[kernel, place]
        pictures = shapes.panels(points) if panels < PANELS else []
        panels += len(pictures)
        grids, quiet = _grids(rows)
        where = ran.get((kernel, place), place.name)
        views.append(KernelView(kernel, place, where, grids, quiet, rows, pictures, len(mine) - len(rows), len(points)))
    return views, _near(gates)


def _kind_order(kind: str) -> int:
    return next((i for i, known in enumerate(GATE_KINDS) if known == kind), len(GATE_KINDS))


def _grids(rows: Sequence[GateView]) -> tuple[list[Grid], list[tuple[str, list[GateView]]]]:
    """Pictures by law; and, by law, the gates that have none because every value is 0 or vacuous."""
    grids: list[Grid] = []
    quiet: list[tuple[str, list[GateView]]] = []
    for law in dict.fromkeys(row.law for row in rows):
        mine = [row for row in rows if row.law == law]
        shown = [row for row in mine if row.picture is not None]
        kinds = sorted({row.kind for row in shown}, key=_kind_order)
        at = {(row.output, row.kind): row for row in mine}
        outputs = dict.fromkeys(row.output for row in shown)
        if shown:
            grids.append(Grid(law, kinds, [(o, [at.get((o, kind)) for kind in kinds]) for o in outputs]))
        rest = [row for row in mine if row.picture is None and not (row.output in outputs and row.kind in kinds)]
        if rest:
            quiet.append((law, rest))
    return grids, quiet


def _view(key: GateKey, seen: Tally) -> GateView:
    kernel, place, law, output, kind = key
    every = seen.held + seen.failed
    low, mid = figure(min(every)) if every else "", figure(median(every)) if every else ""
    pooled = [h for h, _ in seen.pooled]
    note = ""
    if not every and not pooled:
        note = f"vacuous in all {count(seen.cases, 'Case')}" if seen.cases > 1 else "vacuous in its one Case"
    elif min([*every, *pooled]) == math.inf:
        note = f"0 in all {count(len(every), 'Case')}" if len(every) > 1 else "0 in its one Case"
    picture, each = None, 1
    if not note:
        told = f"{count(len(every), 'Case')}, {len(seen.failed)} beyond the limit, lowest headroom {low}, median {mid}"
        label = clean(f"{kernel.spec} on {place.name}, {law}: {kind} of {output}: {told}")
        drawn = svg.strip(seen.held, seen.failed, pooled, label)
        picture, each = drawn.picture, drawn.each
    return GateView(
        law,
        output,
        kind,
        seen.cases,
        len(seen.failed),
        seen.vacuous,
        low,
        mid,
        ", ".join(figure(h) for h in pooled),
        picture,
        each,
        str(seen.worst[2].get("reason", "")) if seen.worst else "",
        note,
    )


def _near(gates: Mapping[GateKey, Tally]) -> list[Near]:
    """Of each gate that held everywhere, its lowest headroom; lowest first, one Case a gate so that many are seen."""
    found: list[tuple[float, Near]] = []
    for (kernel, place, law, output, kind), seen in gates.items():
        if seen.worst is None or seen.broken or seen.worst[0] == math.inf:
            continue
        room, judged, gate = seen.worst
        case = judged.row.get("case")
        near = Near(
            kernel,
            place,
            law,
            output,
            kind,
            figure(number(gate["value"])),
            allowed(number(gate["limit"]), number(gate["lower"])),
            figure(room),
            short(case) if case else "pooled over all Cases",
            replay_line(kernel.specs, kernel.spec, law, case) if case else "",
            judged.backend,
        )
        found.append((room, near))
    return [near for _, near in sorted(found, key=lambda f: f[0])[:WORST_CASES]]
