"""How tokens are cut into tiles and parts: a declared function of T and E, free of Triton so that a Contract reads it.

The same on every device, so that the order of every sum, and with it the bits, does not depend on what runs it.
"""

from __future__ import annotations

from typing import NamedTuple

# Scores in a tile: 8 a thread of 16 warps. Larger tiles leave too few programs to fill a GPU: on an H200 16384 took
# 1.6 to 2.1 times as long, forward and backward.
TILE = 2**12
# The widest row: one tile of 32 warps with 32 scores a thread.
MOST_EXPERTS = 2**15
# Parts of the tokens whose partial sums are folded: enough to fill a GPU with rows of moderate length, few enough
# for one program to fold; FOLD bounds the partials that this program holds, 64 a thread of 32 warps.
MOST_PARTS, FOLD = 128, 2**16
# Few tokens are still cut into three or four parts, since with three addends order begins to matter.
FEW_PARTS = 4
# The backward has nothing to add up over tokens: two tiles already show a tail.
FEW_TILES = 2
# Elements and bytes of which a dense call's E and addresses are multiples: a load of 16 bytes takes 4, 8 or 16.
LANES, ALIGNED = 16, 16
WARP = 32
PER_THREAD = 8


class Tiles(NamedTuple):
    """Forward tiling: `rows` tokens a tile, `trips` tiles a part, `parts` parts; rows and experts are powers of two."""

    rows: int
    experts: int
    trips: int
    parts: int


def forward_tiles(T: int, E: int) -> Tiles:
    """How the forward cuts T tokens of E experts."""
    experts = power_of_two(E)
    rows = min(power_of_two(_ceil(T, FEW_PARTS)), max(1, TILE // experts))
    tiles = _ceil(T, rows)
    trips = max(1, _ceil(tiles, min(MOST_PARTS, max(1, FOLD // experts))))
    return Tiles(rows, experts, trips, _ceil(tiles, trips))


def backward_rows(T: int, E: int) -> int:
    """Tokens in a tile of the backward."""
    return min(power_of_two(_ceil(T, FEW_TILES)), max(1, TILE // power_of_two(E)))


def backward_tiles(T: int, E: int) -> int:
    """Tiles of the backward."""
    return _ceil(T, backward_rows(T, E))


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least `n`, at least 1."""
    return 1 << max(n - 1, 0).bit_length()


def warps(elements: int) -> int:
    """Warps for a tile of that many elements, 1 to 32."""
    return min(32, max(1, elements // (WARP * PER_THREAD)))


def _ceil(n: int, by: int) -> int:
    return -(-n // by)
