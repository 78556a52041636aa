"""Reading: one oracle, read in several ways. The same code gives truth, emulation, noise and worst case."""

from __future__ import annotations

from numcheck.reading.ball import Ball
from numcheck.reading.four import JITTERS, Readings, read, readings
from numcheck.reading.kinds import Radius, Recording, Truth
from numcheck.reading.spreading import Emulation, Noise

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
