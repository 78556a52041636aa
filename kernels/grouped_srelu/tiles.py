"""How a grouped backward is cut into programs: declared functions of the sizes, free of Triton."""

from __future__ import annotations

# The tile of the reference kernel: 256 features, and the 128 rows of one CTA of a 256-row pair.
ROWS, FEATURES = 128, 256
# Rows of a tile where the whole call has no more: no expert needs a second tile of either size.
FEW_ROWS = 16
# Hidden columns of the second GEMM's tile.
HIDDEN = 64
# Depth of one step of the first GEMM by bytes of an element, and of the second. Deeper FP32 steps, which no tensor
# core takes, keep more operands than a thread has registers for (58 KB spilled at 64, 2 KB at 32).
DEPTHS, DEEP = {2: 64, 4: 32}, 128
# Buffers of a step's inputs: two of [128, 64] and [64, 256] in bf16, with what else is staged, take 128 KB of 227.
STAGES = 2
# Warps of the two GEMMs: 64 registers a thread of the first for its FP32 sums, and as many for the epilogue.
WARPS, FEWER_WARPS = 16, 8
# Room for experts in a kernel that finds its rows: 16 serve every smaller number without another compilation.
EXPERTS = 16
# Elements and bytes of which a dense call's sizes and addresses are multiples: 16 bytes are 4 or 8 elements.
LANES, ALIGNED = 16, 16
# Features of one program that folds d_bias slots.
FOLDED = 1024


def cut(size: int, tile: int) -> int:
    """Tiles that cover `size`."""
    return -(-size // tile)


def tile_rows(M: int) -> int:
    """Rows of a tile in a call with M rows."""
    return FEW_ROWS if M <= FEW_ROWS else ROWS


def row_tiles(M: int, E: int) -> int:
    """Most row tiles that E experts with M rows in all can need: each starts a tile of its own."""
    begun = min(E, M)
    return begun + (M - begun) // ROWS


def widest(M: int) -> int:
    """Most row tiles that one expert can need: how many programs may add to one address of d_bias."""
    return cut(M, ROWS)
