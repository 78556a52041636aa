"""Both balance losses in torch operators, in FP32 whatever the scores' dtype."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.balance_loss.arguments import backward_sizes, forward_sizes
from numcheck.oracles.balance_loss_cases import CLAMP, EPSILON


def forward_map(
    scores: Tensor, routing_map: Tensor, padding: Tensor | None, denominator: Tensor, *, coefficient: float
) -> dict[str, Tensor]:
    """frequencies [E], mass [E], raw [], loss [] of the map objective. Raises as `arguments.forward_sizes` does."""
    forward_sizes(scores, padding, denominator, coefficient, routing_map=routing_map)
    s = live(scores.float(), padding)
    den = clamped(s.abs().sum(-1))
    return _outputs(s, den, live(routing_map, padding), denominator, coefficient)


def forward_topk(
    scores: Tensor, padding: Tensor | None, denominator: Tensor, *, coefficient: float, topk: int
) -> dict[str, Tensor]:
    """frequencies [E], mass [E], raw [], loss [] of the top-k objective. Raises as `arguments.forward_sizes` does."""
    forward_sizes(scores, padding, denominator, coefficient, topk=topk)
    s = live(scores.float(), padding)
    return _outputs(s, s.sum(-1) + EPSILON, live(largest(s, topk), padding), denominator, coefficient)


def vjp_map(
    scores: Tensor,
    routing_map: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    frequencies: Tensor,
    d_loss: Tensor,
    *,
    coefficient: float,
) -> dict[str, Tensor]:
    """d_scores [T, E] of the map objective; strict at the clamp. Raises as `arguments.backward_sizes` does."""
    backward_sizes(scores, padding, denominator, coefficient, frequencies, d_loss, routing_map=routing_map)
    s = live(scores.float(), padding)
    norm = s.abs().sum(-1)
    weights, pull = _parts(s, clamped(norm), denominator, frequencies, d_loss, coefficient)
    gradient = weights / clamped(norm)[:, None] - s.sign() * torch.where(norm > CLAMP, pull, 0.0)[:, None]
    return {"d_scores": live(gradient, padding).to(scores.dtype)}


def vjp_topk(
    scores: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    frequencies: Tensor,
    d_loss: Tensor,
    *,
    coefficient: float,
    topk: int,
) -> dict[str, Tensor]:
    """d_scores [T, E] of the top-k objective. Raises as `arguments.backward_sizes` does."""
    backward_sizes(scores, padding, denominator, coefficient, frequencies, d_loss, topk=topk)
    s = live(scores.float(), padding)
    den = s.sum(-1) + EPSILON
    weights, pull = _parts(s, den, denominator, frequencies, d_loss, coefficient)
    return {"d_scores": live(weights / den[:, None] - pull[:, None], padding).to(scores.dtype)}


def live(values: Tensor, padding: Tensor | None) -> Tensor:
    """The values, with zero (False) in padding rows, whatever stood there."""
    return values if padding is None else values.masked_fill(padding[:, None], 0)


def clamped(norm: Tensor) -> Tensor:
    """The norm, not below CLAMP."""
    return torch.where(norm > CLAMP, norm, CLAMP)


def largest(scores: Tensor, topk: int) -> Tensor:
    """The `topk` largest scores of each row as a map [T, E]; of equal ones the first, which torch.topk leaves open."""
    chosen = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :topk]
    return torch.zeros(scores.shape, dtype=torch.bool, device=scores.device).scatter_(1, chosen, True)


def _outputs(s: Tensor, den: Tensor, chosen: Tensor, denominator: Tensor, coefficient: float) -> dict[str, Tensor]:
    counts = chosen.sum(0).float()
    frequencies = counts / counts.sum().clamp(min=CLAMP) * s.shape[1]
    mass = (s / den[:, None]).sum(0)
    raw = (frequencies * mass).sum()
    return {
        "frequencies": frequencies,
        "mass": mass,
        "raw": raw,
        "loss": raw * coefficient / denominator.clamp(min=1.0),
    }


def _parts(
    s: Tensor, den: Tensor, denominator: Tensor, frequencies: Tensor, d_loss: Tensor, coefficient: float
) -> tuple[Tensor, Tensor]:
    """c [E], and each row's (sum_j c_j s_j) / den^2."""
    weights = d_loss * coefficient / denominator.clamp(min=1.0) * frequencies
    # Divided twice, since the square of a small den is no FP32 number.
    return weights, (weights * s).sum(-1) / den / den
