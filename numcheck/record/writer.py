"""Writing records: one file a worker, a row a write call, so that a kill cannot shorten what is there."""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numcheck
from numcheck import schema
from numcheck.case import Case
from numcheck.clock import timed
from numcheck.errors import RecordsLost
from numcheck.verdict import Verdict

Row = dict[str, Any]
PathLike = str | os.PathLike[str]


def new_run() -> str:
    """A run id that sorts by time: UTC to the second, and a random part."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"


def worker_path(path: PathLike, run: str, worker: str) -> Path:
    """The file that one worker of a run appends to, beside the merged file `path`; never deleted."""
    path = Path(path)
    return path.with_name(f"{path.stem}.{run}.{worker}{path.suffix or '.jsonl'}")


def worker_paths(path: PathLike, run: str) -> tuple[Path, ...]:
    """All files that workers of `run` have left beside `path`, for `merge`."""
    path = Path(path)
    return tuple(sorted(p for p in path.parent.iterdir() if p.name.startswith(f"{path.stem}.{run}.")))


def replay_line(specs: str, spec: str, law: str, case: Case | Mapping[str, Any]) -> str:
    """The one shell line that judges the Case again, anywhere."""
    line = case.line() if isinstance(case, Case) else json.dumps(case, separators=(",", ":"))
    return f"numcheck replay --specs {shlex.quote(specs)} {shlex.quote(spec)} {shlex.quote(law)} {shlex.quote(line)}"


class Writer:
    """Appends rows to one file. Each row is one write call to a file opened for appending, with no buffer between.

    `facts` describe the run (profile, seed, command, ...) and go into the "run" row, which is written at once.
    A file that already has rows is continued; a torn last line is closed first, so that it costs only itself.
    Raises OSError where the file cannot be opened or written.
    """

    def __init__(
        self,
        path: PathLike,
        run: str,
        worker: str = "main",
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        **facts: Any,
    ) -> None:
        self.path, self.run, self.worker = Path(path), run, worker
        self._clock, self._seq, self._time, self._environment = clock, 0, "", ""
        # Two writers may name the same run and worker (a restart): their rows are still different rows.
        self._token = secrets.token_hex(4)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0), 0o666)
        self._open = True
        self._torn = _ends_torn(self._file)
        self.row("run", numcheck=numcheck.__version__, facts=facts)

    @timed("record")
    def row(self, kind: str, **body: Any) -> None:
        """Append one row of `kind`; prefer the methods below, which know what each kind holds."""
        self._time = max(self._time, self._clock().strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
        head = {
            "schema": schema.VERSION,
            "kind": kind,
            "id": f"{self.run}/{self.worker}/{self._token}/{self._seq}",
            "run": self.run,
            "worker": self.worker,
            "seq": self._seq,
            "time": self._time,
        }
        data = (line({**head, **body}) + "\n").encode("ascii")
        try:
            _write(self._file, b"\n" + data if self._torn else data)
        except OSError as error:
            # Part of the row may be there; should the next one fit, it starts on a line of its own.
            self._torn = True
            raise RecordsLost(error.errno, f"{error.strerror}; make room and run again", str(self.path)) from None
        self._torn, self._seq = False, self._seq + 1

    def environment(self, facts: Mapping[str, Any]) -> str:
        """Record an Environment (`numcheck.environment`); the rows that follow carry its id, which is returned."""
        self._environment = str(facts["id"])
        self.row("environment", environment=self._environment, facts=dict(facts))
        return self._environment

    def started(self, specs: str, spec: str, law: str, case: Case, phase: str) -> None:
        """Announce a Case before it runs."""
        self.row("started", specs=specs, spec=spec, law=law, phase=phase, case=case.to_json())

    def case(
        self,
        specs: str,
        case: Case,
        verdict: Verdict,
        phase: str,
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Record a judged Case. seconds: stage -> seconds spent, where known."""
        self._judged("case", specs, verdict, phase=phase, case=case.to_json(), seconds=dict(seconds or {}))

    def pooled(self, specs: str, verdict: Verdict) -> None:
        """Record the pooled Verdict of one generated test."""
        self._judged("pooled", specs, verdict)

    def outcome(self, specs: str, spec: str, law: str, status: str, **facts: Any) -> None:
        """Record how one generated test ended: status by name; reason, notes, seed, seconds as far as known.

        A test that never came to judge a Case (a spec that contradicts itself) leaves nothing but this.
        """
        head = {"specs": specs, "spec": spec, "law": law, "environment": self._environment}
        self.row("outcome", **head, status=status, **facts)

    def declared(self, specs: str, spec: str, contract: Mapping[str, str], **facts: str | Mapping[str, str]) -> None:
        """Record what a kernel promises, in words: its Contract by what each line is about; oracle, doc, sources."""
        self.row("declared", specs=specs, spec=spec, contract=dict(contract), **facts)

    def certificate(self, facts: Mapping[str, Any]) -> None:
        """Record an oracle's certificate: oracle, status, worst, by_output, cases, limit, vjp."""
        self.row("certificate", **facts)

    def fault(self, facts: Mapping[str, Any]) -> None:
        """Record how a broken kernel fared (`numcheck.suspect.Score`)."""
        self.row("fault", environment=self._environment, **facts)

    def bench(self, specs: str, facts: Mapping[str, Any]) -> None:
        """Record a ratio of times (`numcheck.bench.Ratio`): a, b, case, pairs, ratio, low, high, decides."""
        self.row("bench", specs=specs, environment=self._environment, **facts)

    def unavailable(self, specs: str, spec: str, law: str, reason: str, needs: str = "") -> None:
        """Record what could not run here, why, and what it needs."""
        self.row(
            "unavailable",
            specs=specs,
            spec=spec,
            law=law,
            reason=reason,
            needs=needs,
            environment=self._environment,
        )

    def end(self, **facts: Any) -> None:
        """Say that the worker came to its end, and close the file."""
        if self._open:
            self.row("end", facts=facts)
            self.close()

    def close(self) -> None:
        """Close the file, without an "end" row: readers will say that the worker did not finish."""
        if self._open:
            self._open = False
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.end()
        self.close()

    def _judged(self, kind: str, specs: str, verdict: Verdict, **body: Any) -> None:
        head = {"specs": specs, "spec": verdict.spec, "law": verdict.law, "environment": self._environment}
        self.row(kind, **head, **body, **verdict.to_json())


def append_certificates(path: PathLike, certificates: Sequence[Mapping[str, Any]]) -> None:
    """Append certificates to a records file, as a run of their own."""
    with Writer(path, new_run()) as writer:
        for certificate in certificates:
            writer.certificate(certificate)


def line(row: Mapping[str, Any]) -> str:
    """`row` as one line of strict ASCII JSON."""
    return json.dumps(plain(row), separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: non-finite floats by name, mappings and sequences copied, anything else as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    return str(value)  # a row is worth more than the exact type of one figure


def _ends_torn(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _write(file: int, data: bytes) -> None:
    while data:  # one call, unless the disk takes only a part
        data = data[os.write(file, data) :]
