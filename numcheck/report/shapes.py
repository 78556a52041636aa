"""Headroom by shape: a panel for each fact of the Cases in which they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from numcheck.report import svg
from numcheck.report.text import clean, count, figure, short

# Columns of a panel: more distinct sizes are gathered by powers of two.
COLUMNS = 8

# A Case, as JSON, and its lowest headroom.
Lowest = tuple[Mapping[str, Any], float]


def panels(points: Sequence[Lowest]) -> list[tuple[str, Markup]]:
    """One panel a size, and for dtype and regime, where the Cases differ in it."""
    values: dict[str, list[Any]] = defaultdict(list)
    for case, _ in points:
        for name, value in [*case["sizes"].items(), ("dtype", case["dtype"]), ("regime", case["regime"])]:
            values[name].append(value)
    return [
        (name, _panel(name, seen, points))
        for name, seen in values.items()
        if len(seen) == len(points) and len(set(seen)) > 1
    ]


def _panel(name: str, values: Sequence[Any], points: Sequence[Lowest]) -> Markup:
    gathered = len(set(values)) > COLUMNS
    keys: list[Any] = list(values)
    if gathered:
        keys = [v.bit_length() if isinstance(v, int) else "several" for v in values]
    order = sorted(set(keys))
    shown = [f"≥{2 ** (k - 1) if k else 0}" if gathered and isinstance(k, int) else str(k) for k in order]
    column = {key: i for i, key in enumerate(order)}
    marks = [svg.Point(column[key], room, room >= 1.0) for key, (_, room) in zip(keys, points, strict=True)]
    case, low = min(points, key=lambda p: p[1])
    label = f"lowest headroom of {count(len(points), 'Case')} by {name}; the lowest is {figure(low)} at {short(case)}"
    return svg.panel(marks, [clean(text) for text in shown], clean(label))
