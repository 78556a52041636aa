"""One card a kernel and device: everything about it, base against head first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from numcheck.compare import Compared, Comparison
from numcheck.record import Records
from numcheck.report import against, contributors, gates, memory, times
from numcheck.report.summary import Cell, Line
from numcheck.selection import Judged, Kernel, Place, Selection

Key = tuple[Kernel, Place]


@dataclass(frozen=True)
class Card:
    """What a page says of one kernel on one device. promises: its Contract, line by line."""

    kernel: Kernel
    place: Place
    ran: str
    doc: str
    promises: list[tuple[str, str]]
    cells: list[Cell]
    view: gates.KernelView | None
    against: against.Against | None
    contributors: list[contributors.Contributors]
    memory: memory.Memory | None
    times: list[times.Times]

    @property
    def anchor(self) -> str:
        """Where in the page it is."""
        return gates.kernel_anchor(self.kernel, self.place)

    @property
    def statuses(self) -> str:
        """The statuses of its claims, each once."""
        return " ".join(dict.fromkeys(cell.status for cell in self.cells))

    @property
    def moved(self) -> bool:
        """Whether something is otherwise than at the base."""
        return self.against is not None and not self.against.quiet


def cards(
    records: Records,
    chosen: Selection,
    lines: Sequence[Line],
    views: Iterable[gates.KernelView],
    comparison: Comparison | None,
) -> list[Card]:
    """A card for each kernel of the matrix of which something was judged; those that moved first."""
    seen = {(view.kernel, view.place): view for view in views}
    rows: dict[Key, list[tuple[int, Judged]]] = defaultdict(list)
    for at, judged in enumerate(chosen.cases):
        rows[judged.kernel, judged.place].append((at, judged))
    pooled: dict[Key, list[Judged]] = defaultdict(list)
    for judged in chosen.pooled:
        pooled[judged.kernel, judged.place].append(judged)
    compared = _compared(comparison)
    timed = times.measured(records, chosen)
    declared = {Kernel(row["specs"], row["spec"]): row for row in records.of("declared")}
    left = against.Budget()
    found = []
    for line in lines:
        key = line.kernel, line.place
        mine = compared.get(key)
        if not (rows[key] or pooled[key] or key in seen or (mine and not mine.quiet)):
            continue
        says = declared.get(line.kernel, {})
        found.append(
            Card(
                *key,
                line.ran,
                str(says.get("doc", "")),
                [(str(what), str(text)) for what, text in says.get("contract", {}).items()],
                [cell for cell in line.cells if cell is not None],
                seen.get(key),
                against.against(comparison, mine, left, rows[key]) if comparison and mine else None,
                contributors.contributors(rows[key]),
                memory.memory(rows[key], pooled[key]),
                [*times.against_base(mine), *timed.get(key, [])],
            )
        )
    return sorted(found, key=lambda card: not card.moved)


def _compared(comparison: Comparison | None) -> Mapping[Key, Compared]:
    return {(k.subject.kernel, k.subject.place): k for k in comparison.kernels} if comparison else {}
