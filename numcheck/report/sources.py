"""Where a kernel's code stands, as its records say: a file of the repository, and a line of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from numcheck.record import Records
from numcheck.report.text import cut
from numcheck.selection import Kernel

# "folder/file.py:41": nothing absolute, nothing above the repository, and no line of a million digits.
_PLACE = re.compile(r"(?P<file>[^/:\\\s][^:\\\n\r]*):(?P<line>[1-9]\d{0,6})")
# How a gradient's name begins: it comes from the vjp.
GRADIENT = "d_"
# How the name of a function that must run begins (numcheck.source).
LAUNCHED = "must run "
# Longest path that is shown.
LONGEST = 300


@dataclass(frozen=True)
class Place:
    """A file of the repository and a line of it, 0 where that is not known."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


Sources = Mapping[Kernel, Mapping[str, Place]]


def sources(records: Records) -> Sources:
    """Kernel -> "forward", "vjp", "must run NAME" -> where it is. Of several declarations the last counts."""
    return {
        Kernel(row["specs"], row["spec"]): {
            name: place for name, text in row.get("sources", {}).items() if (place := _place(text))
        }
        for row in records.of("declared")
    }


def kernels(known: Sources, kernel: Kernel) -> list[str]:
    """The functions that must run, each with its place: "mhc_post_forward at kernels/mhc_post/fused.py:19"."""
    places = known.get(kernel, {})
    return [f"{name.removeprefix(LAUNCHED)} at {at}" for name, at in places.items() if name.startswith(LAUNCHED)]


def place(known: Sources, kernel: Kernel, outputs: Iterable[str]) -> Place | None:
    """Where the spec's function that gives these outputs is defined: the vjp for gradients alone, else the forward.

    The other one where there is but that, and the file of the specs where neither is known.
    """
    mine = known.get(kernel, {})
    outputs = [name for name in outputs if name != "*"]
    backward = bool(outputs) and all(name.startswith(GRADIENT) for name in outputs)
    order = ("vjp", "forward") if backward else ("forward", "vjp")
    return next((mine[name] for name in order if name in mine), None) or _specs(kernel.specs)


def _place(text: str) -> Place | None:
    found = _PLACE.fullmatch(cut(text, LONGEST))
    return Place(found["file"], int(found["line"])) if found and ".." not in found["file"].split("/") else None


def _specs(specs: str) -> Place | None:
    """The specs file as the repository knows it; None for a module, or a path that is somewhere else."""
    within = specs.endswith(".py") and not specs.startswith("/") and ".." not in specs.split("/")
    return Place(specs) if within and len(specs) <= LONGEST else None
