"""Baseline: one side of a comparison, made from records and kept in a repository as a small file."""

from __future__ import annotations

from numcheck.baseline.file import load, text
from numcheck.baseline.gather import of
from numcheck.baseline.known import (
    Acceptance,
    Baseline,
    Figure,
    GateKey,
    Known,
    Seen,
    Subject,
    joined,
    narrowed,
    within,
)

__all__ = [
    "Acceptance",
    "Baseline",
    "Figure",
    "GateKey",
    "Known",
    "Seen",
    "Subject",
    "joined",
    "load",
    "narrowed",
    "of",
    "text",
    "within",
]
