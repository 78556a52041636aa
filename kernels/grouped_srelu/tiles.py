"""How a grouped backward is cut into programs: declared functions of the sizes, free of Triton."""

from __future__ import annotations

# The tile of the reference kernel: 256 features, and the 128 rows of one CTA of a 256-row pair.
ROWS, FEATURES = 128, 256
# Hidden columns of the second GEMM's tile, and the depth of one step of either GEMM.
HIDDEN, DEPTH = 128, 64
# Features of one program that folds d_bias slots.
FOLDED = 1024


def cut(size: int, tile: int) -> int:
    """Tiles that cover `size`."""
    return -(-size // tile)


def row_tiles(M: int, E: int) -> int:
    """Most row tiles that E experts with M rows in all can need: each starts a tile of its own."""
    begun = min(E, M)
    return begun + (M - begun) // ROWS


def widest(M: int) -> int:
    """Most row tiles that one expert can need: how many programs may add to one address of d_bias."""
    return cut(M, ROWS)
