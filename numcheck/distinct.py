"""Distinct: how many different numbers there are in a stream of them, in bounded memory.

All are kept while they are few. Beyond that only those whose hash ends in ever more zeros are, and each stands for as
many as that leaves out (adaptive sampling: Flajolet, "On adaptive sampling", Computing 43, 1990).
"""

from __future__ import annotations

import torch
from torch import Tensor

# Numbers kept at most; the relative error of a count beyond it is about 1.2 / sqrt(KEPT), 0.5 %.
KEPT = 2**16
# Numbers hashed at a time: what is sorted is what a stretch leaves, which soon is little.
STRETCH = 2**20
# The finaliser of splitmix64: every bit of the number reaches every bit of its hash.
_SHIFTS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15), (31, 1))


class Distinct:
    """Counts the different values among FP64 numbers, 0.0 and -0.0 being one."""

    def __init__(self) -> None:
        self._kept: Tensor | None = None
        self._zeros = 0

    def add(self, values: Tensor) -> None:
        """See more numbers, of any shape and device."""
        for some in torch.split((values + 0.0).flatten().view(torch.int64), STRETCH):
            hashed = _hash(some)
            fresh = hashed[self._ends(hashed)]
            kept = torch.unique(fresh if self._kept is None else torch.cat([self._kept, fresh]))
            while kept.numel() > KEPT:
                self._zeros += 1
                kept = kept[self._ends(kept)]
            self._kept = kept

    @property
    def count(self) -> int:
        """How many different numbers: exact up to KEPT of them."""
        return 0 if self._kept is None else self._kept.numel() << self._zeros

    def _ends(self, hashed: Tensor) -> Tensor:
        return (hashed & ((1 << self._zeros) - 1)) == 0


def _hash(raw: Tensor) -> Tensor:
    for shift, factor in _SHIFTS:
        # A logical shift: int64 would draw its sign along.
        raw = (raw ^ ((raw >> shift) & ((1 << (64 - shift)) - 1))) * factor
    return raw
