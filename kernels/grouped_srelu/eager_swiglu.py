"""Grouped dSwiGLU backward in torch operators, with the conventions of the reference: alpha squared, beta inside z."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.grouped_srelu.call import Call, Tensors
from kernels.grouped_srelu.eager import gradients, of_tokens, owners, routed

# Columns of gate and of up by turns, and how many columns of c a feature has.
BLOCK, WIDTH = 32, 2


def vjp(
    c: Tensor, prob: Tensor | None, alpha: Tensor, beta: Tensor, w1: Tensor, w2: Tensor, tokens: Tensor,
    offsets: Tensor, *, d_out: Tensor, d_prob_onto: Tensor | None = None, d_bias_onto: Tensor | None = None,
    generate_dbias: bool = True,
) -> Tensors:  # fmt: skip
    """d_c [M, 2N] (the gradient of beta c), d_prob [M], d_bias [E, 2N], d_x [M, H]. Raises as `arguments.sizes`."""
    call = Call.of(locals(), width=WIDTH)
    check_blocks(call)
    owner = owners(tokens, offsets, call.n.M)
    z = torch.where((owner >= 0)[:, None], beta[owner.clamp(min=0)][:, None] * of_tokens(c, owner), 0.0)
    return gradients(call, (activation, gradient), z, routed(call, alpha * alpha, owner), owner)


def check_blocks(call: Call) -> None:
    """Raises ValueError where the features do not come in whole blocks."""
    if call.n.N % BLOCK:
        raise ValueError(f"w2 has N={call.n.N} features, but gate and up come in blocks of {BLOCK}: give whole blocks")


def halves(z: Tensor) -> tuple[Tensor, Tensor]:
    """gate and up [M, N] of z [M, 2N]."""
    gate, up = z.reshape(len(z), z.shape[1] // (WIDTH * BLOCK), WIDTH, BLOCK).unbind(2)
    return gate.flatten(1), up.flatten(1)


def activation(z: Tensor) -> Tensor:
    """up gate sigmoid(gate)."""
    gate, up = halves(z)
    return up * gate * torch.sigmoid(gate)


def gradient(z: Tensor, r: Tensor) -> Tensor:
    """dL/dz [M, 2N] of r = dL/d act [M, N]."""
    gate, up = halves(z)
    s = torch.sigmoid(gate)
    both = r * up * s * (1.0 + gate * (1.0 - s)), r * gate * s
    blocks = [half.reshape(len(half), half.shape[1] // BLOCK, BLOCK) for half in both]
    return torch.stack(blocks, 2).flatten(1)
