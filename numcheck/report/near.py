"""The Cases that come nearest to a limit, so that a reviewer sees where to look before something breaks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from numcheck.record import replay_line
from numcheck.report.failures import allowed
from numcheck.report.headroom import GateKey, Tally
from numcheck.report.text import figure, number, short
from numcheck.selection import Kernel, Place

# How many to show of each gate of a law: a ceiling sits at its limit wherever one rounding is all there is, and would
# else crowd out the others.
EACH = 5


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


def nearest(gates: Mapping[GateKey, Tally]) -> list[Near]:
    """Of each output's gates that held everywhere, the Case with the lowest headroom; the lowest first."""
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
    shown: Counter[tuple[str, str]] = Counter()
    kept = []
    for _, near in sorted(found, key=lambda f: f[0]):
        shown[near.law, near.kind] += 1
        if shown[near.law, near.kind] <= EACH:
            kept.append(near)
    return kept
