"""Sparse MLA's backward in Triton with d_kv added up by float atomics: its bits depend on the order of arrival."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.sparse_mla.backward_kv import ATOMIC
from kernels.sparse_mla.halves import Backward
from kernels.sparse_mla.workspace import atomic_bytes, check
from numcheck.determinism import requested, require

NAME = "sparse_mla.triton_atomic"


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
    """d_q [S_q, H, D], d_kv [S_k, D] and, with a sink, d_sink [H].

    budget: bytes of workspace allowed; None: what the device has free. Raises NotDeterministic where determinism is
    requested (`ordered.vjp` and `fixed_point.vjp` can be had instead), WorkspaceExceeded where the workspace is beyond
    the budget, and as `arguments.vjp_sizes` does.
    """
    require(NAME, requested(), remedy="call ordered.vjp or fixed_point.vjp, which do not depend on order")
    return added_by_atomics(
        Backward.of(q, kv, topk_idxs, topk_length, sink, out, lse, d_out, softmax_scale, value_dim, d_kv_dtype), budget
    )


def added_by_atomics(call: Backward, budget: int | None = None) -> dict[str, Tensor]:
    """What `vjp` returns, without asking whether determinism is requested."""
    n, wide = call.n, call.d_kv_dtype == torch.float32
    if n.empty:
        return call.nothing()
    check(NAME, n, atomic_bytes(n, wide), budget, call.q.device)
    gradients, delta = call.query_half()
    sums = torch.zeros((n.S_k, n.D), dtype=torch.float32, device=call.q.device)
    call.kv_half(ATOMIC.value, delta, sums)
    return gradients | {"d_kv": sums if wide else call.empty_d_kv().copy_(sums)}
