"""How eager cuts the queries and what that takes: declared functions of the sizes, which a Contract can read."""

from __future__ import annotations

from kernels.sparse_mla.arguments import Sizes

# Bytes of a chunk's gathered keys in FP32; a handful of temporaries of that size live at once.
CHUNK_BYTES = 2**25


def chunk_queries(D: int, topk: int) -> int:
    """Queries whose gathered keys fit into CHUNK_BYTES; at least one."""
    return max(1, CHUNK_BYTES // max(1, 4 * topk * D))


def eager_bytes(n: Sizes, element: int, d_kv_element: int, *, sink: bool) -> int:
    """Bytes of temporaries of `eager` at the worst moment of a chunk of queries: of its forward or its vjp.

    A chunk of c queries holds N = c topk slots: an int64 row, a dead flag and an FP32 key each. What 16-bit data takes
    in FP32 beside them, and what is alive at the same time, is named below by where it happens.
    element, d_kv_element: bytes of one of the data and of d_kv. sink: whether one is given.
    """
    end = 0 if d_kv_element == 4 else 4 * n.S_k * n.D
    if n.empty:
        return end
    c = min(n.S_q, chunk_queries(n.D, n.topk))
    upcast = 4 if element < 4 else 0
    N, heads = c * n.topk, 4 * c * n.H
    slots = (8 + 1) * N
    listed = slots + 4 * N * n.D + c
    logits = upcast * c * n.H * n.D + heads * n.topk
    cast = c * n.H * element if upcast else 0
    forward = (
        slots + (element + upcast) * N * n.D,  # gathering the keys
        listed + logits,
        listed + heads * (n.topk + (5 if sink else 3)),  # softmax: maximum, sum, lse, and two of the sink's
        listed + heads * (n.topk + n.D_v) + cast * n.D_v,  # out
    )
    lse = heads * (2 if sink else 1)
    row = listed + lse + heads
    pair = row + 2 * heads * n.topk
    vjp = (
        forward[0],
        listed + lse + (2 * upcast + 4) * c * n.H * n.D_v,  # D
        row + logits,
        pair + upcast * c * n.H * n.D_v,  # dP
        pair + heads * n.D + cast * n.D,  # d_q
        pair + upcast * c * n.H * n.D + 4 * N * n.D,  # dK
        pair + 4 * N * n.D + upcast * c * n.H * n.D_v + 4 * N * n.D_v,  # dV
        8 * N + 16 * N + 8 * (n.S_k + 1) + 2 * 4 * N * n.D + 4 * n.S_k * n.D,  # sorting and adding by row
    )
    # The FP32 sums of a 16-bit d_kv live throughout, while it comes at the end.
    sums = (4 - d_kv_element) * n.S_k * n.D
    return max(*forward, *(moment + sums for moment in vjp), end)
