"""The map objective as torch users write it: F.normalize, differentiated by autograd, with torch's own clamp.

At the clamp torch's derivative is a convention that changed between its versions, so `clamp_is_strict` asks the one
that is installed.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from kernels.balance_loss.arguments import backward_sizes, forward_sizes
from numcheck.oracles.balance_loss_cases import CLAMP


def forward(
    scores: Tensor, routing_map: Tensor, padding: Tensor | None, denominator: Tensor, *, coefficient: float
) -> dict[str, Tensor]:
    """frequencies [E], mass [E], raw [], loss []. Raises as `arguments.forward_sizes` does."""
    forward_sizes(scores, padding, denominator, coefficient, routing_map=routing_map)
    live = routing_map if padding is None else routing_map & ~padding[:, None]
    counts = live.to(torch.float32).sum(0)
    frequencies = F.normalize(counts, p=1, dim=0) * scores.shape[1]
    mass = _mass(scores, padding)
    raw = (frequencies * mass).sum()
    return {
        "frequencies": frequencies,
        "mass": mass,
        "raw": raw,
        "loss": raw * coefficient / denominator.clamp(min=1.0),
    }


def vjp(
    scores: Tensor,
    routing_map: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    frequencies: Tensor,
    d_loss: Tensor,
    *,
    coefficient: float,
) -> dict[str, Tensor]:
    """d_scores [T, E] by autograd. Raises as `arguments.backward_sizes` does."""
    backward_sizes(scores, padding, denominator, coefficient, frequencies, d_loss, routing_map=routing_map)
    leaf = scores.detach().requires_grad_()
    with torch.enable_grad():
        loss = (frequencies * _mass(leaf, padding)).sum() * coefficient / denominator.clamp(min=1.0)
        (d_scores,) = torch.autograd.grad(loss, leaf, d_loss)
    return {"d_scores": d_scores.contiguous()}


def _mass(scores: Tensor, padding: Tensor | None) -> Tensor:
    s = scores.float()
    return F.normalize(s if padding is None else s.masked_fill(padding[:, None], 0), p=1, dim=-1).sum(0)


def clamp_is_strict() -> bool:
    """Whether the installed torch stops the gradient of a clamp at equality, as the objective's policy does."""
    limit = torch.tensor(CLAMP, dtype=torch.float32, requires_grad=True)
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(limit.clamp_min(CLAMP), limit)
    return float(slope) == 0.0
