"""How heads, slots and features are cut into tiles: declared functions of the sizes, free of Triton so that a Contract
can read them.

A program owns one query and one block of heads and walks the query's slots. The forward and the half of the backward
that makes d_q hold features as two tiles, the value (the first D_v) and the tail (the rest, which QK alone uses), so
that 576 = 512 + 64 pads nothing. The half that makes d_kv holds them in chunks of one width, of which it handles one
at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from kernels.sparse_mla.arguments import Sizes

# tl.dot takes no side below 16.
SMALLEST = 16
# One warpgroup's tensor-core tile has 64 rows; 64 heads are also what DSA models have.
MOST_HEADS, MOST_SLOTS = 64, 64
# Two tensor-core tiles of rows of d_kv, one for each warpgroup of a program; a chunk of 64 is the narrowest that tensor
# cores take as rows.
CHUNKS = (128, 64)
# q, d_out and a block of KV rows stay in shared memory, of which an SM90 block can have 227 KiB. The rest is for P and
# dS and for what the compiler stages between layouts.
SHARED_BYTES = 212 * 1024
# Products of FP32 data (4 bytes an element) run on plain FMA units, unrolled in full: larger tiles only spill, and take
# minutes to compile.
PLAIN, FP32_SIDE, FP32_WARPS, FP32_CHUNK = 4, 16, 4, 64
# Accumulators of 64 x 512 need two warpgroups' registers; smaller ones fit one.
WIDE_ACCUMULATOR = 64 * 128
# One block of KV rows at a time: two would not fit beside q and d_out.
STAGES = 1


class Tiles(NamedTuple):
    """Sides of the tiles.

    heads, slots: of a block. value, tail: padded features of the value and of the rest (0: none). width: features of a
    chunk. warps, stages: of a program.
    """

    heads: int
    slots: int
    value: int
    tail: int
    width: int
    warps: int
    stages: int = STAGES


def tiles_of(n: Sizes, element: int) -> Tiles:
    """The tiles of a problem whose data has elements of that many bytes.

    Raises ValueError where the features are too many for the smallest tiles to fit into shared memory.
    """
    heads, slots = sides(n, element)
    value, tail = _features(n)
    taken = _bytes(heads, slots, n, element)
    if taken > SHARED_BYTES:
        raise ValueError(
            f"D={n.D} with D_v={n.D_v} needs {taken} bytes of shared memory, but a program has {SHARED_BYTES}; take "
            "fewer features"
        )
    if element == PLAIN:
        return Tiles(heads, slots, value, tail, min(FP32_CHUNK, padded(n.D)), FP32_WARPS)
    return Tiles(heads, slots, value, tail, chunk_of(n.D), 8 if heads * value > WIDE_ACCUMULATOR else 4)


def sides(n: Sizes, element: int) -> tuple[int, int]:
    """Heads and slots of a block: the most that fit into shared memory, no more heads than there are, padded.

    Slots are as many for a short list: a tile of few would be compiled for that length alone.
    """
    heads = min(FP32_SIDE if element == PLAIN else MOST_HEADS, padded(n.H))
    slots = FP32_SIDE if element == PLAIN else MOST_SLOTS
    while _bytes(heads, slots, n, element) > SHARED_BYTES and max(heads, slots) > SMALLEST:
        heads, slots = (heads // 2, slots) if heads > slots else (heads, slots // 2)
    return heads, slots


def blocks_of(n: Sizes, element: int) -> int:
    """Programs that share a query: one a block of heads."""
    return -(-n.H // sides(n, element)[0])


def chunk_of(D: int) -> int:
    """Features of a chunk: the width that pads D least, the wider of two that pad it alike."""
    usable = [width for width in CHUNKS if width < D]
    return min(usable, default=padded(D), key=lambda width: (-(-D // width) * width, -width))


def padded(size: int) -> int:
    """The power of two that covers `size`, at least 16."""
    return max(SMALLEST, 1 << max(size - 1, 0).bit_length())


def _features(n: Sizes) -> tuple[int, int]:
    """Padded features of the value and of the tail."""
    rest = n.D - n.D_v
    return padded(n.D_v), padded(rest) if rest > 0 else 0


def _bytes(heads: int, slots: int, n: Sizes, element: int) -> int:
    """Bytes of q, d_out and a block of KV rows."""
    value, tail = _features(n)
    return element * (heads * (2 * value + tail) + slots * (value + tail))
