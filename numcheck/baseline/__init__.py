"""Baseline: one side of a comparison, made from records and kept in a repository as a small file."""

from __future__ import annotations

from numcheck.baseline.file import load, loaded, parse, text
from numcheck.baseline.gather import of
from numcheck.baseline.known import (
    Acceptance,
    Baseline,
    Certified,
    Draws,
    Figure,
    GateKey,
    Known,
    Seen,
    Subject,
)
from numcheck.baseline.parts import joined, narrowed, placed, within

__all__ = [
    "Acceptance",
    "Baseline",
    "Certified",
    "Draws",
    "Figure",
    "GateKey",
    "Known",
    "Seen",
    "Subject",
    "joined",
    "load",
    "loaded",
    "narrowed",
    "of",
    "parse",
    "placed",
    "text",
    "within",
]
