"""How eager cuts the queries: a declared function of the sizes, free of torch so that a Contract can read it."""

from __future__ import annotations

# Bytes of a chunk's gathered keys in FP32; a handful of temporaries of that size live at once.
CHUNK_BYTES = 2**25


def chunk_queries(D: int, topk: int) -> int:
    """Queries whose gathered keys fit into CHUNK_BYTES; at least one."""
    return max(1, CHUNK_BYTES // max(1, 4 * topk * D))
