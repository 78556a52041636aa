"""mHC post's backward with D cut over programs: d_post and d_comb need a sum over programs.

Two ways to take it: float atomics, whose order is the order of arrival, and slots that a second kernel adds in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.mhc_post.arguments import sizes
from kernels.mhc_post.blocks import SPLITS, block_of, blocks_of
from kernels.mhc_post.fused import empty_gradients
from numcheck.determinism import requested, require


@triton.jit
def mhc_post_backward_split(
    x, residual, post, comb, d_out, d_x, d_residual, post_sums, comb_sums, D,
    x_t, x_d, residual_t, residual_h, residual_d, post_t, post_h, comb_t, comb_s, comb_o, d_out_t, d_out_h, d_out_d,
    H: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, ATOMIC: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    h = tl.arange(0, H)
    d = block * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    tile = (h[:, None] < H) & inside[None, :]
    token = tl.load(x + t * x_t + d * x_d, mask=inside, other=0.0).to(tl.float32)  # [BLOCK]
    streams = residual + t * residual_t + h[:, None] * residual_h + d[None, :] * residual_d
    streams = tl.load(streams, mask=tile, other=0.0).to(tl.float32)  # [H, BLOCK]
    x_sum = tl.zeros([BLOCK], tl.float32)
    residual_sum = tl.zeros([H, BLOCK], tl.float32)
    # One row of sums a token where programs add to it, one a program where each has a slot.
    row = t if ATOMIC else t * BLOCKS + block
    for o in tl.static_range(H):
        g = tl.load(d_out + t * d_out_t + o * d_out_h + d * d_out_d, mask=inside, other=0.0).to(tl.float32)
        x_sum += tl.load(post + t * post_t + o * post_h) * g
        weight = tl.load(comb + t * comb_t + h * comb_s + o * comb_o)  # [H]
        residual_sum += weight[:, None] * g[None, :]
        post_part = tl.sum(token * g, axis=0)
        comb_part = tl.sum(streams * g[None, :], axis=1)  # [H]
        post_at = post_sums + row * H + o
        comb_at = comb_sums + (row * H + h) * H + o
        if ATOMIC:
            tl.atomic_add(post_at, post_part)
            tl.atomic_add(comb_at, comb_part)
        else:
            tl.store(post_at, post_part)
            tl.store(comb_at, comb_part)
    tl.store(d_x + t * D + d, x_sum.to(d_x.dtype.element_ty), mask=inside)
    at = (t * H + h[:, None]) * D + d[None, :]
    tl.store(d_residual + at, residual_sum.to(d_residual.dtype.element_ty), mask=tile)


@triton.jit
def mhc_post_sum_slots(post_slots, comb_slots, d_post, d_comb, H: tl.constexpr, BLOCKS: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    h = tl.arange(0, H)
    hh = tl.arange(0, H * H)
    post_sum = tl.load(post_slots + t * BLOCKS * H + h)
    comb_sum = tl.load(comb_slots + t * BLOCKS * H * H + hh)
    for block in range(1, BLOCKS):
        post_sum += tl.load(post_slots + (t * BLOCKS + block) * H + h)
        comb_sum += tl.load(comb_slots + (t * BLOCKS + block) * H * H + hh)
    tl.store(d_post + t * H + h, post_sum)
    tl.store(d_comb + t * H * H + hh, comb_sum)


def vjp_atomic(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> dict[str, Tensor]:
    """The gradients, with d_post and d_comb added up by float atomics: their bits depend on the order of arrival.

    Raises NotDeterministic where determinism is requested; `vjp_ordered` can be had instead.
    """
    require("mhc_post.triton_split_atomic", requested(), remedy="call vjp_ordered, which adds slots in order")
    return atomic_gradients(x, residual, post, comb, d_out)


def atomic_gradients(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, d_out: Tensor) -> dict[str, Tensor]:
    """What `vjp_atomic` returns, without asking whether determinism is requested."""
    n = sizes(x, residual, post, comb, d_out)
    gradients = empty_gradients(x, residual, n)
    if n.empty:
        return gradients
    gradients["d_post"].zero_()
    gradients["d_comb"].zero_()
    block = block_of(n.D, SPLITS)
    blocks = blocks_of(n.D, block)
    strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride(), *d_out.stride())
    mhc_post_backward_split[(n.S, blocks)](
        x, residual, post, comb, d_out, *gradients.values(), n.D, *strides,
        H=n.H, BLOCK=block, BLOCKS=blocks, ATOMIC=True,
    )  # fmt: skip
    return gradients


def vjp_ordered(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> dict[str, Tensor]:
    """The gradients, with d_post and d_comb added up over slots in ascending order of D by `mhc_post_sum_slots`."""
    n = sizes(x, residual, post, comb, d_out)
    gradients = empty_gradients(x, residual, n)
    if n.empty:
        return gradients
    block = block_of(n.D, SPLITS)
    blocks = blocks_of(n.D, block)
    post_slots = torch.empty((n.S, blocks, n.H), dtype=torch.float32, device=x.device)
    comb_slots = torch.empty((n.S, blocks, n.H, n.H), dtype=torch.float32, device=x.device)
    strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride(), *d_out.stride())
    mhc_post_backward_split[(n.S, blocks)](
        x, residual, post, comb, d_out,
        gradients["d_x"], gradients["d_residual"], post_slots, comb_slots, n.D, *strides,
        H=n.H, BLOCK=block, BLOCKS=blocks, ATOMIC=False,
    )  # fmt: skip
    mhc_post_sum_slots[(n.S,)](post_slots, comb_slots, gradients["d_post"], gradients["d_comb"], H=n.H, BLOCKS=blocks)
    return gradients
