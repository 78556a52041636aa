"""Gates as pictures: where each Case sits within its limits, and headroom by shape."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from markupsafe import Markup

from numcheck.gate import GATE_KINDS
from numcheck.harmless import clean
from numcheck.report import shapes, svg
from numcheck.report.headroom import GateKey, Points, Tally
from numcheck.report.text import anchor, count, figure
from numcheck.selection import Kernel, Place, Selection, law_order

# Pictures in one page: beyond, the gates with most headroom are left out and counted, to keep the page under 5 MB.
STRIPS = 800
PANELS = 600


@dataclass(frozen=True)
class GateView:
    """One gate of one output: its picture (None where every value is 0 or vacuous) and the same in figures."""

    law: str
    output: str
    kind: str
    cases: int
    figures: int
    unit: str
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
    quiet: list[tuple[str, str]]
    rows: list[GateView]
    trellis: shapes.Trellis | None
    left_out: int

    @property
    def anchor(self) -> str:
        """Where in the page it is."""
        return kernel_anchor(self.kernel, self.place)


def kernel_anchor(kernel: Kernel, place: Place) -> str:
    """Where the page shows a kernel's gates."""
    return anchor("kernel", kernel.specs, kernel.spec, place.name)


def kernels(chosen: Selection, gates: Mapping[GateKey, Tally], lowest: Points) -> list[KernelView]:
    """A view a kernel and device, from their `tally`."""
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
        trellis = shapes.trellis(_ordered(lowest[kernel, place])) if panels < PANELS else None
        panels += trellis.panels if trellis else 0
        grids, quiet = _grids(rows)
        where = ran.get((kernel, place), place.name)
        views.append(KernelView(kernel, place, where, grids, quiet, rows, trellis, len(mine) - len(rows)))
    return views


def _ordered(points: Mapping[tuple[str, str], list[shapes.Lowest]]) -> dict[str, list[shapes.Lowest]]:
    """Gates by name, law by law."""
    keys = sorted(points, key=lambda key: (law_order(key[0]), _kind_order(key[1])))
    return {f"{law}, {kind}": points[law, kind] for law, kind in keys}


def _kind_order(kind: str) -> int:
    return next((i for i, known in enumerate(GATE_KINDS) if known == kind), len(GATE_KINDS))


def _grids(rows: Sequence[GateView]) -> tuple[list[Grid], list[tuple[str, str]]]:
    """Pictures by law; and, by law, in words, the gates that have none because every value is 0 or vacuous."""
    grids: list[Grid] = []
    quiet: dict[str, list[str]] = defaultdict(list)
    for law in dict.fromkeys(row.law for row in rows):
        mine = [row for row in rows if row.law == law]
        shown = [row for row in mine if row.picture is not None]
        kinds = sorted({row.kind for row in shown}, key=_kind_order)
        at = {(row.output, row.kind): row for row in mine}
        outputs = dict.fromkeys(row.output for row in shown)
        if shown:
            grids.append(Grid(law, kinds, [(o, [at.get((o, kind)) for kind in kinds]) for o in outputs]))
        rest = [row for row in mine if row.picture is None and not (row.output in outputs and row.kind in kinds)]
        for text in (_named(rest, "0 wherever judged", False), _named(rest, "vacuous", True)):
            if text:
                quiet[text].append(law)
    return grids, [(", ".join(laws), text) for text, laws in quiet.items()]


def _named(rows: Sequence[GateView], what: str, vacuous: bool) -> str:
    """ "0 wherever judged: exact of out, d_x; match of out"."""
    by_kind: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if (row.figures == row.vacuous) is vacuous:
            by_kind[row.kind].append(row.output)
    told = "; ".join(f"{kind} of {', '.join(outputs)}" for kind, outputs in by_kind.items())
    return f"{what}: {told}" if told else ""


def _view(key: GateKey, seen: Tally) -> GateView:
    kernel, place, law, output, kind = key
    every = [room for room, _ in (*seen.held, *seen.failed)]
    low, mid = figure(min(every)) if every else "", figure(median(every)) if every else ""
    pooled = [h for h, _ in seen.pooled]
    note = ""
    if not every and not pooled:
        note = f"vacuous in all {count(seen.cases, 'Case')}" if seen.cases > 1 else "vacuous in its one Case"
    elif min([*every, *pooled]) == math.inf:
        note = f"0 in all {count(len(every), seen.unit)}" if len(every) > 1 else "0 in its one Case"
    picture, each = None, 1
    if not note:
        told = f"{count(len(every), seen.unit)}, {len(seen.failed)} beyond the limit"
        name = f"{kernel.spec} on {place.name}, {law}: {kind} of {output}"
        label = clean(f"{name}: {told}, lowest headroom {low}, median {mid}")
        drawn = svg.strip(seen.held, seen.failed, pooled, label)
        picture, each = drawn.picture, drawn.each
    return GateView(
        law,
        output,
        kind,
        seen.cases,
        seen.figures,
        seen.unit,
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
