"""Headroom by shape: a panel for each fact of the Cases in which they differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from numcheck.harmless import clean
from numcheck.report import svg
from numcheck.report.text import count, figure, short

# Columns of a panel: more distinct sizes are gathered by powers of two.
COLUMNS = 8

# A Case, as JSON, its lowest headroom under one gate, and its number among those judged.
Lowest = tuple[Mapping[str, Any], float, int]


@dataclass(frozen=True)
class Axis:
    """A fact of the Cases: its name, its columns, and the column of each value.

    octaves: above 0, sizes are gathered by so many powers of two.
    """

    name: str
    columns: list[str]
    column: dict[Any, int]
    octaves: int

    def of(self, case: Mapping[str, Any]) -> int:
        """The column that a Case belongs to."""
        return self.column[_key(_facts(case)[self.name], self.octaves)]


@dataclass(frozen=True)
class Trellis:
    """Panels: gates down, facts across."""

    axes: list[str]
    rows: list[tuple[str, list[Markup]]]

    @property
    def panels(self) -> int:
        """How many pictures it has."""
        return len(self.axes) * len(self.rows)


def trellis(points: Mapping[str, Sequence[Lowest]]) -> Trellis | None:
    """The panels of one kernel: gate -> its Cases. None where the Cases do not differ, or every value is 0."""
    shown = {gate: seen for gate, seen in points.items() if any(room < math.inf for _, room, _ in seen)}
    axes = list(_axes([case for seen in shown.values() for case, _, _ in seen]))
    if not shown or not axes:
        return None
    rows = [(gate, [_panel(axis, gate, seen) for axis in axes]) for gate, seen in shown.items()]
    return Trellis([axis.name for axis in axes], rows)


def _facts(case: Mapping[str, Any]) -> dict[str, Any]:
    return {**case["sizes"], "dtype": case["dtype"], "regime": case["regime"]}


def _axes(cases: Sequence[Mapping[str, Any]]) -> Iterator[Axis]:
    """One for each fact that every Case has and in which some differ."""
    facts = [_facts(case) for case in cases]
    for name in facts[0] if facts else ():
        values = {fact.get(name) for fact in facts}
        if len(values) < 2 or None in values:
            continue
        octaves = next(k for k in itertools.count() if len({_key(v, k) for v in values}) <= COLUMNS)
        order = sorted({_key(value, octaves) for value in values}, key=lambda k: (isinstance(k, str), k))
        shown = [f"≥{k}" if octaves and isinstance(k, int) else str(k) for k in order]
        yield Axis(name, [clean(text) for text in shown], {key: i for i, key in enumerate(order)}, octaves)


def _key(value: Any, octaves: int) -> Any:
    """The value, or the lower end of the octaves that it lies in."""
    if not octaves:
        return value
    if not isinstance(value, int):
        return "several"
    bucket = value.bit_length() // octaves
    return 2 ** (bucket * octaves - 1) if bucket else 0


def _panel(axis: Axis, gate: str, points: Sequence[Lowest]) -> Markup:
    marks = [svg.Point(axis.of(case), room, room >= 1.0, row) for case, room, row in points]
    case, low, _ = min(points, key=lambda p: p[1])
    told = f"headroom of {count(len(points), 'Case')} by {axis.name}; the lowest is {figure(low)} at {short(case)}"
    return svg.panel(marks, axis.columns, clean(f"{gate}: {told}"))
