"""Copies of kernels with one bug each, for `kernels.mhc_post.faults`."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mhc_post_forward_narrow(
    x, residual, post, comb, out, D,
    x_t, x_d, residual_t, residual_h, residual_d, post_t, post_h, comb_t, comb_s, comb_o,
    H: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    # The bug: the token's number, and so where its rows start, in 32 bits.
    t = tl.program_id(0)
    o = tl.arange(0, H)
    scale = tl.load(post + t * post_t + o * post_h)
    for block in range(BLOCKS):
        d = block * BLOCK + tl.arange(0, BLOCK)
        inside = d < D
        token = tl.load(x + t * x_t + d * x_d, mask=inside, other=0.0).to(tl.float32)
        total = scale[:, None] * token[None, :]
        for s in tl.static_range(H):
            weight = tl.load(comb + t * comb_t + s * comb_s + o * comb_o)
            stream = tl.load(residual + t * residual_t + s * residual_h + d * residual_d, mask=inside, other=0.0)
            total += weight[:, None] * stream.to(tl.float32)[None, :]
        at = (t * H + o[:, None]) * D + d[None, :]
        tl.store(out + at, total.to(out.dtype.element_ty), mask=(o[:, None] < H) & inside[None, :])


@triton.jit
def mhc_post_backward_lost_updates(
    x, residual, post, comb, d_out, d_x, d_residual, d_post, d_comb, D,
    x_t, x_d, residual_t, residual_h, residual_d, post_t, post_h, comb_t, comb_s, comb_o, d_out_t, d_out_h, d_out_d,
    H: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, H)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    tile = (h[:, None] < H) & inside[None, :]
    token = tl.load(x + t * x_t + d * x_d, mask=inside, other=0.0).to(tl.float32)
    streams = residual + t * residual_t + h[:, None] * residual_h + d[None, :] * residual_d
    streams = tl.load(streams, mask=tile, other=0.0).to(tl.float32)
    x_sum = tl.zeros([BLOCK], tl.float32)
    residual_sum = tl.zeros([H, BLOCK], tl.float32)
    for o in tl.static_range(H):
        g = tl.load(d_out + t * d_out_t + o * d_out_h + d * d_out_d, mask=inside, other=0.0).to(tl.float32)
        x_sum += tl.load(post + t * post_t + o * post_h) * g
        residual_sum += tl.load(comb + t * comb_t + h * comb_s + o * comb_o)[:, None] * g[None, :]
        # The bug: load, add, store where other programs do the same, instead of an atomic add.
        post_at = d_post + t * H + o
        comb_at = d_comb + (t * H + h) * H + o
        tl.store(post_at, tl.load(post_at) + tl.sum(token * g, axis=0))
        tl.store(comb_at, tl.load(comb_at) + tl.sum(streams * g[None, :], axis=1))
    tl.store(d_x + t * D + d, x_sum.to(d_x.dtype.element_ty), mask=inside)
    at = (t * H + h[:, None]) * D + d[None, :]
    tl.store(d_residual + at, residual_sum.to(d_residual.dtype.element_ty), mask=tile)
