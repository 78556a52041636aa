"""What no shape can say of a row: a Case that cannot be, half of a pair of figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numcheck.case import Case
from numcheck.errors import InvalidCase

# Longest part of an error shown: it quotes the value that is wrong, which may be of any length.
LONGEST = 200


def wrong(row: Mapping[str, Any]) -> str:
    """What is wrong with a row that has the shape of its kind, or ""."""
    said = _said(row)
    return f"is no {row['kind']} row: it {said}" if said else ""


def _said(row: Mapping[str, Any]) -> str:
    if "case" in row and row["kind"] in ("started", "case", "fault", "bench"):
        try:
            Case.from_json(row["case"])
        except InvalidCase as error:
            return f"has a case that cannot be: {str(error)[:LONGEST]}"
    return _figures(row) if row["kind"] == "case" else ""


def _figures(row: Mapping[str, Any]) -> str:
    figures = row["figures"]
    if row["law"] == "memory" and ("measured" in figures) != ("formula" in figures):
        return "has one of figures.measured and figures.formula without the other"
    return ""
