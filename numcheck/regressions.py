"""Regressions: Cases that once failed, kept in a file and run before any other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numcheck.case import Case
from numcheck.errors import InvalidCase
from numcheck.spec import KernelSpec

NAME = "regressions.jsonl"
FIELDS = {"oracle", "spec", "law", "case", "why"}


@dataclass(frozen=True)
class Regression:
    """One kept Case of a problem: for which kernel and law ("": every one), and what it once showed."""

    oracle: str
    case: Case
    why: str
    spec: str = ""
    law: str = ""

    def concerns(self, spec: KernelSpec, law: str) -> bool:
        """Whether this Case is for `spec` under `law`."""
        return spec.oracle.name == self.oracle and self.spec in ("", spec.name) and self.law in ("", law)


def read(path: Path) -> tuple[Regression, ...]:
    """The regressions in a JSON Lines file; none where there is no file.

    A line is {"oracle": NAME, "case": CASE, "why": TEXT}, with "spec" and "law" where it is for one alone. Blank
    lines and lines that start with # are left out. Raises InvalidCase for any other line, with its number.
    """
    if not path.is_file():
        return ()
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    return tuple(_row(line, f"{path.name}:{n}") for n, line in lines if line.strip() and not line.startswith("#"))


def beside(folders: Iterable[Path]) -> tuple[Regression, ...]:
    """The regressions kept in the first of `folders` that has a file of them."""
    for folder in folders:
        if (folder / NAME).is_file():
            return read(folder / NAME)
    return ()


def _row(line: str, where: str) -> Regression:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidCase(f"{where}: not JSON ({error}); a line is one object, see docs/reference/pytest.md") from None
    if not isinstance(row, dict) or set(row) - FIELDS or {"oracle", "case", "why"} - set(row):
        raise InvalidCase(f"{where}: a line needs oracle, case and why, and may have spec and law; got {line[:80]}")
    try:
        case = Case.from_json(row["case"])
    except (InvalidCase, TypeError) as error:
        raise InvalidCase(f"{where}: {error}") from None
    return Regression(str(row["oracle"]), case, str(row["why"]), str(row.get("spec", "")), str(row.get("law", "")))
