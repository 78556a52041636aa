"""Findings: what only the records of all workers together can tell."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from numcheck.record import Records, Row

Kind = Literal["unfinished", "no_end", "bits_differ"]
Key = tuple[str, str, str, str]


@dataclass(frozen=True)
class Finding:
    """One finding: its kind, a sentence, and the spec, law and Case (JSON) that it is about, where there is one."""

    kind: Kind
    text: str
    specs: str = ""
    spec: str = ""
    law: str = ""
    case: dict[str, Any] | None = None


def findings(records: Records) -> tuple[Finding, ...]:
    """Cases that never finished, workers that never ended, and equal Cases with unequal bits."""
    return (*_unfinished(records), *_bits_differ(records))


def _key(row: Row) -> Key:
    return row["specs"], row["spec"], row["law"], json.dumps(row["case"], sort_keys=True)


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
        if not ended:
            yield Finding("no_end", f"worker {worker} of run {run} has no end row: killed, or still running")


def _bits_differ(records: Records) -> Iterator[Finding]:
    """The same Case on the same backend must give the same bits in every process; `any` outputs are left out."""
    seen: dict[tuple[Key, str, str], dict[str, Row]] = defaultdict(dict)
    for row in records.of("case"):
        backend = row["evidence"]["backend"]
        for output, digest in row["hashes"].items():
            if row["outputs"].get(output, {}).get("status") != "ORDER_DEPENDENT":
                seen[_key(row), backend, output].setdefault(digest, row)
    for (key, backend, output), rows in seen.items():
        if len(rows) < 2:
            continue
        first, second = list(rows.values())[:2]
        same = first["environment"] == second["environment"]
        where = f"in one environment ({first['environment']})" if same else "between environments"
        processes = " and ".join(
            f"{r['run']}/{r['worker']} ({r['environment'] or 'no environment'})" for r in (first, second)
        )
        yield Finding(
            "bits_differ",
            f"{output} has {len(rows)} different hashes {where} on the {backend} backend: {processes}",
            *key[:3],
            case=first["case"],
        )
