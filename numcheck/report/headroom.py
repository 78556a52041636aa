"""How near each gate of each kernel comes to its limit, Case by Case: headroom, and all that was seen of one gate."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numcheck.report import shapes, svg
from numcheck.report.text import number
from numcheck.selection import Judged, Kernel, Place, Selection

Facts = Mapping[str, Any]
GateKey = tuple[Kernel, Place, str, str, str]
Points = dict[tuple[Kernel, Place], dict[tuple[str, str], list[shapes.Lowest]]]


@dataclass
class Tally:
    """All that was seen of one gate of one output."""

    held: list[svg.Spot] = field(default_factory=list)
    failed: list[svg.Spot] = field(default_factory=list)
    pooled: list[tuple[float, bool]] = field(default_factory=list)
    vacuous: int = 0
    cases: int = 0
    worst: tuple[float, Judged, Facts] | None = None

    @property
    def figures(self) -> int:
        """How many figures this gate judged or would have: a law may judge an output several times in one Case."""
        return len(self.held) + len(self.failed) + self.vacuous

    @property
    def unit(self) -> str:
        """What one figure is."""
        return "figure" if self.figures != self.cases else "Case"

    @property
    def least(self) -> float:
        """The lowest headroom, of a pooled figure too."""
        return min((h for h, _ in (*self.held, *self.failed, *self.pooled)), default=math.inf)

    @property
    def broken(self) -> bool:
        """Whether it did not hold somewhere."""
        return bool(self.failed) or not all(held for _, held in self.pooled)


def headroom(kind: str, value: float, limit: float, lower: float) -> float:
    """How much larger the value might be: limit / value, 1 at the limit, 0 for NaN, inf where nothing bounds it.

    A band holds a ratio around 1, so its headroom is taken of logarithms: ln limit / ln value. Of a two-sided gate it
    is that of the nearer side. At least 1 exactly where the gate holds.
    """
    if math.isnan(value):
        return 0.0
    holds = lower <= value <= limit
    if kind == "band" and value > 0 and limit > 1:
        value, limit = math.log(value), math.log(limit)
        lower = math.log(lower) if lower > 0 else -math.inf
    above = limit / value if value > 0 else math.inf
    below = math.inf
    if value < 0 and lower > -math.inf:
        below = lower / value
    elif lower > 0:
        below = value / lower
    room = min(above, below)
    if math.isnan(room):
        room = 1.0  # an infinite value within an infinite limit
    return max(1.0, room) if holds else min(math.nextafter(1.0, 0.0), max(0.0, room))


def tally(chosen: Selection) -> tuple[dict[GateKey, Tally], Points]:
    """Every gate by kernel, device, law, output and kind; each Case's lowest headroom by kernel, device and gate."""
    gates: dict[GateKey, Tally] = defaultdict(Tally)
    points: Points = defaultdict(lambda: defaultdict(list))
    for at, judged in enumerate(chosen.cases):
        least: dict[str, float] = {}
        met: set[int] = set()
        for gate in judged.row["gates"]:
            kind = gate["kind"]
            into = gates[judged.kernel, judged.place, judged.law, gate["output"], kind]
            into.cases += id(into) not in met
            met.add(id(into))
            if gate.get("vacuous"):
                into.vacuous += 1
                continue
            room, holds = room_of(gate)
            (into.held if holds else into.failed).append((room, at))
            if into.worst is None or room < into.worst[0]:
                into.worst = room, judged, gate
            least[kind] = min(room, least.get(kind, math.inf))
        for kind, room in least.items():
            points[judged.kernel, judged.place][judged.law, kind].append((judged.row["case"], room, at))
    for judged in chosen.pooled:
        for gate in judged.row["gates"]:
            into = gates[judged.kernel, judged.place, judged.law, gate["output"], gate["kind"]]
            if not gate.get("vacuous"):
                into.pooled.append(room_of(gate))
                into.worst = into.worst or (into.pooled[-1][0], judged, gate)
    return gates, points


def room_of(gate: Facts) -> tuple[float, bool]:
    """Headroom of a gate as a row has it, and whether it holds."""
    value, limit, lower = number(gate["value"]), number(gate["limit"]), number(gate["lower"])
    return headroom(gate["kind"], value, limit, lower), lower <= value <= limit
