"""Both forwards with the column sums by float atomics: fewer bytes, and bits that depend on the order of arrival."""

from __future__ import annotations

from torch import Tensor

from kernels.balance_loss.arguments import forward_sizes
from kernels.balance_loss.fused import launch_forward
from numcheck.determinism import requested, require

REMEDY = "call the forward of kernels.balance_loss.fused, which folds slots in a fixed order"


def forward_map(
    scores: Tensor, routing_map: Tensor, padding: Tensor | None, denominator: Tensor, *, coefficient: float
) -> dict[str, Tensor]:
    """As `fused.forward_map`; mass, raw and loss depend on the order of arrival.

    Raises NotDeterministic where determinism is requested.
    """
    require("balance_loss_map.triton_atomic", requested(), remedy=REMEDY)
    n = forward_sizes(scores, padding, denominator, coefficient, routing_map=routing_map)
    return launch_forward(n, scores, routing_map, padding, denominator, coefficient, atomic=True)


def forward_topk(
    scores: Tensor, padding: Tensor | None, denominator: Tensor, *, coefficient: float, topk: int
) -> dict[str, Tensor]:
    """As `fused.forward_topk`; mass, raw and loss depend on the order of arrival.

    Raises NotDeterministic where determinism is requested.
    """
    require("balance_loss_topk.triton_atomic", requested(), remedy=REMEDY)
    n = forward_sizes(scores, padding, denominator, coefficient, topk=topk)
    return launch_forward(n, scores, None, padding, denominator, coefficient, topk, atomic=True)
