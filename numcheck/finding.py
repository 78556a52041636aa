"""Findings: what only the records of all workers together can tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from numcheck.record import Records, Row

Kind = Literal["unfinished", "no_end", "bits_differ"]
# pytest's exit codes of a run that did not come to its end: interrupted, an error of its own, used wrongly.
BROKEN = (2, 3, 4)
Key = tuple[str, str, str, Hashable]


@dataclass(frozen=True)
class Finding:
    """One finding: its kind, a sentence, and the spec, law and Case (JSON) that it is about, where there is one."""

    kind: Kind
    text: str
    specs: str = ""
    spec: str = ""
    law: str = ""
    case: dict[str, Any] | None = None

    @property
    def open(self) -> bool:
        """Whether it is of work that was started and not finished."""
        return self.kind in ("unfinished", "no_end")


def findings(records: Records) -> tuple[Finding, ...]:
    """Cases that never finished, workers that never ended, and equal Cases with unequal bits."""
    return (*_unfinished(records), *_missing(records), *_bits_differ(records))


def same(case: Mapping[str, Any]) -> Hashable:
    """A value that two Cases, as JSON, share where they are equal."""
    shape = tuple(case["sizes"].items()), case["dtype"], case["regime"], case["layout"], case["offset"]
    return shape, tuple(case.get("facts", {}).items()), case.get("seed", 0)


def _key(row: Row) -> Key:
    return row["specs"], row["spec"], row["law"], same(row["case"])


def _unfinished(records: Records) -> Iterator[Finding]:
    workers: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in records.rows:
        workers[row["run"], row["worker"]].append(row)
    for (run, worker), rows in workers.items():
        ended = any(row["kind"] == "end" for row in rows)
        pending: dict[Key, Row] = {}
        for row in rows:
            if row["kind"] == "started":
                pending[_key(row)] = row
            elif row["kind"] == "case":
                pending.pop(_key(row), None)
        for row in pending.values():
            last = not ended and row is rows[-1]
            why = (
                f"worker {worker} of run {run} stopped in it: it was killed, or is still running"
                if last
                else f"worker {worker} of run {run} left it without a verdict"
            )
            yield Finding(
                "unfinished", f"started, never judged; {why}", row["specs"], row["spec"], row["law"], row["case"]
            )
        for code in (row["facts"].get("exit") for row in rows if row["kind"] == "end"):
            if code in BROKEN:
                yield Finding("no_end", f"worker {worker} of run {run} was interrupted or broke: pytest's exit {code}")
        if not ended:
            yield Finding("no_end", f"worker {worker} of run {run} has no end row: killed, or still running")


def _missing(records: Records) -> Iterator[Finding]:
    """Rows that a run writes and that are not there: its first one, and how the test of a law ended.

    Of the latter those alone whose run has some: to judge Cases outside of a test leaves none.
    """
    first = {row["run"] for row in records.of("run")}
    for run in dict.fromkeys(row["run"] for row in records.rows if row["run"] not in first):
        yield Finding("unfinished", f"run {run} has no first row: what stood at its beginning is missing")
    ended = {(row["run"], row["specs"], row["spec"], row["law"]) for row in records.of("outcome")}
    tested = {run for run, *_ in ended}
    judged = dict.fromkeys(
        (r["run"], r["specs"], r["spec"], r["law"]) for r in records.of("case") if r["run"] in tested
    )
    for run, specs, spec, law in (key for key in judged if key not in ended):
        yield Finding("unfinished", f"its test in run {run} judged Cases and left no outcome", specs, spec, law)


def _bits_differ(records: Records) -> Iterator[Finding]:
    """The same Case on the same backend must give the same bits in every process; `any` outputs are left out."""
    seen: dict[tuple[Key, str], list[Row]] = defaultdict(list)
    for row in records.of("case"):
        seen[_key(row), row["evidence"]["backend"]].append(row)
    for (key, backend), rows in seen.items():
        for output in rows[0]["hashes"] if len(rows) > 1 else ():
            by_hash = _by_hash(output, rows)
            if len(by_hash) > 1:
                text = f"{output} has {len(by_hash)} different hashes on the {backend} backend, {_between(by_hash)}"
                yield Finding("bits_differ", text, *key[:3], case=rows[0]["case"])


def _by_hash(output: str, rows: list[Row]) -> list[Row]:
    """The first row of each hash of `output`."""
    found: dict[str, Row] = {}
    for row in rows:
        if output in row["hashes"] and row["outputs"].get(output, {}).get("status") != "ORDER_DEPENDENT":
            found.setdefault(row["hashes"][output], row)
    return list(found.values())


def _between(rows: list[Row]) -> str:
    first, second = rows[:2]
    places = [f"{r['run']}/{r['worker']} ({r['environment'] or 'no environment'})" for r in (first, second)]
    kind = "in one environment" if first["environment"] == second["environment"] else "between environments"
    return f"{kind}: {' and '.join(places)}"
