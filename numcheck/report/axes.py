"""Pictures of a card on axes of their own: gates then and now, contributors an address, bytes, ratios of time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from markupsafe import Markup

from numcheck.report import svg
from numcheck.report.text import figure

# Gates then and now: two rows on the headroom axis, marks this far apart, the lowest of a row as a bar.
ROWS, BAND, BAR = ("then", "now"), 15, 11
# Contributors an address, on a logarithmic axis; order matters from 3 on, since two addends commute.
MANY = (1, 3, 10, 100, 1000)
ORDER_MATTERS = 3
# A picture of bytes in pixels, and its margins for the labels.
WIDE, HIGH, LEFT, BOTTOM, TOP = 420, 150, 58, 18, 8
TICKS = 4
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
# A ratio of times from a quarter to fourfold, and the ends of the axis hold what lies beyond.
RATIOS = ((0.25, "¼"), (0.5, "½"), (1.0, "1"), (2.0, "2"), (4.0, "4"))
RING, SQUARE = "m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0z", "m-2-2h4v4h-4z"


def then_now(then: Sequence[float], now: Sequence[svg.Spot], pooled: Sequence[float], label: str) -> Markup:
    """Headrooms of the same Cases in two runs on one axis: the base above as rings, the head below.

    The head's marks lead to their Cases, each to the one with the least headroom of those that it stands for. pooled:
    the head's figures of all Cases together, which lead to none.
    """
    cases: dict[int, svg.Spot] = {}
    for spot in now:
        column = _column(spot[0])
        cases[column] = min(spot, cases.get(column, spot))
    rows = {x: row for x, (_, row) in cases.items()}
    above, below = {_column(room) for room in then}, {_column(room) for room in pooled}
    parts = [
        f'<path class="beyond" d="M0 0h{svg.LIMIT}v{2 * BAND}h-{svg.LIMIT}z"/>',
        svg.path("tick", (f"M{svg.x_of(10.0**tick):.0f} 0v{2 * BAND}" for tick, _ in svg.TICKS[2:])),
        f'<path class="limit" d="M{svg.LIMIT} 0v{2 * BAND}"/>',
        *_row(0, above, {}),
        *_row(1, below - rows.keys(), rows),
    ]
    return svg.picture("thennow", svg.WIDTH, 2 * BAND, label, parts)


def _row(number: int, plain: Set[int], rows: Mapping[int, int]) -> Iterator[str]:
    """The marks of one run by column, `rows` those that lead to a Case, and a bar at the lowest of them all."""
    name, y = ROWS[number], BAND * number + BAND // 2
    for kind, mark in (("held", svg.DOT if number else RING), ("failed", svg.CROSS)):
        held = kind == "held"
        yield svg.path(f"{name} {kind}", (f"M{x} {y}{mark}" for x in sorted(plain) if (x > svg.LIMIT) is held))
        yield svg.marks(f"{name} {kind}", mark, ((x, y, rows[x]) for x in sorted(rows) if (x > svg.LIMIT) is held))
    if plain or rows:
        yield svg.path("low", [f"M{min((*plain, *rows))} {y - BAR // 2}v{BAR}"])


def _column(room: float) -> int:
    return svg.LIMIT + svg.STEP * math.floor((svg.x_of(room) - svg.LIMIT) / svg.STEP) + svg.STEP // 2 + 1


class Contributor(NamedTuple):
    """A run of one Case: how many programs wrote one address, how many addends atomics gave one, its number."""

    writers: int
    addends: int
    row: int


def contributors(seen: Sequence[Contributor], label: str) -> Markup:
    """The most contributors to one address, run by run: stores as squares, addends of atomics as dots."""
    limit = round(_many(ORDER_MATTERS)) - svg.STEP // 2
    height = svg.HEIGHT + 12
    parts = [
        f'<path class="open" d="M{limit} 0H{svg.WIDTH}v{svg.HEIGHT}H{limit}z"/>',
        svg.path("tick", (f"M{_many(n):.0f} 0v{svg.HEIGHT}" for n in MANY)),
        svg.marks("stores", SQUARE, _stack((c.writers, c.row) for c in seen if c.addends == 0)),
        svg.marks("held", svg.DOT, _stack((c.addends, c.row) for c in seen if c.addends > 0)),
        *(f'<text x="{_many(n):.0f}" y="{height - 2}" text-anchor="middle">{n}</text>' for n in MANY),
    ]
    return svg.picture("contributors", svg.WIDTH, height, label, parts)


def _many(n: int) -> float:
    top = math.log2(MANY[-1])
    return svg.MARGIN + min(1.0, math.log2(max(1, n)) / top) * (svg.WIDTH - 2 * svg.MARGIN)


def _stack(counts: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    columns: dict[int, list[int]] = defaultdict(list)
    for n, row in counts:
        columns[round(_many(n))].append(row)
    return [
        (x, svg.HEIGHT - svg.FOOT - 6 * level, row)
        for x, rows in sorted(columns.items())
        for level, row in enumerate(rows[: svg.STACK])
    ]


class Bytes(NamedTuple):
    """A Case in the picture of memory: its elements, what was measured (None: extrapolated), the formula, its row."""

    elements: int
    measured: int | None
    formula: int
    row: int = -1


def memory(seen: Sequence[Bytes], label: str) -> Markup:
    """Bytes by elements, both logarithmic: measured as dots, the formula as rings, extrapolated as diamonds."""
    most = max(math.log2(1 + b.elements) for b in seen) or 1.0
    top = max(math.log2(1 + max(b.formula, b.measured or 0)) for b in seen) or 1.0

    def x(elements: int) -> int:
        return round(LEFT + 6 + math.log2(1 + elements) / most * (WIDE - LEFT - 14))

    def y(count: int) -> int:
        return round(HIGH - BOTTOM - 5 - math.log2(1 + count) / top * (HIGH - BOTTOM - TOP - 5))

    measured = [b for b in seen if b.measured is not None]
    parts = [
        *_bytes_axis(top, y),
        *_elements_axis(most, x),
        svg.path("formula", (f"M{x(b.elements)} {y(b.formula)}{RING}" for b in measured)),
        svg.path("pooled", (f"M{x(b.elements)} {y(b.formula)}{svg.DIAMOND}" for b in seen if b.measured is None)),
    ]
    for held in (True, False):
        mine = [b for b in measured if ((b.measured or 0) <= b.formula) is held]
        spots = ((x(b.elements), y(b.measured or 0), b.row) for b in mine)
        parts.append(svg.marks("held" if held else "failed", svg.DOT if held else svg.CROSS, spots))
    return svg.picture("bytes", WIDE, HIGH, label, parts)


def _bytes_axis(top: float, y: Callable[[int], int]) -> list[str]:
    step = max(1, math.ceil(top / TICKS)) if top < 10 * TICKS else 10 * math.ceil(top / (10 * TICKS))
    parts = []
    for power in range(0, int(top) + 1, step):
        count = 2**power if power else 0
        parts.append(f'<path class="tick" d="M{LEFT} {y(count)}H{WIDE}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{y(count) + 4}" text-anchor="end">{size(count)}</text>')
    return parts


def _elements_axis(most: float, x: Callable[[int], int]) -> list[str]:
    step = max(4, 4 * math.ceil(most / 28))
    return [
        f'<text x="{x(2**power)}" y="{HIGH - 4}" text-anchor="middle">{_power(power)}</text>'
        for power in range(0, int(most) + 1, step)
    ]


def _power(power: int) -> str:
    return str(2**power) if power < 14 else f"2^{power}"


def size(count: int) -> str:
    """Bytes with a binary unit: "1.5 MiB"."""
    value, unit = float(count), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{figure(value)} {UNITS[unit]}"


def interval(ratio: float, low: float, high: float, label: str) -> Markup:
    """A ratio of times with its interval, around 1."""
    y = 9
    parts = [
        svg.path("tick", (f"M{_ratio(at):.0f} 0v18" for at, _ in RATIOS if at != 1)),
        f'<path class="limit" d="M{_ratio(1.0):.0f} 0v18"/>',
        f'<path class="range" d="M{_ratio(low):.0f} {y}H{max(_ratio(high), _ratio(low) + 1):.0f}"/>',
        f'<path class="pooled" d="M{_ratio(ratio):.0f} {y}{svg.DIAMOND}"/>',
        *(f'<text x="{_ratio(at):.0f}" y="29" text-anchor="middle">{name}</text>' for at, name in RATIOS),
    ]
    return svg.picture("ratio", svg.WIDTH, 31, label, parts)


def _ratio(value: float) -> float:
    if not value > 0:
        return float(svg.MARGIN)
    share = (math.log2(value) - math.log2(RATIOS[0][0])) / math.log2(RATIOS[-1][0] / RATIOS[0][0])
    return svg.MARGIN + min(1.0, max(0.0, share)) * (svg.WIDTH - 2 * svg.MARGIN)
