"""What the page says of one Case beyond its row: each output that did not hold or moved, by which gate and how far."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numcheck.baseline import Figure, Known, Seen, Subject
from numcheck.case import Case
from numcheck.compare import Comparison
from numcheck.harmless import clean
from numcheck.report.failures import allowed, furthest, led
from numcheck.report.headroom import room_of
from numcheck.report.text import figure, number
from numcheck.selection import Judged

# Characters that the page spends on it: it stays under 5 MB, and the records have the rest.
ROOM = 1_000_000
# As the accuracy law and the comparison of bits name the worst element: got, expected, where, and what else is known.
_ELEMENT = re.compile(
    r"(?P<output>\S+) got=(?P<got>.*) expected=(?P<expected>.*) at (?P<index>[\[(][\d, ]*[\])])"
    r"(?: \(exact (?P<exact>\S+), radius (?P<radius>\S+)\))?"
)
# What is said of a Case: its outputs, [name, status, at the base or "", why, [[fact of the worst element, value]]],
# and its gates, [output, kind, value, allowed, at the base or "", whether it holds, why that limit].
Told = tuple[list[list[Any]], list[list[Any]]]


def told(judged: Sequence[Judged], order: Iterable[int], comparison: Comparison | None) -> dict[int, Told]:
    """Number of a Case -> what is said of it, as far as there is room; order: which come first."""
    found: dict[int, Told] = {}
    room = ROOM
    for at in order:
        one = _told(judged[at], *_then(judged[at], comparison))
        if not any(one):
            continue
        room -= len(json.dumps(one))
        if room < 0:
            break
        found[at] = one
    return found


def _then(judged: Judged, comparison: Comparison | None) -> tuple[Seen | None, bool]:
    """The same Case at the base, and whether there is a base."""
    if comparison is None:
        return None, False
    known: Known | None = comparison.base.kernels.get(Subject(judged.kernel, judged.place).key)
    case = Case.from_json(judged.row["case"])
    return (known.cases.get(case.key) if known else None), True


def _told(judged: Judged, then: Seen | None, compared: bool) -> Told:
    law = judged.law
    before = then.outputs.get(law, {}) if then else {}
    nearest = _nearest(judged)
    outputs = []
    for name, said in judged.row["outputs"].items():
        if said["status"] != "PASS" or before.get(name, "PASS") != "PASS":
            why = led(said.get("why", ""))
            outputs.append(
                [clean(name), said["status"], before.get(name, ""), clean(why), _element(said.get("where", ""))]
            )
    shown = {name for name, *_ in outputs}
    gates = []
    for place, (output, kind) in enumerate(sorted(nearest, key=lambda key: (nearest[key][1], nearest[key][0]))):
        _, holds, gate = nearest[output, kind]
        old = then.gates.get((law, output, kind)) if then else None
        if place and holds and clean(output) not in shown and (old is None or old.headroom >= 1):
            continue
        value, limit, lower = (number(gate[name]) for name in ("value", "limit", "lower"))
        was = _was(old, then) if compared else ""
        why = "" if holds else clean(gate.get("reason", ""))
        gates.append([clean(output), clean(kind), figure(value), allowed(limit, lower), was, int(holds), why])
    return outputs, gates


Nearest = dict[tuple[str, str], tuple[tuple[bool, float], bool, Mapping[str, Any]]]


def _nearest(judged: Judged) -> Nearest:
    """Output and kind -> how far beyond its limit or near to it, whether it holds, the Gate; the worst of several."""
    found: Nearest = {}
    for gate in judged.row["gates"]:
        if gate.get("vacuous"):
            continue
        key, far = (gate["output"], gate["kind"]), furthest(gate)
        if key not in found or far < found[key][0]:
            found[key] = far, room_of(gate)[1], gate
    return found


def _was(old: Figure | None, then: Seen | None) -> str:
    if then is None:
        return "Case not in the base"
    if old is None:
        return "no such gate"
    return "could not have failed" if old.vacuous else f"{figure(old.value)}, {allowed(old.limit, old.lower)}"


def _element(where: str) -> list[list[str]]:
    """The worst element as facts: its index, what the kernel gave, and what was expected; or the line as it stands."""
    found = _ELEMENT.fullmatch(where)
    if found is None:
        return [["where", clean(where)]] if where else []
    names = {
        "index": "worst element",
        "got": "got",
        "expected": "expected (emulated)" if found["exact"] else "expected",
        "exact": "truth",
        "radius": "radius (largest error allowed)",
    }
    return [[label, clean(found[name])] for name, label in names.items() if found[name]]
