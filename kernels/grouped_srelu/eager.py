"""The grouped backwards in torch operators: FP32 throughout, d_c and d_x rounded once at the end.

One GEMM an expert over all rows, each row keeping its own expert's: E times the work of a grouped GEMM, and nothing
waits for the host to learn how many rows an expert has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.grouped_srelu.arguments import sizes

Tensors = dict[str, Tensor]
# act (M, N) of z, and dL/dz of (z, dL/d act).
Pair = tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]


def vjp(
    c: Tensor, prob: Tensor | None, alpha: Tensor, w1: Tensor, w2: Tensor, tokens: Tensor, offsets: Tensor, *,
    d_out: Tensor, d_prob_onto: Tensor | None = None, d_bias_onto: Tensor | None = None,
    generate_dbias: bool = True, tanh_clamp_scale: float | None = None,
) -> Tensors:  # fmt: skip
    """d_c [M, N], d_prob [M], d_bias [E, N], d_x [M, H] of dSReLU. Raises as `arguments.sizes` does."""
    sizes(
        {
            "c": c, "prob": prob, "alpha": alpha, "w1": w1, "w2": w2, "tokens": tokens, "offsets": offsets,
            "d_out": d_out, "d_prob_onto": d_prob_onto, "d_bias_onto": d_bias_onto,
        },
        generate_dbias=generate_dbias,
        clamp=tanh_clamp_scale,
    )  # fmt: skip
    owner = owners(tokens, offsets, c.shape[0])
    z, r = of_tokens(c, owner), routed(d_out, w2, alpha, owner)
    onto = (d_prob_onto, d_bias_onto)
    return gradients(srelu(tanh_clamp_scale), z, r, prob, w1, owner, onto, generate_dbias, c.dtype)


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


def routed(d_out: Tensor, w2: Tensor, scale: Tensor, owner: Tensor) -> Tensor:
    """R [M, N] = scale_e (d_out w2_e^T) in FP32."""
    dot = product(of_tokens(d_out, owner), w2.mT, owner)
    return torch.where((owner >= 0)[:, None], scale[owner.clamp(min=0)][:, None] * dot, 0.0)


def gradients(
    pair: Pair, z: Tensor, r: Tensor, prob: Tensor | None, w1: Tensor, owner: Tensor,
    onto: tuple[Tensor | None, Tensor | None], generate_dbias: bool, dtype: torch.dtype,
) -> Tensors:  # fmt: skip
    """The four gradients from z (FP32) and R; onto: the caller's buffers for d_prob and d_bias."""
    act, gradient = pair
    g = gradient(z, r if prob is None else r * of_tokens(prob, owner)[:, None])
    d_c = g.to(dtype)
    found = {"d_c": d_c}
    if prob is not None:
        found["d_prob"] = _added(onto[0], (act(z) * r).sum(-1))
    if generate_dbias:
        sums = [torch.where((owner == e)[:, None], g, 0.0).sum(0) for e in range(w1.shape[0])]
        found["d_bias"] = _added(onto[1], torch.stack(sums))
    found["d_x"] = product(d_c.float(), w1, owner).to(dtype)
    return found


def _added(onto: Tensor | None, total: Tensor) -> Tensor:
    return total if onto is None else onto + total
