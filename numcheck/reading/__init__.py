"""Reading: one oracle, read in several ways. The same code gives truth, emulation, noise and worst case."""

from __future__ import annotations

from numcheck.reading.ball import Ball
from numcheck.reading.kinds import Radius, Recording, Truth
from numcheck.reading.parts import JITTERS, Part, Readings, parts, readings
from numcheck.reading.slices import nearest
from numcheck.reading.spreading import Emulation, Noise
from numcheck.reading.walk import read

__all__ = [
    "JITTERS",
    "Ball",
    "Emulation",
    "Noise",
    "Part",
    "Radius",
    "Readings",
    "Recording",
    "Truth",
    "nearest",
    "parts",
    "read",
    "readings",
]
