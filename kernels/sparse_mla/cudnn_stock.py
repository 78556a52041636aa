"""The installed nvidia-cudnn-frontend's SM90 backward of sparse MLA, through its public wrapper.

d_q has one writer an element. d_kv is added by float atomics, a row's by every query and head tile that lists it, and
d_sink by one float atomic a warp, so both depend on the order of arrival.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.sparse_mla import cudnn_probe
from kernels.sparse_mla.cudnn_arguments import nothing, sizes
from kernels.sparse_mla.cudnn_workspace import stock_bytes, stock_scratch
from kernels.sparse_mla.workspace import check
from numcheck.determinism import requested, require

NAME = "sparse_mla.cudnn_stock"
REMEDY = "call cudnn_fixed_point.vjp, whose sums do not depend on order"

capability = cudnn_probe.probe(cudnn_probe.WRAPPER)


def vjp(
    q: Tensor,
    kv: Tensor,
    topk_idxs: Tensor,
    topk_length: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
    budget: int | None = None,
) -> dict[str, Tensor]:
    """d_q [S_q, H, D] and d_kv [S_k, D] in q's dtype, d_sink [H] in FP32 where there is a sink.

    The first call of a shape compiles for some seconds, and cannot be captured in a graph.
    budget: bytes of workspace allowed; None: what the device has free. Raises NotDeterministic where determinism is
    requested, WorkspaceExceeded where the workspace is beyond the budget, and as `cudnn_arguments.sizes` does.
    """
    require(NAME, requested(), remedy=REMEDY)
    n = sizes(
        q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
        softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype,
    )  # fmt: skip
    if n.empty:
        return nothing(q, kv, sink)
    check(NAME, n, stock_bytes(n, sink is not None), budget, q.device)
    from cudnn.deepseek_sparse_attention.sparse_attention_backward.api import sparse_attention_backward_wrapper

    gradients = sparse_attention_backward_wrapper(
        q=q,
        kv=kv,
        out=out,
        dout=d_out,
        lse=lse,
        attn_sink=torch.full((n.H,), -math.inf, device=q.device) if sink is None else sink,
        topk_idxs=topk_idxs,
        softmax_scale=softmax_scale,
        topk_length=topk_length,
        workspace=torch.empty(stock_scratch(n), dtype=torch.uint8, device=q.device),
    )
    named = {"d_q": gradients["dq"], "d_kv": gradients["dkv"]}
    return named if sink is None else {**named, "d_sink": gradients["d_sink"]}
