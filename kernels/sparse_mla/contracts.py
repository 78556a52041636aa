"""What each sparse-MLA implementation promises, as functions of the Case.

Totals and points are the oracle's (`numcheck.oracles.sparse_mla` lists them): E and P.forward in the forward,
P.backward (as it enters d_kv), P.dS (as it enters dS), dP, D, dS.unscaled and dS in the backward.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernels.sparse_mla.blocks import chunk_queries
from numcheck import Case, Contract, Sum

DTYPES = ("fp32", "bf16", "fp16")
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
OUTPUTS = ("out", "lse", "d_q", "d_kv", "d_sink")


def returned(case: Case) -> Mapping[str, str]:
    """Only outputs round: out, d_q and d_kv to the data's dtype, d_kv only where it is not asked for in FP32."""
    names = ["out", "d_q"] + (["d_kv"] if case.fact("d_kv", "data") == "data" else [])
    return {} if case.dtype == "fp32" else dict.fromkeys(names, "data")


def tensor_cores(case: Case) -> Mapping[str, str]:
    """The policy of fused attention on tensor cores: also P and the scaled dS round to the data's dtype.

    In the forward it is exp(S - row maximum) that rounds (E), before the division by its FP32 sum.
    """
    points = () if case.dtype == "fp32" else ("E", "P.backward", "dS")
    return {**returned(case), **dict.fromkeys(points, "data")}


# torch.matmul, tl.dot and tensor cores each take a tree of their own.
PRODUCTS = Sum("fp32", tree="any", products=True)


def eager_workspace(case: Case) -> int:
    """Bytes of temporaries of `eager` at the worst moment of a chunk of queries: of its forward or its vjp.

    A chunk of c queries holds N = c topk slots: an int64 row, a dead flag and an FP32 key each. What 16-bit data takes
    in FP32 beside them, and what is alive at the same time, is named below by where it happens.
    """
    S_q, S_k, H, D, D_v, topk = (case[name] for name in ("S_q", "S_k", "H", "D", "D_v", "topk"))
    element = BYTES[case.dtype]
    upcast = 4 if element < 4 else 0
    end = 0 if d_kv_bytes(case) == 4 else 4 * S_k * D
    if 0 in (S_q, S_k, H, topk):
        return end
    c = min(S_q, chunk_queries(D, topk))
    N, heads, sink = c * topk, 4 * c * H, case.fact("sink", "none") != "none"
    slots = (8 + 1) * N
    listed = slots + 4 * N * D + c
    logits = upcast * c * H * D + heads * topk
    cast = c * H * element if upcast else 0
    forward = (
        slots + (element + upcast) * N * D,  # gathering the keys
        listed + logits,
        listed + heads * (topk + (5 if sink else 3)),  # softmax: maximum, sum, lse, and two of the sink's
        listed + heads * (topk + D_v) + cast * D_v,  # out
    )
    lse = heads * (2 if sink else 1)
    row = listed + lse + heads
    pair = row + 2 * heads * topk
    vjp = (
        forward[0],
        listed + lse + (2 * upcast + 4) * c * H * D_v,  # D
        row + logits,
        pair + upcast * c * H * D_v,  # dP
        pair + heads * D + cast * D,  # d_q
        pair + upcast * c * H * D + 4 * N * D,  # dK
        pair + 4 * N * D + upcast * c * H * D_v + 4 * N * D_v,  # dV
        8 * N + 16 * N + 8 * (S_k + 1) + 2 * 4 * N * D + 4 * S_k * D,  # sorting and adding by row
    )
    # The FP32 sums of a 16-bit d_kv live throughout, while it comes at the end.
    sums = (4 - d_kv_bytes(case)) * S_k * D
    return max(*forward, *(moment + sums for moment in vjp), end)


def d_kv_bytes(case: Case) -> int:
    """Bytes of an element of d_kv."""
    return 4 if case.fact("d_kv", "data") == "fp32" else BYTES[case.dtype]


EAGER = Contract(rounds=returned, accumulate=PRODUCTS, dtypes=DTYPES, refuses=True, workspace=eager_workspace)
