"""Profile: how much work a law does. Rates are fixed per profile and printed, never learned from history."""

from __future__ import annotations

from dataclasses import dataclass, replace

from numcheck.capability import Device
from numcheck.errors import InvalidSpec


@dataclass(frozen=True)
class Profile:
    """How hard to look.

    examples: Cases that Hypothesis draws for one generated test. grid: most named-grid Cases; a larger grid is
    covered pairwise. orders: program orders tried for a Case beside the identity. repeats: plain repeats in one
    process. draws: noise draws behind each spread. slow: Cases of a generated test that also climb the slow rungs
    (fresh process, thread counts, compiled). derandomize: the same Cases on every run. seconds: of drawing, after
    which no new Case is drawn (the named grid always runs whole). shrinking: seconds for making one failure smaller.
    largest: most elements of a drawn Case, as the product of its sizes.
    """

    name: str
    examples: int
    grid: int
    orders: int
    repeats: int
    draws: int
    slow: int
    derandomize: bool
    device: Device = "cpu"
    seconds: float = 60.0
    shrinking: float = 60.0
    largest: int = 2**16

    def on(self, device: Device) -> Profile:
        """The same effort on another device."""
        return replace(self, device=device)


# 16 draws are the fewest whose Student's t spread keeps |z| <= 6 rare (2.4e-5 of clean figures).
QUICK = Profile("quick", examples=10, grid=12, orders=4, repeats=2, draws=16, slow=0, derandomize=False, seconds=20)
CI = Profile("ci", examples=16, grid=24, orders=6, repeats=2, draws=16, slow=1, derandomize=True)
DEEP = Profile(
    "deep",
    examples=200,
    grid=400,
    orders=24,
    repeats=8,
    draws=32,
    slow=4,
    derandomize=False,
    seconds=3600,
    shrinking=600,
    largest=2**20,
)
PROFILES = (QUICK, CI, DEEP)
# How the note of a test begins whose time for drawing ran out: the Cases that it did not come to are no fewer checks.
STOPPED = "drawing stopped at its "
# Those that draw the same Cases in every run.
REPEATING = tuple(p.name for p in PROFILES if p.derandomize)


def profile(name: str) -> Profile:
    """The profile called `name`; raises InvalidSpec where there is none."""
    for candidate in PROFILES:
        if candidate.name == name:
            return candidate
    raise InvalidSpec(f"profile {name!r}; allowed: {', '.join(p.name for p in PROFILES)}")
