"""mHC post in Triton: one program a token, forward and backward, one writer for each address.

A program walks its token's D in wide blocks, so nothing is shared between programs and no order can matter.
The kernels run unchanged on a GPU and in Triton's interpreter. The interpreter rounds each product; a GPU contracts a
product and its add to one FMA. The Contract's `products=True` covers both.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.mhc_post.arguments import Sizes, sizes
from kernels.mhc_post.blocks import block_of, blocks_of


@triton.jit
def mhc_post_forward(
    x, residual, post, comb, out, D,
    x_t, x_d, residual_t, residual_h, residual_d, post_t, post_h, comb_t, comb_s, comb_o,
    H: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, H)
    scale = tl.load(post + t * post_t + o * post_h)  # [H]
    for block in range(BLOCKS):
        d = block * BLOCK + tl.arange(0, BLOCK)
        inside = d < D
        token = tl.load(x + t * x_t + d * x_d, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        total = scale[:, None] * token[None, :]  # [H, BLOCK]
        for s in tl.static_range(H):
            weight = tl.load(comb + t * comb_t + s * comb_s + o * comb_o)  # [H]
            stream = tl.load(residual + t * residual_t + s * residual_h + d * residual_d, mask=inside, other=0.0)
            total += weight[:, None] * stream.to(tl.float32)[None, :]
        at = (t * H + o[:, None]) * D + d[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=(o[:, None] < H) & inside[None, :])


@triton.jit
def mhc_post_backward(
    x, residual, post, comb, d_out, d_x, d_residual, d_post, d_comb, D,
    x_t, x_d, residual_t, residual_h, residual_d, post_t, post_h, comb_t, comb_s, comb_o, d_out_t, d_out_h, d_out_d,
    H: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, H)
    post_sum = tl.zeros([H], tl.float32)
    comb_sum = tl.zeros([H, H], tl.float32)  # [source, output]
    for block in range(BLOCKS):
        d = block * BLOCK + tl.arange(0, BLOCK)
        inside = d < D
        tile = (h[:, None] < H) & inside[None, :]
        token = tl.load(x + t * x_t + d * x_d, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
        streams = residual + t * residual_t + h[:, None] * residual_h + d[None, :] * residual_d
        streams = tl.load(streams, mask=tile, other=0.0).to(tl.float32)  # [H, BLOCK]
        x_sum = tl.zeros([BLOCK], tl.float32)
        residual_sum = tl.zeros([H, BLOCK], tl.float32)
        for o in tl.static_range(H):
            g = tl.load(d_out + t * d_out_t + o * d_out_h + d * d_out_d, mask=inside, other=0.0).to(tl.float32)
            x_sum += tl.load(post + t * post_t + o * post_h) * g
            weight = tl.load(comb + t * comb_t + h * comb_s + o * comb_o)  # [H]
            residual_sum += weight[:, None] * g[None, :]
            here = h == o
            post_sum += tl.where(here, tl.sum(token * g, axis=0), 0.0)
            comb_sum += tl.where(here[None, :], tl.sum(streams * g[None, :], axis=1)[:, None], 0.0)
        tl.store(d_x + t * D + d, x_sum.to(d_x.dtype.element_ty), mask=inside)
        at = (t * H + h[:, None]) * D + d[None, :]
        tl.store(d_residual + at, residual_sum.to(d_residual.dtype.element_ty), mask=tile)
    tl.store(d_post + t * H + h, post_sum)
    tl.store(d_comb + (t * H + h[:, None]) * H + h[None, :], comb_sum)


def forward(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> dict[str, Tensor]:
    """out [S, H, D] in residual's dtype, by `mhc_post_forward`. Raises as `arguments.sizes` does."""
    n = sizes(x, residual, post, comb)
    out = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    if not n.empty:
        strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride())
        block = block_of(n.D)
        mhc_post_forward[(n.S,)](
            x, residual, post, comb, out, n.D, *strides, H=n.H, BLOCK=block, BLOCKS=blocks_of(n.D, block)
        )
    return {"out": out}


def vjp(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> dict[str, Tensor]:
    """d_x [S, D], d_residual [S, H, D], d_post [S, H], d_comb [S, H, H], by `mhc_post_backward`."""
    n = sizes(x, residual, post, comb, d_out)
    gradients = empty_gradients(x, residual, n)
    if not n.empty:
        strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride(), *d_out.stride())
        block = block_of(n.D)
        mhc_post_backward[(n.S,)](
            x, residual, post, comb, d_out, *gradients.values(), n.D, *strides,
            H=n.H, BLOCK=block, BLOCKS=blocks_of(n.D, block),
        )  # fmt: skip
    return gradients


def empty_gradients(x: Tensor, residual: Tensor, n: Sizes) -> dict[str, Tensor]:
    """Contiguous gradients to be written; d_post and d_comb are zero where nothing will be launched."""
    coefficients = torch.zeros if n.empty else torch.empty
    return {
        "d_x": torch.empty((n.S, n.D), dtype=x.dtype, device=x.device),
        "d_residual": torch.empty((n.S, n.H, n.D), dtype=residual.dtype, device=x.device),
        "d_post": coefficients((n.S, n.H), dtype=torch.float32, device=x.device),
        "d_comb": coefficients((n.S, n.H, n.H), dtype=torch.float32, device=x.device),
    }
