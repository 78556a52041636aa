"""The trace of one launch: which program read and wrote which address, reduced to counts when the launch ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

READ, WRITE, ATOMIC = 0, 1, 2

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Touched:
    """What one launch did to each address, as parallel arrays over sorted addresses.

    writers: programs that stored there plainly. addends: values that atomics added, a non-zero start counting as one.
    atomic: touched by an atomic. written: by a store or an atomic. raced: shared by two programs, at least one of which
    writes and at least one of which does so without an atomic; `pairs` names two such programs, the writer first.
    """

    launch: int
    addresses: Ints
    writers: Ints
    addends: Ints
    atomic: npt.NDArray[np.bool_]
    written: npt.NDArray[np.bool_]
    raced: npt.NDArray[np.bool_]
    pairs: Ints


class Trace:
    """Collects accesses while a launch runs; `reduce` turns them into counts."""

    def __init__(self) -> None:
        self._addresses: list[npt.NDArray[np.uint64]] = []
        self._facts: list[tuple[int, int, int, int]] = []  # program, kind, bytes, whether it adds
        self._started: list[npt.NDArray[np.bool_]] = []

    def add(
        self,
        program: int,
        kind: int,
        addresses: npt.NDArray[np.uint64],
        width: int,
        started: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """One access by `program`; `started` (of an atomic add): whether each address held a non-zero value."""
        if addresses.size:
            self._addresses.append(addresses)
            self._facts.append((program, kind, width, started is not None))
            self._started.append(np.zeros(addresses.shape, dtype=bool) if started is None else started)

    def reduce(self, launch: int, programs: int) -> Touched | None:
        """Counts per address over everything added since the last call; None where nothing was."""
        if not self._addresses:
            return None
        self._split_widths()
        sizes = [a.size for a in self._addresses]
        flat = np.concatenate(self._addresses).astype(np.int64)
        facts = np.repeat(np.array(self._facts, dtype=np.int64), sizes, axis=0)
        started = np.concatenate(self._started)
        self.__init__()  # type: ignore[misc]
        addresses, where = np.unique(flat, return_inverse=True)
        program, kind, adds = facts[:, 0], facts[:, 1], facts[:, 3].astype(bool)
        count = len(addresses)

        def distinct(mask: npt.NDArray[np.bool_]) -> Ints:
            pairs = np.unique(where[mask] * programs + program[mask])
            return np.bincount(pairs // programs, minlength=count)

        writers, readers, atomics = (distinct(kind == k) for k in (WRITE, READ, ATOMIC))
        everyone = distinct(kind >= READ)
        raced = (everyone > 1) & ((writers > 0) | (atomics > 0)) & ((writers > 0) | (readers > 0))
        return Touched(
            launch=launch,
            addresses=addresses,
            writers=writers,
            addends=_addends(where[adds], started[adds], count),
            atomic=atomics > 0,
            written=(writers > 0) | (atomics > 0),
            raced=raced,
            pairs=_pairs(where, program, kind > READ, count),
        )

    def _split_widths(self) -> None:
        """Cut wide accesses into the narrowest width of the launch, where accesses of several widths overlap."""
        widths = {width for _, _, width, _ in self._facts}
        if len(widths) == 1 or not self._overlap():
            return
        narrow = min(widths)
        for i, (program, kind, width, adds) in enumerate(self._facts):
            parts = width // narrow
            if parts > 1:
                steps = np.arange(parts, dtype=np.uint64) * np.uint64(narrow)
                self._addresses[i] = (self._addresses[i][:, None] + steps).ravel()
                self._started[i] = np.repeat(self._started[i], parts)
                self._facts[i] = (program, kind, narrow, adds)

    def _overlap(self) -> bool:
        hulls = sorted(
            (int(a.min()), int(a.max()) + width, width)
            for a, (_, _, width, _) in zip(self._addresses, self._facts, strict=True)
        )
        reach: dict[int, int] = {}
        for low, high, width in hulls:
            if any(end > low for other, end in reach.items() if other != width):
                return True
            reach[width] = max(reach.get(width, 0), high)
        return False


def _addends(where: Ints, started: npt.NDArray[np.bool_], count: int) -> Ints:
    added = np.bincount(where, minlength=count)
    touched, first = np.unique(where, return_index=True)
    added[touched] += started[first]
    return added


def _pairs(where: Ints, program: Ints, writes: npt.NDArray[np.bool_], count: int) -> Ints:
    """For each address a program that writes there and, where there is one, another that touches it."""
    highest = np.iinfo(np.int64).max
    writer, lowest, top = np.full(count, highest), np.full(count, highest), np.full(count, -1)
    np.minimum.at(writer, where[writes], program[writes])
    np.minimum.at(lowest, where, program)
    np.maximum.at(top, where, program)
    return np.stack([writer, np.where(lowest != writer, lowest, top)], axis=1)
