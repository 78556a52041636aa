"""A kernel of one's own for a problem that numcheck ships, and what it promises.

$ pytest --numcheck-specs my_mhc.py -m bitwise
"""

import torch
import triton
import triton.language as tl

from numcheck import Contract, KernelSpec
from numcheck.oracles import mhc_post

BLOCK = 512


@triton.jit
def _fwd(x, residual, post, comb, out, D, H: tl.constexpr, BLOCK: tl.constexpr):
    token, o = tl.program_id(0), tl.arange(0, H)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    row = tl.load(x + token * D + d, mask=inside, other=0.0).to(tl.float32)
    total = tl.load(post + token * H + o)[:, None] * row[None, :]
    for s in tl.static_range(H):
        stream = tl.load(residual + (token * H + s) * D + d, mask=inside, other=0.0).to(tl.float32)
        total += tl.load(comb + (token * H + s) * H + o)[:, None] * stream[None, :]
    at = (token * H + o[:, None]) * D + d[None, :]
    tl.store(out + at, total.to(tl.bfloat16), mask=(o[:, None] < H) & inside[None, :])


@triton.jit
def _bwd(x, residual, post, comb, g, d_x, d_residual, d_post, d_comb, D, H: tl.constexpr, BLOCK: tl.constexpr):
    token, h = tl.program_id(0), tl.arange(0, H)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < D
    tile, at = (h[:, None] < H) & inside[None, :], (token * H + h[:, None]) * D + d[None, :]
    row = tl.load(x + token * D + d, mask=inside, other=0.0).to(tl.float32)
    streams = tl.load(residual + at, mask=tile, other=0.0).to(tl.float32)
    x_sum, residual_sum = tl.zeros([BLOCK], tl.float32), tl.zeros([H, BLOCK], tl.float32)
    for o in tl.static_range(H):
        go = tl.load(g + (token * H + o) * D + d, mask=inside, other=0.0).to(tl.float32)
        x_sum += tl.load(post + token * H + o) * go
        residual_sum += tl.load(comb + (token * H + h) * H + o)[:, None] * go[None, :]
        # Several programs add to one address, in whatever order they arrive.
        tl.atomic_add(d_post + token * H + o, tl.sum(row * go, axis=0))
        tl.atomic_add(d_comb + (token * H + h) * H + o, tl.sum(streams * go[None, :], axis=1))
    tl.store(d_x + token * D + d, x_sum.to(tl.bfloat16), mask=inside)
    tl.store(d_residual + at, residual_sum.to(tl.bfloat16), mask=tile)


def forward(x, residual, post, comb):
    x, residual, post, comb = _checked(x, residual, post, comb)
    out = torch.empty_like(residual)
    if out.numel():
        _fwd[_grid(residual)](x, residual, post, comb, out, x.shape[-1], residual.shape[1], BLOCK)
    return {"out": out}


def vjp(x, residual, post, comb, *, d_out):
    if torch.are_deterministic_algorithms_enabled():
        raise RuntimeError("my_mhc adds d_post and d_comb in no fixed order: it is not deterministic")
    x, residual, post, comb, d_out = _checked(x, residual, post, comb, d_out)
    d_x, d_residual = torch.empty_like(x), torch.empty_like(residual)
    d_post, d_comb = torch.zeros_like(post), torch.zeros_like(comb)
    if residual.numel():
        gradients = (d_x, d_residual, d_post, d_comb)
        _bwd[_grid(residual)](x, residual, post, comb, d_out, *gradients, x.shape[-1], residual.shape[1], BLOCK)
    return {"d_x": d_x, "d_residual": d_residual, "d_post": d_post, "d_comb": d_comb}


def _checked(x, residual, post, comb, d_out=None):
    """The tensors contiguous, once their shapes and dtypes are known to fit; the kernels walk them without strides."""
    if residual.dim() != 3:
        raise ValueError(f"residual has shape {tuple(residual.shape)}, but it must be (tokens, streams, features)")
    tokens, streams, features = residual.shape
    wanted = {
        "x": (x, (tokens, features), torch.bfloat16),
        "residual": (residual, (tokens, streams, features), torch.bfloat16),
        "post": (post, (tokens, streams), torch.float32),
        "comb": (comb, (tokens, streams, streams), torch.float32),
    }
    if d_out is not None:
        wanted["d_out"] = (d_out, (tokens, streams, features), torch.bfloat16)
    for name, (tensor, shape, dtype) in wanted.items():
        if tuple(tensor.shape) != shape or tensor.dtype != dtype or tensor.device != residual.device:
            found = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{name} is {found}, but it must be {dtype} {shape} on {residual.device}")
    return [tensor.contiguous() for tensor, _, _ in wanted.values()]


def _grid(residual):
    return residual.shape[0], triton.cdiv(residual.shape[-1], BLOCK)


def _copies(case):
    """Bytes beyond the outputs: the contiguous copies that `_checked` makes of a strided Case."""
    S, H, D = case["S"], case["H"], case["D"]
    return 0 if case.layout == "contiguous" else 2 * S * D + 2 * 2 * S * H * D + 4 * S * H + 4 * S * H * H


spec = KernelSpec(
    "my_mhc",
    mhc_post,
    forward=forward,
    vjp=vjp,
    must_run=(_fwd, _bwd),
    contract=Contract(
        rounds={"out": "bf16", "d_x": "bf16", "d_residual": "bf16"},
        accumulate="fp32",
        order={"out": "single", "d_x": "single", "d_residual": "single", "d_post": "any", "d_comb": "any"},
        workspace=_copies,
    ),
)
