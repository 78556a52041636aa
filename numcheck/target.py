"""Target: which files a command may write to. It replaces or continues what numcheck wrote of that kind alone."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from numcheck.errors import BadRecords

Kind = Literal["records", "report", "baseline"]

# How files of each kind begin; of a page the first lines say which program made it.
START = {
    "records": re.compile(rb'\s*\{"schema":\d+,"kind":"'),
    "baseline": re.compile(rb'\s*\{\s*"format"\s*:\s*"numcheck baseline"'),
    "report": re.compile(
        rb'\s*<!doctype html>.*?<meta name="generator" content="numcheck">', re.DOTALL | re.IGNORECASE
    ),
}
# What a report in Markdown ends with, and nobody else's notes do.
MARK = "<!-- numcheck report -->\n"
# Bytes of which every kind is known.
ENOUGH = 4096
# The row that a writer that was killed in its first one has left.
FIRST_ROW = b'{"schema":1,"kind":"'


def spare_others(path: str | os.PathLike[str], kind: Kind) -> None:
    """Raises BadRecords where `path` is a file of another kind than the one that is to be written there.

    A file that is not there, is empty, or is no file at all but a pipe or a device, can be written to.
    """
    path = Path(path)
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            start = file.read(ENOUGH)
            file.seek(max(0, path.stat().st_size - len(MARK)))
            end = file.read()
    except OSError as error:
        raise BadRecords(f"{path}: {error.strerror or error}; name another file") from None
    ours = START[kind].match(start) or (kind == "report" and end == MARK.encode())
    if start.strip() and not ours and not (kind == "records" and FIRST_ROW.startswith(start)):
        raise BadRecords(
            f"{path} is no {_NAMES[kind]} that numcheck wrote, and would be lost; name another file, or move it away"
        )


_NAMES = {"records": "records file", "report": "report", "baseline": "baseline"}
