"""Capability: one probe of the installed function and the device, for dispatch, skip and report alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda"]
TIERS = ("cpu", "gpu", "sm90", "sm100")


@dataclass(frozen=True)
class Available:
    """What was asked for can run here."""


@dataclass(frozen=True)
class Unavailable:
    """It cannot run here: why, and what it needs (a tier of `TIERS`, or a package)."""

    reason: str
    needs: str = ""


Capability = Available | Unavailable
# A probe is asked for the device a run would use, and must not raise.
Probe = Callable[[Device], Capability]


def always(device: Device) -> Capability:
    """The probe of a kernel that runs anywhere."""
    return Available()
