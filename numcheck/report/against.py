"""A kernel's part of base against head: bits, what moved, and its gates then and now on one axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from numcheck.baseline import Figure, GateKey, Known
from numcheck.case import Case
from numcheck.compare import Bits, Compared, Comparison, Moved, told, words
from numcheck.compare.outputs import law_of
from numcheck.harmless import clean
from numcheck.report import axes, svg
from numcheck.report.headroom import headroom
from numcheck.report.inputs import made
from numcheck.report.text import count, figure, short
from numcheck.selection import Judged, law_order

# Pictures of gates that did not move, in one page: beyond, they are counted. Those that moved are always drawn.
QUIET = 240
# Cases listed for one output whose bits changed, and vanished ones.
CASES = 8


@dataclass
class Budget:
    """How many pictures of gates that did not move the page may still hold."""

    left: int = QUIET


@dataclass(frozen=True)
class Link:
    """A Case in words, how its inputs are made, the Case, and what the page finds it by: its line and the law."""

    text: str
    made: str
    case: Mapping[str, Any]
    line: str
    law: str = ""


@dataclass(frozen=True)
class ChangedBits:
    """One output: in how many of the shared Cases its bits are the same; the smallest Cases in which they are not."""

    output: str
    told: str
    changed: int
    unhashed: int
    cases: list[Link]


@dataclass(frozen=True)
class ThenNow:
    """One gate of one output in both runs: the lowest headroom of each, and the picture."""

    law: str
    output: str
    kind: str
    cases: int
    then: str
    now: str
    moved: bool
    picture: Markup


@dataclass(frozen=True)
class Change:
    """Something that moved: what, then and now, in how many Cases, one of them."""

    group: str
    what: str
    before: str
    after: str
    loss: bool
    cases: int
    case: Link | None


@dataclass(frozen=True)
class Against:
    """The part."""

    compared: Compared
    bits: list[ChangedBits]
    changes: list[Change]
    moved: list[ThenNow]
    still: list[ThenNow]
    left_out: int
    vanished: list[Link]

    @property
    def quiet(self) -> bool:
        """Whether there is nothing to say."""
        return self.compared.quiet


GROUPS = (
    ("claims", "verdict"),
    ("cases", "verdict"),
    ("contract", "Contract"),
    ("limits", "limit"),
    ("gates", "gate"),
    ("memory", "memory"),
    ("power", "coverage"),
    ("skips", "coverage"),
)


@dataclass
class Pair:
    """One gate's headrooms then and now: of Cases (now with the Case's number), and of all Cases together."""

    then: list[float] = field(default_factory=list)
    now: list[svg.Spot] = field(default_factory=list)
    pooled: list[float] = field(default_factory=list)


def against(
    comparison: Comparison, compared: Compared, budget: Budget, rows: Iterable[tuple[int, Judged]] = ()
) -> Against:
    """Of one kernel; takes from `budget` what it draws of gates that did not move.

    rows: the head's judged Cases of this kernel with their numbers in the page, to which its marks lead.
    """
    base, head = (side.kernels[compared.subject.key] for side in (comparison.base, comparison.head))
    names = {moved.what for moved in compared.gates}
    pairs = _pairs(base, head, {(j.law, Case.from_json(j.row["case"]).key): at for at, j in rows})
    moved = [key for key in pairs if words.gate(key) in names]
    still = [key for key in pairs if key not in moved][: budget.left]
    budget.left -= len(still)
    return Against(
        compared,
        [_bits(bits, base, head) for bits in compared.bits],
        [change for name, group in GROUPS for change in _changes(group, getattr(compared, name))],
        [_then_now(key, pairs[key], True) for key in moved],
        [_then_now(key, pairs[key], False) for key in still],
        len(pairs) - len(moved) - len(still),
        [_link(case) for case in compared.vanished[:CASES]],
    )


def _pairs(base: Known, head: Known, numbers: Mapping[tuple[str, str], int]) -> Mapping[GateKey, Pair]:
    """Gate -> headrooms then and now, of the Cases that both runs judged and of all Cases together."""
    found: dict[GateKey, Pair] = defaultdict(Pair)
    for gate, then, now in _shared(base.pooled, head.pooled):
        found[gate].then.append(then)
        found[gate].pooled.append(now)
    for key, seen in head.cases.items():
        if key not in base.cases:
            continue
        for gate, then, now in _shared(base.cases[key].gates, seen.gates):
            found[gate].then.append(then)
            number = numbers.get((gate[0], key))
            if number is None:
                found[gate].pooled.append(now)
            else:
                found[gate].now.append((now, number))
    return dict(sorted(found.items(), key=lambda item: law_order(item[0][0])))


def _shared(base: Mapping[GateKey, Figure], head: Mapping[GateKey, Figure]) -> Iterator[tuple[GateKey, float, float]]:
    """The gates of both with their headrooms then and now, without those that could have failed in neither."""
    for gate, old in base.items():
        if gate in head and not (old.vacuous and head[gate].vacuous):
            then, now = (headroom(gate[2], f.value, f.limit, f.lower) for f in (old, head[gate]))
            yield gate, then, now


def _then_now(key: GateKey, pair: Pair, moved: bool) -> ThenNow:
    law, output, kind = key
    now = [*pair.pooled, *(room for room, _ in pair.now)]
    low = figure(min(pair.then)), figure(min(now))
    label = f"{kind} of {output} under {law}, {count(len(now), 'figure')}: lowest headroom then {low[0]}, now {low[1]}"
    picture = axes.then_now(pair.then, pair.now, pair.pooled, clean(label))
    return ThenNow(law, output, kind, len(now), *low, moved, picture)


def _bits(bits: Bits, base: Known, head: Known) -> ChangedBits:
    shared = bits.same + len(bits.changed)
    if bits.free:
        said = "not compared: its order is free"
    elif bits.changed:
        said = f"changed in {len(bits.changed)} of {count(shared, 'Case')}"
    else:
        said = f"the same in {count(shared, 'Case')}"
    if bits.unhashed:
        said += f"; none to compare in {len(bits.unhashed)}, where the head has no hash"
    shown = (bits.changed or bits.unhashed)[:CASES]
    links = [_link(case, law_of(bits.output, base.cases[case.key], head.cases[case.key])) for case in shown]
    return ChangedBits(bits.output, said, len(bits.changed), len(bits.unhashed), links)


def _changes(group: str, moved: Iterable[Moved]) -> list[Change]:
    return [
        Change(group, t.what, t.before, t.after, t.loss, t.cases, _link(t.case, t.law) if t.case else None)
        for t in told(moved)
    ]


def _link(case: Case, law: str = "") -> Link:
    plain = case.to_json()
    return Link(short(plain), made(plain), plain, case.line(), law)
