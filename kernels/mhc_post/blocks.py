"""How D is cut into blocks: a declared function of D, free of Triton so that a Contract can read it."""

from __future__ import annotations

# A power of two of at least 16 keeps loads wide; 1024 features of 8 streams still fit a program's registers.
SMALLEST, LARGEST = 16, 1024
# Two trips already exercise the walk over D; a split into four already makes three addends at small D.
TRIPS, SPLITS = 2, 4


def block_of(D: int, parts: int = TRIPS) -> int:
    """Features in a block: the power of two that cuts D into about `parts` blocks, between 16 and 1024."""
    wanted = -(-D // parts)
    return min(LARGEST, max(SMALLEST, 1 << max(wanted - 1, 0).bit_length()))


def blocks_of(D: int, block: int) -> int:
    """How many blocks of that many features cover D."""
    return -(-D // block)
