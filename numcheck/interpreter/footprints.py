"""From touched addresses to one Footprint a named tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from numcheck.evidence import ADDENDS, WORKSPACE, Footprint
from numcheck.interpreter.trace import Ints, Touched

if TYPE_CHECKING:
    from torch import Tensor

# Races quoted per tensor: enough to see a pattern, few enough for a record.
RACE_SAMPLES = 4


def footprints(
    touched: Sequence[Touched],
    outputs: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    born: Mapping[int, int],
) -> dict[str, Footprint]:
    """A Footprint for each output that a launch wrote, each input that one did, and the workspace if there is one.

    born: storage address -> first launch that can have touched it, since the same address may have been other memory
    before. A race's element index is flat in the tensor's own order; in the workspace it counts bytes from its lowest
    address.
    """
    found: dict[str, Footprint] = {}
    unnamed = [t.written.copy() for t in touched]
    for name, tensor in (*outputs.items(), *inputs.items()):
        elements = Elements.of(tensor)
        since = born.get(tensor.untyped_storage().data_ptr(), 0)
        for launch, rest in zip(touched, unnamed, strict=True):
            if launch.launch >= since:
                rest &= elements.find(launch.addresses) < 0
        footprint = _of_tensor(elements, [t for t in touched if t.launch >= since])
        if footprint is not None:
            found.setdefault(name, footprint)
    workspace = _workspace(touched, unnamed)
    if workspace is not None:
        found[WORKSPACE] = workspace
    return found


@dataclass(frozen=True)
class Elements:
    """Where a tensor's elements lie: addresses in rising order, and each one's index in the tensor's own order."""

    addresses: Ints
    index: Ints
    width: int

    @classmethod
    def of(cls, tensor: Tensor) -> Elements:
        """The elements of `tensor`, whatever its strides."""
        offsets = np.zeros((1,) * max(tensor.dim(), 1), dtype=np.int64)
        for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            steps = np.arange(size, dtype=np.int64) * stride
            offsets = offsets + steps.reshape([-1 if d == dim else 1 for d in range(tensor.dim())])
        addresses = tensor.data_ptr() + offsets.ravel() * tensor.element_size()
        index = np.argsort(addresses, kind="stable")
        return cls(addresses[index], index, tensor.element_size())

    def find(self, addresses: Ints) -> Ints:
        """The index of the element that holds each address, -1 where none does."""
        if self.addresses.size == 0:
            return np.full(addresses.shape, -1, dtype=np.int64)
        place = np.searchsorted(self.addresses, addresses, side="right") - 1
        held = (place >= 0) & (addresses < self.addresses[np.maximum(place, 0)] + self.width)
        return np.where(held, self.index[np.maximum(place, 0)], -1)


def _of_tensor(elements: Elements, touched: Iterable[Touched]) -> Footprint | None:
    count = elements.addresses.size
    written = np.zeros(count, dtype=bool)
    busiest = np.zeros(count, dtype=np.int64)
    writers = 0
    atomic = False
    races: list[tuple[int, int, int]] = []
    for launch in touched:
        found = elements.find(launch.addresses)
        inside = found >= 0
        here = found[inside]
        written[here[launch.written[inside]]] = True
        writers = max(writers, int(launch.writers[inside].max(initial=0)))
        np.maximum.at(busiest, here, launch.addends[inside])
        atomic |= bool(launch.atomic[inside].any())
        races += _quoted(here, launch, inside)
    if not written.any() and not races:
        return None
    multi = int((busiest >= ADDENDS).sum())
    unwritten = int((~written).sum())
    return Footprint(writers, int(busiest.max(initial=0)), multi, atomic, tuple(races[:RACE_SAMPLES]), unwritten)


def _quoted(index: Ints, launch: Touched, mask: npt.NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """The first races among the masked addresses, as (element index, program, program)."""
    raced = np.flatnonzero(launch.raced[mask])[:RACE_SAMPLES]
    pairs = launch.pairs[mask][raced].tolist()
    return [(i, p, q) for i, (p, q) in zip(index[raced].tolist(), pairs, strict=True)]


def _workspace(touched: Sequence[Touched], unnamed: Sequence[npt.NDArray[np.bool_]]) -> Footprint | None:
    rest = [(t, mask) for t, mask in zip(touched, unnamed, strict=True) if mask.any()]
    if not rest:
        return None
    lowest = min(int(t.addresses[mask][0]) for t, mask in rest)
    races = [race for t, mask in rest for race in _quoted(t.addresses[mask] - lowest, t, mask)]
    return Footprint(
        writers=max(int(t.writers[mask].max()) for t, mask in rest),
        addends=max(int(t.addends[mask].max()) for t, mask in rest),
        multi=sum(int((t.addends[mask] >= ADDENDS).sum()) for t, mask in rest),
        atomic=any(bool(t.atomic[mask].any()) for t, mask in rest),
        races=tuple(races[:RACE_SAMPLES]),
    )
