"""The Cases that come nearest to a limit, so that a reviewer sees where to look before something breaks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from numcheck.record import replay_line
from numcheck.report.failures import allowed
from numcheck.report.gates import GateKey, Tally
from numcheck.report.selection import Kernel, Place
from numcheck.report.text import figure, number, short

WORST_CASES = 20


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
