"""Records: append-only JSON Lines, one file a worker, that kill -9 cannot shorten by a finished row.

A file starts with a "run" row; each Case is announced by a "started" row before it runs, so that the Case that
killed a worker is known; "end" is last. The shape of every row is in `numcheck.schema`.
"""

from __future__ import annotations

from numcheck.record.reader import Problem, Records, merge, read
from numcheck.record.whole import write_whole
from numcheck.record.writer import (
    PathLike,
    Row,
    Writer,
    append_certificates,
    line,
    new_run,
    plain,
    replay_line,
    worker_path,
    worker_paths,
)

__all__ = [
    "PathLike",
    "Problem",
    "Records",
    "Row",
    "Writer",
    "append_certificates",
    "line",
    "merge",
    "new_run",
    "plain",
    "read",
    "replay_line",
    "worker_path",
    "worker_paths",
    "write_whole",
]
