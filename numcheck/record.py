"""Records: append-only JSON Lines, one file a worker, that kill -9 cannot shorten by a finished row.

A file starts with a "run" row; each Case is announced by a "started" row before it runs, so that the Case that
killed a worker is known; "end" is last. The shape of every row is in `numcheck.schema`.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numcheck
from numcheck import coherent, schema
from numcheck.case import Case
from numcheck.clock import timed
from numcheck.cycles import left_alone
from numcheck.errors import BadRecords, RecordsLost
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


@dataclass(frozen=True)
class Problem:
    """Something wrong in a records file: which file, which line (0: the file as a whole), and what."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.line else f"{self.file}: {self.text}"


@dataclass(frozen=True)
class Records:
    """Rows in the order of run, worker and time, and what was wrong with the files they came from."""

    rows: tuple[Row, ...]
    problems: tuple[Problem, ...] = field(default=())

    def of(self, kind: str) -> Iterator[Row]:
        """The rows of one kind."""
        return (row for row in self.rows if row["kind"] == kind)

    def of_runs(self, *runs: str) -> Records:
        """The rows of these runs alone; the problems stay."""
        return Records(tuple(r for r in self.rows if r["run"] in runs), self.problems)


@left_alone()
def read(paths: PathLike | Sequence[PathLike]) -> Records:
    """The rows of one or several records files; a line that is no row is a Problem, and the others are kept.

    Raises BadRecords for a file that is missing, that is not numcheck's, or of a newer schema.
    """
    problems: list[Problem] = []
    rows: dict[str, Row] = {}
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        for row in _file_rows(Path(path), problems):
            if row["kind"] == "problem":
                problems.append(Problem(row["file"], row["line"], row["text"]))
            else:
                rows.setdefault(row["id"], row)
    ordered = sorted(rows.values(), key=lambda r: (r["run"], r["worker"], r["time"], r["seq"]))
    return Records(tuple(ordered), tuple(dict.fromkeys(problems)))


def merge(paths: Sequence[PathLike], out: PathLike) -> Records:
    """Write the rows of `paths`, and those that `out` already has, to `out`; returns them.

    Each row once, ordered by run, worker and time; problems of the files become "problem" rows. `out` is replaced
    in one step, so that an interrupted merge leaves it as it was. Raises BadRecords as `read` does.
    """
    target = Path(out)
    # An empty file, as mktemp makes one, is a place to write to and no worker's that was killed.
    records = read([*paths, *([target] if target.is_file() and target.stat().st_size else [])])
    write_whole(target, (line(row) + "\n" for row in (*records.rows, *map(_problem_row, records.problems))))
    return records


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write `path` in one step: killed, or on a full disk, it is what it was. A device or pipe is written to.

    Raises OSError, which names `path`.
    """
    try:
        _whole(path, lines)
    except OSError as error:
        # A write that finds the disk full knows of no file.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def _whole(path: Path, lines: Iterable[str]) -> None:
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        return
    # What a link points to is replaced, not the link.
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _problem_row(problem: Problem) -> Row:
    head = {"schema": schema.VERSION, "kind": "problem", "id": f"problem/{problem}", "run": "", "worker": ""}
    return {**head, "seq": 0, "time": "", "file": problem.file, "line": problem.line, "text": problem.text}


def _file_rows(path: Path, problems: list[Problem]) -> list[Row]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise BadRecords(f"{path}: {error.strerror or error}; give a records file that numcheck wrote") from None
    rows: list[Row] = []
    torn: list[tuple[bytes, Problem]] = []
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        row, wrong = schema.parse(raw)
        if isinstance(row, dict) and isinstance(newer := row.get("schema"), int) and newer > schema.VERSION:
            raise BadRecords(
                f"{path}:{number}: written with schema {newer}, but this numcheck ({numcheck.__version__}) reads up to "
                f"{schema.VERSION}; install a newer numcheck"
            )
        if wrong or (wrong := coherent.wrong(row)):
            torn.append((raw, Problem(path.name, number, wrong)))
        else:
            rows.append(row)
    if not rows and torn and not torn[0][0].startswith(b'{"schema":'):
        raise BadRecords(f"{path}: not a numcheck records file (line {torn[0][1].line} {torn[0][1].text})")
    problems += [problem for _, problem in torn]
    if not rows:
        problems.append(Problem(path.name, 0, "no row; its worker ended before it could say anything"))
    return rows
