"""Blocks: where the elements of an output that differ lie, slice by slice and tile by tile, in bounded memory."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Elements of a contiguous tile: the smallest block of differing elements that a count over the whole could hide.
TILE = 64


@dataclass(frozen=True)
class Kind:
    """Blocks of one kind: slices along one axis, or tiles.

    label: how block k is named, with {} for k. differ: (blocks,) elements that differ from the emulation. flips: those
    that the jitters moved, all together. most: the most that one jitter moved in one block.
    """

    label: str
    differ: Tensor
    flips: Tensor
    most: int


class Blocks:
    """Differing elements and flips in each slice along each axis, and in each contiguous tile, of one output."""

    def __init__(self, shape: tuple[int, ...], jitters: int) -> None:
        self.shape, self.jitters = shape, jitters
        self._device: torch.device | None = None
        # The most that one jitter moved in one tile.
        self._top: Tensor = torch.zeros((), dtype=torch.int32)

    def add(self, differs: Tensor, start: int) -> None:
        """Count a stretch of axis 0 from `start` on."""
        self._begin(differs.device)
        for axis, counts in enumerate(self._axes):
            counts[0, self._at(axis, differs, start)] += _along(differs, axis)
        if self._tiles is not None:
            self._tile(self._tiles[0], differs, start)

    def jitter(self, number: int, flipped: Tensor, start: int) -> None:
        """Count the same stretch of one jitter, stretches in order."""
        self._begin(flipped.device)
        for axis, counts in enumerate(self._axes):
            counts[1 + number, self._at(axis, flipped, start)] += _along(flipped, axis)
        if self._tiles is not None:
            # A tile that two stretches share counts as two here: it could hold a little more than is known.
            counts = self._tile(self._tiles[1], flipped, start)
            self._top = torch.maximum(self._top, counts)

    def found(self) -> list[Kind]:
        """The slices of each axis, then the tiles."""
        self._begin(torch.device("cpu"))
        found = []
        for axis, counts in enumerate(self._axes):
            label = "[" + ", ".join("{}" if a == axis else ":" for a in range(len(self.shape))) + "]"
            flips = counts[1:]
            most = int(flips.max()) if flips.numel() else 0
            found.append(Kind(label, counts[0].cpu(), flips.sum(0).cpu(), most))
        if self._tiles is not None:
            differ, total = (t.cpu().to(torch.int64) for t in self._tiles)
            found.append(Kind(f"tile {{}} of {TILE} elements", differ, total, int(self._top)))
        return found

    def _begin(self, device: torch.device) -> None:
        if self._device is not None:
            return
        self._device = device
        axes = self.shape if len(self.shape) > 1 else ()
        # Row 0 counts what differs, the others the flips of one jitter each.
        self._axes = [torch.zeros(1 + self.jitters, n, dtype=torch.int64, device=device) for n in axes]
        count = -(-math.prod(self.shape) // TILE)
        # A tile's counts are at most TILE times the jitters, so 32 bits do, and an output of 2^29 has 2^23 tiles.
        tiles = [torch.zeros(count, dtype=torch.int32, device=device) for _ in range(2)] if count > 1 else None
        self._tiles = tiles
        self._top = self._top.to(device)

    def _at(self, axis: int, part: Tensor, start: int) -> slice:
        return slice(start, start + part.shape[0]) if axis == 0 else slice(None)

    def _tile(self, tiles: Tensor, part: Tensor, start: int) -> Tensor:
        """Add a stretch's elements to their tiles; the most in one tile."""
        first = start * math.prod(self.shape[1:])
        inside = first % TILE
        flat = torch.nn.functional.pad(part.flatten(), (inside, -(inside + part.numel()) % TILE))
        counts = flat.reshape(-1, TILE).sum(1, dtype=torch.int32)
        tiles[first // TILE : first // TILE + counts.numel()] += counts
        return counts.max() if counts.numel() else torch.zeros_like(self._top)


def _along(marks: Tensor, axis: int) -> Tensor:
    """How many elements are marked in each slice along `axis`."""
    return marks.sum(tuple(a for a in range(marks.dim()) if a != axis))
