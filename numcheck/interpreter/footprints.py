"""From touched addresses to one Footprint a named tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numcheck.evidence import Footprint
from numcheck.interpreter.trace import Ints, Touched

if TYPE_CHECKING:
    from torch import Tensor

# The name under which everything is summed up that is neither an output nor an input.
WORKSPACE = "workspace"
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
    known: list[Ints] = []
    for name, tensor in (*outputs.items(), *inputs.items()):
        addresses = element_addresses(tensor)
        known.append(addresses)
        since = born.get(tensor.untyped_storage().data_ptr(), 0)
        footprint = _of_tensor(addresses, [t for t in touched if t.launch >= since])
        if footprint is not None:
            found.setdefault(name, footprint)
    rest = _workspace(touched, known)
    if rest is not None:
        found[WORKSPACE] = rest
    return found


def element_addresses(tensor: Tensor) -> Ints:
    """The address of each element, flat in the tensor's own order."""
    offsets = np.zeros((1,) * max(tensor.dim(), 1), dtype=np.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        offsets = offsets + steps.reshape([-1 if d == dim else 1 for d in range(tensor.dim())])
    return tensor.data_ptr() + offsets.ravel() * tensor.element_size()


def _of_tensor(addresses: Ints, touched: Iterable[Touched]) -> Footprint | None:
    if addresses.size == 0:
        return None
    order = np.argsort(addresses, kind="stable")
    ranked = addresses[order]
    written = np.zeros(len(addresses), dtype=bool)
    writers = addends = 0
    busiest = np.zeros(len(addresses), dtype=np.int64)
    atomic = False
    races: list[tuple[int, int, int]] = []
    for launch in touched:
        slot = np.searchsorted(ranked, launch.addresses)
        inside = slot < len(ranked)
        inside[inside] = ranked[slot[inside]] == launch.addresses[inside]
        here = order[slot[inside]]
        written[here] |= launch.written[inside]
        writers = max(writers, int(launch.writers[inside].max(initial=0)))
        addends = max(addends, int(launch.addends[inside].max(initial=0)))
        np.maximum.at(busiest, here, launch.addends[inside])
        atomic |= bool(launch.atomic[inside].any())
        races += _quoted(here, launch, inside)
    if not written.any() and not races:
        return None
    multi = int((busiest >= 3).sum())
    return Footprint(writers, addends, multi, atomic, tuple(races[:RACE_SAMPLES]), int((~written).sum()))


def _quoted(index: Ints, launch: Touched, mask: Any) -> list[tuple[int, int, int]]:
    """The first races among the masked addresses, as (element index, program, program)."""
    raced = np.flatnonzero(launch.raced[mask])[:RACE_SAMPLES]
    pairs = launch.pairs[mask][raced].tolist()
    return [(i, p, q) for i, (p, q) in zip(index[raced].tolist(), pairs, strict=True)]


def _workspace(touched: Sequence[Touched], known: Sequence[Ints]) -> Footprint | None:
    named = np.unique(np.concatenate(known)) if known else np.zeros(0, dtype=np.int64)
    rest = [(t, ~np.isin(t.addresses, named) & t.written) for t in touched]
    rest = [(t, mask) for t, mask in rest if mask.any()]
    if not rest:
        return None
    lowest = min(int(t.addresses[mask][0]) for t, mask in rest)
    races = [race for t, mask in rest for race in _quoted(t.addresses[mask] - lowest, t, mask)]
    return Footprint(
        writers=max(int(t.writers[mask].max()) for t, mask in rest),
        addends=max(int(t.addends[mask].max()) for t, mask in rest),
        multi=sum(int((t.addends[mask] >= 3).sum()) for t, mask in rest),
        atomic=any(bool(t.atomic[mask].any()) for t, mask in rest),
        races=tuple(races[:RACE_SAMPLES]),
    )
