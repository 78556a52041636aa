"""Reading records: the rows of one or several files, what was wrong with them, and one file from many."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numcheck
from numcheck import coherent, schema
from numcheck.cycles import left_alone
from numcheck.errors import BadRecords
from numcheck.record.whole import write_whole
from numcheck.record.writer import PathLike, Row, line

# How a row begins, whole or torn: other programs have a "schema" of theirs.
OURS = re.compile(rb'\{"schema":(\d|$)')


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
    if not rows and torn and not OURS.match(torn[0][0]):
        raise BadRecords(f"{path}: not a numcheck records file (line {torn[0][1].line} {torn[0][1].text})")
    problems += [problem for _, problem in torn]
    if not rows:
        problems.append(Problem(path.name, 0, "no row; its worker ended before it could say anything"))
    return rows
