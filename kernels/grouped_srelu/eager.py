"""Grouped dSReLU backward in torch operators: FP32 throughout, d_c and d_x rounded once at the end.

One GEMM an expert over all rows, each row keeping its own expert's: E times the work of a grouped GEMM, and nothing
waits for the host to learn how many rows an expert has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.grouped_srelu.call import Call, Tensors

# act (M, N) of z, and dL/dz of (z, dL/d act).
Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


def vjp(
    c: Tensor, prob: Tensor | None, alpha: Tensor, w1: Tensor, w2: Tensor, tokens: Tensor, offsets: Tensor, *,
    d_out: Tensor, d_prob_onto: Tensor | None = None, d_bias_onto: Tensor | None = None,
    generate_dbias: bool = True, tanh_clamp_scale: float | None = None,
) -> Tensors:  # fmt: skip
    """d_c [M, N], d_prob [M], d_bias [E, N], d_x [M, H] of dSReLU. Raises as `arguments.sizes` does."""
    call = Call.of(locals())
    owner = owners(tokens, offsets, call.n.M)
    return gradients(call, srelu(tanh_clamp_scale), of_tokens(c, owner), routed(call, alpha, owner), owner)


def srelu(clamp: float | None) -> Pair:
    """Squared ReLU, clamped softly at `clamp` where there is one."""
    if clamp is None:
        return (lambda z: torch.relu(z).square()), (lambda z, r: 2.0 * torch.relu(z) * r)

    def tanh(z: Tensor) -> Tensor:
        return torch.tanh(torch.relu(z) / clamp)

    def gradient(z: Tensor, r: Tensor) -> Tensor:
        t = tanh(z)
        return 2.0 * clamp * (t - t * t * t) * r

    return (lambda z: (clamp * tanh(z)).square()), gradient


def owners(tokens: Tensor, offsets: Tensor, rows: int) -> Tensor:
    """The expert of each row, -1 for padding, as [rows]."""
    row = torch.arange(rows, device=offsets.device)
    starts = torch.cat([offsets.new_zeros(1), offsets[:-1]])
    mine = (row >= starts[:, None]) & (row < (starts + tokens)[:, None])
    expert = torch.arange(len(offsets), device=offsets.device)
    return torch.where(mine, expert[:, None], -1).amax(0)


def of_tokens(values: Tensor, owner: Tensor) -> Tensor:
    """FP32 values of tokens, zeros in padding rows whatever they hold."""
    return torch.where((owner >= 0).reshape(-1, *(1,) * (values.dim() - 1)), values.float(), 0.0)


def product(rows: Tensor, weights: Tensor, owner: Tensor) -> Tensor:
    """rows [M, K] @ weights[owner] [K, J] in FP32; zeros in padding rows."""
    found = rows.new_zeros((rows.shape[0], weights.shape[2]))
    for e in range(weights.shape[0]):
        found = torch.where((owner == e)[:, None], rows @ weights[e].float(), found)
    return found


def routed(call: Call, scale: Tensor, owner: Tensor) -> Tensor:
    """R [M, N] = scale_e (d_out w2_e^T) in FP32."""
    dot = product(of_tokens(call["d_out"], owner), call["w2"].mT, owner)
    return torch.where((owner >= 0)[:, None], scale[owner.clamp(min=0)][:, None] * dot, 0.0)


def gradients(call: Call, pair: Pair, z: Tensor, r: Tensor, owner: Tensor) -> Tensors:
    """The gradients from z [M, width N] and R [M, N], both FP32."""
    act, gradient = pair
    prob, dtype = call.given["prob"], call["c"].dtype
    g = gradient(z, r if prob is None else r * of_tokens(prob, owner)[:, None])
    d_c = g.to(dtype)
    found = {"d_c": d_c}
    if prob is not None:
        found["d_prob"] = _added(call.given["d_prob_onto"], (act(z) * r).sum(-1))
    if call.generate_dbias:
        sums = [torch.where((owner == e)[:, None], g, 0.0).sum(0) for e in range(call.n.E)]
        found["d_bias"] = _added(call.given["d_bias_onto"], torch.stack(sums))
    found["d_x"] = product(d_c.float(), call["w1"], owner).to(dtype)
    return found


def _added(onto: Tensor | None, total: Tensor) -> Tensor:
    return total if onto is None else onto + total
