"""Evidence: what really ran, and which programs touched which address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Backend = Literal["interpreter", "device", "torch"]
# The name under which a measured map sums up memory that is neither output nor input.
WORKSPACE = "workspace"
# IEEE addition commutes, so two addends onto zero give the same bits in either order; a third makes order matter.
ADDENDS = 3


@dataclass(frozen=True)
class Launch:
    """One kernel launch: its name and grid (None where a profiler does not tell it)."""

    kernel: str
    grid: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Footprint:
    """Readers and writers of one output's addresses, as measured over one run (the interpreter) or declared.

    writers: the most programs that wrote one address by a plain store, over all addresses and launches.
    addends: the most values that atomics added to one address, a non-zero start counting as one; 0: no atomics.
    multi: how many addresses got at least ADDENDS of them.
    atomic: some address was written by an atomic.
    races: addresses that two programs share without atomics: (flat element index, program, program) samples.
    unwritten: how many addresses nobody wrote.
    """

    writers: int = 0
    addends: int = 0
    multi: int = 0
    atomic: bool = False
    races: tuple[tuple[int, int, int], ...] = ()
    unwritten: int = 0
    measured: bool = True


@dataclass(frozen=True)
class Evidence:
    """What one Run left behind.

    operators: torch operators seen by dispatch, in order, without repeats (recorded for specs whose must_run is ()).
    footprints: output -> Footprint, where measured. repairs: interpreter repairs in force.
    peak_bytes: the most bytes alive at once that the call itself allocated, outputs included.
    """

    launches: tuple[Launch, ...] = ()
    backend: Backend = "torch"
    operators: tuple[str, ...] = ()
    footprints: Mapping[str, Footprint] = field(default_factory=dict)
    repairs: tuple[str, ...] = ()
    peak_bytes: int = 0

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object."""
        return {
            "backend": self.backend,
            "launches": [[launch.kernel, list(launch.grid) if launch.grid else None] for launch in self.launches],
            "operators": list(self.operators),
            "footprints": {
                name: {
                    "writers": f.writers,
                    "addends": f.addends,
                    "multi": f.multi,
                    "atomic": f.atomic,
                    "races": [list(r) for r in f.races],
                    "unwritten": f.unwritten,
                    "measured": f.measured,
                }
                for name, f in self.footprints.items()
            },
            "repairs": list(self.repairs),
            "peak_bytes": self.peak_bytes,
        }
