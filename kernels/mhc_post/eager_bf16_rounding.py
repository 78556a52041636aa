"""mHC post as it was before FP32 coefficients: each intermediate is rounded to the data's dtype.

For FP32 data it rounds nothing; for bf16 data it loses small results under cancellation (README, "The two policies").
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.mhc_post.arguments import sizes
from kernels.mhc_post.eager import feature_sum, fp32_zeros


def forward(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> dict[str, Tensor]:
    """out[o] = post[o] x + sum_s comb[s, o] residual[s] with post, comb, post*x and the mix rounded to x's dtype."""
    streams = sizes(x, residual, post, comb).H
    dtype = residual.dtype
    post, comb = _rounded(post, dtype), _rounded(comb, dtype)
    mix = comb[:, 0, :, None] * residual[:, 0, None].float()
    for s in range(1, streams):
        mix += comb[:, s, :, None] * residual[:, s, None].float()
    scaled = _rounded(post[:, :, None] * x.float()[:, None], dtype)
    return {"out": (scaled + _rounded(mix, dtype)).to(dtype)}


def vjp(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> dict[str, Tensor]:
    """The gradients that autograd gives for `forward`: rounded coefficients, FP32 sums, each gradient rounded once.

    d_post and d_comb are FP32 tensors of values rounded to the data's dtype, because the cast of the coefficients
    sends their gradient through that dtype.
    """
    streams = sizes(x, residual, post, comb, d_out).H
    dtype = residual.dtype
    post, comb = _rounded(post, dtype), _rounded(comb, dtype)
    x32, residual32 = x.float(), residual.float()
    d_x, d_residual = fp32_zeros(x), fp32_zeros(residual)
    d_post, d_comb = fp32_zeros(post), fp32_zeros(comb)
    for o in range(streams):
        g = d_out[:, o].float()
        d_x += post[:, o, None] * g
        d_residual += comb[:, :, o, None] * g[:, None]
        d_post[:, o] = _rounded(feature_sum(x32 * g), dtype)
        d_comb[:, :, o] = _rounded(feature_sum(residual32 * g[:, None]), dtype)
    return {"d_x": d_x.to(dtype), "d_residual": d_residual.to(dtype), "d_post": d_post, "d_comb": d_comb}


def _rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    return value.to(dtype).float()
