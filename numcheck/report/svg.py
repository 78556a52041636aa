"""Pictures as inline SVG: colours come from the page's style sheet by class, and only numbers go into the paths."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

# The headroom axis: limit / value from a tenth to a thousandfold, in decades. Beyond, marks sit on its ends.
LEAST, MOST = -1, 3
TICKS = ((-1, "0.1"), (0, "1"), (1, "10"), (2, "100"), (3, "∞"))
# A strip in pixels: width, height, margin at both ends, distance between marks, first mark's height above the foot.
WIDTH, HEIGHT, MARGIN, STEP, FOOT = 188, 38, 8, 5, 4
# Marks on top of each other in a strip; where more Cases share a column, each mark stands for several.
STACK = 6
# A panel of the shape pictures in pixels; a column is at least as wide as its label.
PANEL, PANEL_HEIGHT, PANEL_LEFT, PANEL_BOTTOM, PANEL_TOP, LEVEL = 158, 98, 26, 16, 5, 4
LETTER = 6.2
DOT, CROSS, DIAMOND = "h0", "m-2.5-2.5l5 5m0-5l-5 5", "m-4 0l4-4 4 4-4 4z"


def along(headroom: float) -> float:
    """Where on the axis a headroom lies, 0 (left end) to 1."""
    if headroom <= 0 or math.isnan(headroom):
        return 0.0
    if math.isinf(headroom):
        return 1.0
    return (min(MOST, max(LEAST, math.log10(headroom))) - LEAST) / (MOST - LEAST)


def x_of(headroom: float) -> float:
    return MARGIN + along(headroom) * (WIDTH - 2 * MARGIN)


LIMIT = round(x_of(1.0))


# A headroom, and the number of the judged Case that it is of: what a mark of a picture leads to.
Spot = tuple[float, int]


@dataclass(frozen=True)
class Strip:
    """The picture, and how many Cases one of its marks stands for at most."""

    picture: Markup
    each: int


def strip(held: Sequence[Spot], failed: Sequence[Spot], pooled: Sequence[float], label: str) -> Strip:
    """Each Case of one gate at its headroom: dots right of the limit hold, crosses left of it do not.

    Pooled figures are diamonds. A mark that stands for several Cases leads to the one with the least headroom.
    """
    columns = _columns(held), _columns(failed)
    most = max((len(spots) for column in columns for spots in column.values()), default=1)
    each = max(1, math.ceil(most / STACK))
    parts = [
        f'<path class="beyond" d="M0 0h{LIMIT}v{HEIGHT}h-{LIMIT}z"/><path class="tick" d="',
        *(f"M{x_of(10.0**tick):.0f} 0v{HEIGHT}" for tick, _ in TICKS[2:]),
        f'"/><path class="limit" d="M{LIMIT} 0v{HEIGHT}"/>',
        marks("held", DOT, _stacked(columns[0], each)),
        marks("failed", CROSS, _stacked(columns[1], each)),
        path("pooled", (f"M{x_of(h):.0f} {HEIGHT / 2:.0f}{DIAMOND}" for h in pooled)),
    ]
    return Strip(picture("strip", WIDTH, HEIGHT, label, parts), each)


def _columns(spots: Iterable[Spot]) -> dict[int, list[Spot]]:
    """Cases by pixel column; columns are counted from the limit, so that none straddles it."""
    found: dict[int, list[Spot]] = defaultdict(list)
    for spot in spots:
        found[LIMIT + STEP * math.floor((x_of(spot[0]) - LIMIT) / STEP) + STEP // 2 + 1].append(spot)
    return found


def _stacked(columns: Mapping[int, list[Spot]], each: int) -> Iterable[tuple[int, int, int]]:
    for x, spots in sorted(columns.items()):
        spots.sort()
        yield from ((x, HEIGHT - FOOT - 6 * row, spots[row * each][1]) for row in range(math.ceil(len(spots) / each)))


def scale() -> Markup:
    """The axis under a column of strips."""
    texts = [f'<text x="{x_of(10.0**tick):.0f}" y="9" text-anchor="middle">{name}</text>' for tick, name in TICKS]
    return picture("scale", WIDTH, 12, "headroom axis: 0.1, the limit at 1, 10, 100, and beyond", texts)


class Point(NamedTuple):
    """A Case in a shape picture: its column, its lowest headroom, whether it held, its number among those judged."""

    column: int
    headroom: float
    held: bool
    row: int


def panel(points: Sequence[Point], columns: Sequence[str], label: str) -> Markup:
    """Lowest headroom of each Case by one fact of its shape; a bar marks the lowest of each column."""
    letters = max((len(name) for name in columns), default=1) + 1
    inner = max(PANEL - PANEL_LEFT, math.ceil(len(columns) * letters * LETTER))
    right, bottom, width = PANEL_LEFT + inner, PANEL_HEIGHT - PANEL_BOTTOM, inner / max(1, len(columns))

    def x(column: int) -> float:
        return PANEL_LEFT + (column + 0.5) * width

    def y(headroom: float) -> float:
        return bottom - along(headroom) * (bottom - PANEL_TOP)

    limit = round(y(1.0))
    parts = [f'<path class="beyond" d="M{PANEL_LEFT} {limit}H{right}V{bottom}H{PANEL_LEFT}z"/>']
    for tick, name in TICKS:
        at = round(y(10.0**tick))
        parts.append(f'<path class="{"tick" if tick else "limit"}" d="M{PANEL_LEFT} {at}H{right}"/>')
        parts.append(f'<text x="{PANEL_LEFT - 5}" y="{at + 4}" text-anchor="end">{name}</text>')
    for index, name in enumerate(columns):
        parts.append(f'<text x="{x(index):.0f}" y="{bottom + 12}" text-anchor="middle">{escape(name)}</text>')

    def level(headroom: float) -> int:
        return limit + LEVEL * math.floor((y(headroom) - limit) / LEVEL) + LEVEL // 2

    for held, mark in ((True, DOT), (False, CROSS)):
        spots = _spots([p for p in points if p.held is held], x, level, width)
        parts.append(marks("held" if held else "failed", mark, spots))
    lows: dict[int, float] = {}
    for point in points:
        lows[point.column] = min(point.headroom, lows.get(point.column, math.inf))
    half = min(9.0, width / 2.6)
    parts.append(path("low", (f"M{x(c) - half:.0f} {y(low):.0f}h{2 * half:.0f}" for c, low in sorted(lows.items()))))
    return picture("panel", right + 2, PANEL_HEIGHT, label, parts)


def _spots(
    points: Sequence[Point], x: Callable[[int], float], level: Callable[[float], int], width: float
) -> list[tuple[int, int, int]]:
    """Pixels to mark: equal headrooms of a column stand side by side as far as it is wide."""
    spots: list[tuple[int, int, int]] = []
    room = max(1, int(width / STEP) - 1)
    stacks: dict[tuple[int, int], list[int]] = defaultdict(list)
    for p in sorted(points, key=lambda p: p.headroom):
        stacks[p.column, level(p.headroom)].append(p.row)
    for (column, at), rows in sorted(stacks.items()):
        shown = min(len(rows), room)
        spots += [(round(x(column) + STEP * (k - (shown - 1) / 2)), at, rows[k]) for k in range(shown)]
    return spots


def share(parts: Sequence[tuple[str, int]]) -> Markup:
    """A thin bar cut by status, as a second sight of counts that stand beside it in words."""
    total, x, rects = sum(n for _, n in parts) or 1, 0.0, []
    for status, n in parts:
        rects.append(f'<path class="s-{status}" d="M{x:.1f} 0h{max(1.0, 96 * n / total - 1):.1f}v4H{x:.1f}z"/>')
        x += 96 * n / total
    return Markup(f'<svg class="share" viewBox="0 0 96 4" aria-hidden="true">{"".join(rects)}</svg>')


def path(name: str, steps: Iterable[str]) -> str:
    """One path of a class; "" where it has no step."""
    drawn = "".join(steps)
    return f'<path class="{name}" d="{drawn}"/>' if drawn else ""


def marks(name: str, mark: str, spots: Iterable[tuple[int, int, int]]) -> str:
    """One path of a mark at each (x, y, row); the rows stand beside it, so that a script finds a mark's Case."""
    spots = list(spots)
    drawn = "".join(f"M{x} {y}{mark}" for x, y, _ in spots)
    return f'<path class="{name}" data-rows="{" ".join(str(row) for *_, row in spots)}" d="{drawn}"/>' if spots else ""


def picture(name: str, width: int, height: int, label: str, parts: Iterable[str]) -> Markup:
    """The parts are numbers and escaped names; the label is escaped here."""
    head = (
        f'<svg class="{name}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="'
    )
    return Markup(head) + escape(label) + Markup('">' + "".join(parts) + "</svg>")
