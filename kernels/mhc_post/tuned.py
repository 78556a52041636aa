"""The fused backward with its block left to Triton's autotuner.

Each config is a spec of its own (`KernelSpec.pinned`): which one wins is a matter of timing, and the block decides in
which order d_post and d_comb are summed, so the unpinned kernel promises no bits across processes.
"""

from __future__ import annotations

from typing import Any

import triton
from torch import Tensor

from kernels.mhc_post.arguments import sizes
from kernels.mhc_post.blocks import blocks_of
from kernels.mhc_post.fused import empty_gradients, forward, mhc_post_backward

__all__ = ["backward", "forward", "vjp"]


def _blocks(arguments: dict[str, Any]) -> int:
    return blocks_of(arguments["D"], arguments["BLOCK"])


backward = triton.autotune(
    configs=[triton.Config({"BLOCK": 256}, num_warps=4), triton.Config({"BLOCK": 1024}, num_warps=8)],
    key=["D", "H"],
)(triton.heuristics({"BLOCKS": _blocks})(mhc_post_backward))


def vjp(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> dict[str, Tensor]:
    """d_x [S, D], d_residual [S, H, D], d_post [S, H], d_comb [S, H, H]. Raises as `arguments.sizes` does."""
    n = sizes(x, residual, post, comb, d_out)
    gradients = empty_gradients(x, residual, n)
    if not n.empty:
        strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride(), *d_out.stride())
        backward[(n.S,)](x, residual, post, comb, d_out, *gradients.values(), n.D, *strides, H=n.H)
    return gradients
