"""How many programs write one address, and how many addends atomics give it, as measured: where order can matter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from numcheck.evidence import ADDENDS
from numcheck.harmless import clean
from numcheck.report import axes
from numcheck.report.text import count
from numcheck.selection import Judged

# Names under which a map sums up what is no output: shown last.
OTHERS = ("workspace",)


@dataclass(frozen=True)
class Contributors:
    """One output of a kernel over all runs that were measured."""

    output: str
    runs: int
    writers: str
    addends: str
    multi: int
    races: int
    unwritten: int
    declared: bool
    picture: Markup


def contributors(rows: Iterable[tuple[int, Judged]]) -> list[Contributors]:
    """One row an output, from the Evidence of a kernel's judged Cases (each with its number)."""
    seen: dict[str, list[tuple[int, Judged, Mapping[str, Any]]]] = defaultdict(list)
    for at, judged in rows:
        for output, footprint in judged.row["evidence"].get("footprints", {}).items():
            seen[output].append((at, judged, footprint))
    names = sorted(seen, key=lambda name: name in OTHERS)
    return [_output(name, seen[name]) for name in names]


def _output(name: str, seen: list[tuple[int, Judged, Mapping[str, Any]]]) -> Contributors:
    prints = [footprint for *_, footprint in seen]
    drawn = [axes.Contributor(f["writers"], f["addends"], at) for at, _, f in seen]
    most = max(max(c.writers, c.addends) for c in drawn)
    told = f"{name}: at most {count(most, 'contributor')} to one address in {count(len(drawn), 'run')}"
    return Contributors(
        name,
        len(drawn),
        _range([c.writers for c in drawn]),
        _range([c.addends for c in drawn if c.addends]) if any(f.get("atomic") for f in prints) else "no atomics",
        max(f.get("multi", 0) for f in prints),
        sum(bool(f.get("races")) for f in prints),
        sum(bool(f.get("unwritten")) for f in prints),
        not all(f.get("measured", True) for f in prints),
        axes.contributors(drawn, clean(f"{told}; from {ADDENDS} addends on, order can change bits")),
    )


def _range(counts: list[int]) -> str:
    if not counts:
        return "0"
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
