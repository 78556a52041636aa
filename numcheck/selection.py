"""Which rows count: the latest code's verdicts, by kernel, law and the device that they were reached on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numcheck.laws import NAMES
from numcheck.record import Records, Row
from numcheck.verdict import Status

# In this order; others follow by name.
LAWS = (*NAMES, "faults")
# A Case is judged in these; "shrink" rows are tries on the way to a smaller failure, "replay" rows repeat a Case.
JUDGED = ("regression", "grid", "draw")


class Place(NamedTuple):
    """The device that a verdict was reached on: all CPUs are one place, GPUs go by name."""

    rank: int
    name: str


CPU = Place(0, "CPU")
UNKNOWN = Place(2, "unknown device")


class Kernel(NamedTuple):
    """A spec of a specs module."""

    specs: str
    spec: str


class Judged(NamedTuple):
    """One verdict that counts."""

    kernel: Kernel
    law: str
    place: Place
    row: Row

    @property
    def status(self) -> str:
        """Its status by name."""
        return str(self.row["status"])

    @property
    def backend(self) -> str:
        """Where it ran, in words: one does not stand for the other."""
        return backend(self.row["evidence"]["backend"], self.place)


@dataclass(frozen=True)
class Selection:
    """What the report is made of."""

    cases: list[Judged] = field(default_factory=list)
    shrunk: list[Judged] = field(default_factory=list)
    pooled: list[Judged] = field(default_factory=list)
    unavailable: list[tuple[Kernel, str, Place, Row]] = field(default_factory=list)
    outcomes: list[tuple[Kernel, str, Place, Row]] = field(default_factory=list)
    environments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    superseded: Counter[str] = field(default_factory=Counter)
    runs: list[Row] = field(default_factory=list)
    last: str = ""


def backend(name: str, place: Place) -> str:
    """ "interpreter on the CPU", "device NVIDIA H200", "torch on the CPU"."""
    where = "on the CPU" if place == CPU else f"on {place.name}"
    return {"interpreter": f"interpreter {where}", "device": f"device {place.name}"}.get(name, f"torch {where}")


def place_of(environment: Mapping[str, Any]) -> Place:
    """The place that an Environment describes."""
    device = environment.get("device")
    if not isinstance(device, Mapping):
        return UNKNOWN
    return CPU if device.get("kind") == "cpu" else Place(1, str(device.get("name", "unknown GPU")))


def select(records: Records) -> Selection:
    """The rows that count.

    Of one kernel and law on one device, verdicts of earlier code are superseded by those of the latest. Verdicts of
    the same code all count, since a flip between two runs is a finding and no reason to forget one of them.
    """
    chosen = Selection(runs=list(records.of("run")), last=max((r["time"] for r in records.rows), default=""))
    for row in records.of("environment"):
        chosen.environments[row["environment"]] = row["facts"]
    places = {key: place_of(facts) for key, facts in chosen.environments.items()}
    code = {key: repr(facts.get("code")) for key, facts in chosen.environments.items()}
    own = _own(records)
    rows = [_judged(row, places) for kind in ("case", "pooled") for row in records.of(kind)]
    # A test that broke before it judged a Case supersedes older verdicts as those of its Cases would have.
    ended = [_judged(own(row), places) for row in records.of("outcome") if not Status[row["status"]].held]
    latest = _latest((*rows, *ended), code)
    for judged in rows:
        row = judged.row
        if code.get(row["environment"], "") != latest[judged.kernel, judged.law, judged.place]:
            chosen.superseded[judged.status] += 1
        elif row["kind"] == "pooled":
            chosen.pooled.append(judged)
        elif row["phase"] in JUDGED:
            chosen.cases.append(judged)
        elif row["phase"] == "shrink":
            chosen.shrunk.append(judged)
    for kind, into in (("unavailable", chosen.unavailable), ("outcome", chosen.outcomes)):
        for row in map(own, records.of(kind)):
            kernel, place = Kernel(row["specs"], row["spec"]), places.get(row["environment"], UNKNOWN)
            mine = code.get(row["environment"], "")
            if latest.get((kernel, row["law"], place), mine) == mine:
                into.append((kernel, row["law"], place, row))
    return chosen


def _own(records: Records) -> Callable[[Row], Row]:
    """A row as it is, or with the environment of its worker, its run or its kernel where it names none.

    A test that broke before anything could be described is its kernel's all the same, and no other device's.
    """
    known = {row["environment"] for row in records.of("environment")}
    if all(row["environment"] in known for kind in ("outcome", "unavailable") for row in records.of(kind)):
        return lambda row: row
    found: dict[Hashable, set[str]] = {}
    for row in records.rows:
        named = row.get("environment")
        if isinstance(named, str) and named in known:
            keys = ((row["run"], row["worker"]), row["run"], (row.get("specs"), row.get("spec"), ""))
            for key in keys:
                found.setdefault(key, set()).add(named)

    def own(row: Row) -> Row:
        if row["environment"] in known:
            return row
        for key in ((row["run"], row["worker"]), row["run"], (row["specs"], row["spec"], "")):
            if len(found.get(key, ())) == 1:
                return {**row, "environment": next(iter(found[key]))}
        return row

    return own


def _judged(row: Row, places: Mapping[str, Place]) -> Judged:
    return Judged(Kernel(row["specs"], row["spec"]), row["law"], places.get(row["environment"], UNKNOWN), row)


def _latest(rows: Iterable[Judged], code: Mapping[str, str]) -> dict[tuple[Kernel, str, Place], str]:
    when: dict[tuple[Kernel, str, Place], tuple[str, str]] = {}
    for judged in rows:
        key = judged.kernel, judged.law, judged.place
        seen = judged.row["time"], code.get(judged.row["environment"], "")
        when[key] = max(when.get(key, seen), seen)
    return {key: found for key, (_, found) in when.items()}


def law_order(law: str) -> tuple[int, str]:
    """Sort key of a law."""
    return (LAWS.index(law) if law in LAWS else len(LAWS), law)
