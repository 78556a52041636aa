"""Ratios of time with their intervals: two kernels interleaved (`numcheck bench --ab`), and the head over the base."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markupsafe import Markup

from numcheck.compare import Compared, words
from numcheck.harmless import clean
from numcheck.record import Records, Row
from numcheck.report import axes
from numcheck.report.text import figure, number, short
from numcheck.selection import Kernel, Place, Selection, place_of


@dataclass(frozen=True)
class Times:
    """One ratio: of what, how it was measured, and its picture. lacks: why it is a hint alone, or ""."""

    what: str
    ratio: str
    interval: str
    how: str
    lacks: str
    picture: Markup

    @property
    def hint(self) -> bool:
        """Whether nothing may be concluded from it, wherever its interval lies."""
        return bool(self.lacks)


def against_base(compared: Compared | None) -> Iterator[Times]:
    """Kernel seconds of the shared Cases, head over base."""
    if compared is None or compared.time is None:
        return
    t = compared.time
    how = f"kernel seconds of {t.cases} shared Cases, {words.HINT}"
    yield _times("head / base", t.ratio, t.low, t.high, how, "not interleaved")


def measured(records: Records, chosen: Selection) -> Mapping[tuple[Kernel, Place], list[Times]]:
    """What `bench` rows say, at the card of either kernel; of the same two kernels and Case the last counts."""
    last: dict[tuple[str, ...], Row] = {}
    for row in records.of("bench"):
        last[row["specs"], row["a"], row["b"], str(row["case"]), row["environment"]] = row
    found: dict[tuple[Kernel, Place], list[Times]] = defaultdict(list)
    for row in last.values():
        place = place_of(chosen.environments.get(row["environment"], {}))
        for name in dict.fromkeys((row["a"], row["b"])):
            found[Kernel(row["specs"], name), place].append(_bench(row))
    return found


def _bench(row: Row) -> Times:
    how = f"{row['pairs']} interleaved pairs at {short(row['case'])}"
    if not row["decides"]:
        how += "; too few pairs, exploratory"
    ratio, low, high = (number(row[name]) for name in ("ratio", "low", "high"))
    return _times(f"{row['b']} / {row['a']}", ratio, low, high, how, "" if row["decides"] else "too few pairs")


def _times(what: str, ratio: float, low: float, high: float, how: str, lacks: str) -> Times:
    within = f"{figure(low)} to {figure(high)}"
    hint = f"; a hint, {lacks}" if lacks else ""
    label = clean(f"{what}: {figure(ratio)} times the seconds, 95 % interval {within}{hint}")
    return Times(what, figure(ratio), within, how, lacks, axes.interval(ratio, low, high, label))
