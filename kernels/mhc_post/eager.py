"""mHC post in torch operators, FP32 throughout and rounded once at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.mhc_post.arguments import sizes

# torch sums a single row of 32768 terms or more in as many parts as it has threads; shorter pieces keep one order.
PIECE = 16384


def forward(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> dict[str, Tensor]:
    """out[o] = post[o] x + sum_s comb[s, o] residual[s], as [S, H, D] in residual's dtype.

    The sources are added one by one, so the largest temporary is [S, H, D] and not [S, H, H, D].
    Raises as `arguments.sizes` does.
    """
    streams = sizes(x, residual, post, comb).H
    out = post[:, :, None] * x.float()[:, None]
    for s in range(streams):
        out += comb[:, s, :, None] * residual[:, s, None].float()
    return {"out": out.to(residual.dtype)}


def vjp(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> dict[str, Tensor]:
    """The gradients d_x [S, D], d_residual [S, H, D], d_post [S, H], d_comb [S, H, H] for the cotangent d_out.

    d_x and d_residual add the output streams in ascending order; d_post and d_comb sum over D as torch does.
    """
    streams = sizes(x, residual, post, comb, d_out).H
    x32, residual32 = x.float(), residual.float()
    d_x, d_residual = fp32_zeros(x), fp32_zeros(residual)
    d_post, d_comb = fp32_zeros(post), fp32_zeros(comb)
    for o in range(streams):
        g = d_out[:, o].float()
        d_x += post[:, o, None] * g
        d_residual += comb[:, :, o, None] * g[:, None]
        d_post[:, o] = feature_sum(x32 * g)
        d_comb[:, :, o] = feature_sum(residual32 * g[:, None])
    return {"d_x": d_x.to(x.dtype), "d_residual": d_residual.to(residual.dtype), "d_post": d_post, "d_comb": d_comb}


def fp32_zeros(like: Tensor) -> Tensor:
    """Contiguous FP32 zeros in the shape of `like`; zeros_like would copy the strides of a strided input."""
    return torch.zeros(like.shape, dtype=torch.float32, device=like.device)


def feature_sum(terms: Tensor) -> Tensor:
    """The sum over the last axis, in an order that does not depend on the number of threads."""
    first, *rest = torch.split(terms, PIECE, dim=-1)
    total = first.sum(-1)
    for piece in rest:
        total += piece.sum(-1)
    return total
