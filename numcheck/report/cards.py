"""One card a kernel and device: everything about it, base against head first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from numcheck.compare import Compared, Comparison
from numcheck.record import Records, Row
from numcheck.report import against, contributors, gates, memory, times
from numcheck.report.summary import Cell, Line
from numcheck.report.text import BROKEN
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
    """A card for each kernel of the matrix of which something was judged; the worst first, as the answers have them."""
    gathered = _gathered(records, chosen, views, comparison)
    found = [_card(line, gathered) for line in lines if gathered.says((line.kernel, line.place))]
    place = {key: at for at, key in enumerate(gathered.compared)}
    return sorted(found, key=lambda card: (*_grave(card), place.get((card.kernel, card.place), len(place))))


def _grave(card: Card) -> tuple[bool, ...]:
    """What moved comes first, of that what does not hold, and then what fell (`numcheck.compare.worst_first`)."""
    holds = not any(cell.status in BROKEN for cell in card.cells)
    compared = card.against.compared if card.against else None
    return not card.moved, holds, not (compared and compared.losses)


@dataclass(frozen=True)
class _Gathered:
    """What there is to say, by kernel and device. rows: judged Cases, each with its number in the page."""

    views: Mapping[Key, gates.KernelView]
    rows: Mapping[Key, list[tuple[int, Judged]]]
    pooled: Mapping[Key, list[Judged]]
    timed: Mapping[Key, list[times.Times]]
    declared: Mapping[Kernel, Row]
    comparison: Comparison | None
    compared: Mapping[Key, Compared]
    budget: against.Budget

    def says(self, key: Key) -> bool:
        """Whether a card of it would say anything."""
        moved = key in self.compared and not self.compared[key].quiet
        return moved or any(key in part for part in (self.rows, self.pooled, self.views))


def _gathered(
    records: Records, chosen: Selection, views: Iterable[gates.KernelView], comparison: Comparison | None
) -> _Gathered:
    rows: dict[Key, list[tuple[int, Judged]]] = defaultdict(list)
    for at, judged in enumerate(chosen.cases):
        rows[judged.kernel, judged.place].append((at, judged))
    pooled: dict[Key, list[Judged]] = defaultdict(list)
    for judged in chosen.pooled:
        pooled[judged.kernel, judged.place].append(judged)
    return _Gathered(
        {(view.kernel, view.place): view for view in views},
        rows,
        pooled,
        times.measured(records, chosen),
        {Kernel(row["specs"], row["spec"]): row for row in records.of("declared")},
        comparison,
        _compared(comparison),
        against.Budget(),
    )


def _card(line: Line, there: _Gathered) -> Card:
    key = line.kernel, line.place
    rows, pooled, mine = there.rows.get(key, []), there.pooled.get(key, []), there.compared.get(key)
    says = there.declared.get(line.kernel, {})
    return Card(
        *key,
        line.ran,
        str(says.get("doc", "")),
        [(str(what), str(text)) for what, text in says.get("contract", {}).items()],
        [cell for cell in line.cells if cell is not None],
        there.views.get(key),
        against.against(there.comparison, mine, there.budget, rows) if there.comparison and mine else None,
        contributors.contributors(rows),
        memory.memory(rows, pooled),
        [*times.against_base(mine), *there.timed.get(key, [])],
    )


def _compared(comparison: Comparison | None) -> Mapping[Key, Compared]:
    return {(k.subject.kernel, k.subject.place): k for k in comparison.kernels} if comparison else {}
