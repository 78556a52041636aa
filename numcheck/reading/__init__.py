"""Reading: one oracle, read in several ways. The same code gives truth, emulation, noise and worst case."""

from __future__ import annotations

from numcheck.reading.ball import Ball
from numcheck.reading.four import JITTERS, Readings, read, readings
from numcheck.reading.kinds import Emulation, Noise, Radius, Recording, Truth

__all__ = [
    "JITTERS",
    "Ball",
    "Emulation",
    "Noise",
    "Radius",
    "Readings",
    "Recording",
    "Truth",
    "read",
    "readings",
]
