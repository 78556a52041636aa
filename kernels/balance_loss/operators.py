"""The fused balance losses as torch operators: differentiable, and one node each in a compiled or captured graph.

Importing this registers `numcheck_kernels::balance_loss_map`, `..._topk` and their backwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.balance_loss import fused
from kernels.balance_loss.arguments import forward_sizes

Four = tuple[Tensor, Tensor, Tensor, Tensor]

_TENSORS = "Tensor scores, {}Tensor? padding, Tensor denominator"
_MAP = _TENSORS.format("Tensor routing_map, ")
_OUTPUTS = "(Tensor, Tensor, Tensor, Tensor)"


def balance_loss_map(
    scores: Tensor, routing_map: Tensor, padding: Tensor | None, denominator: Tensor, coefficient: float
) -> Four:
    """(frequencies [E], mass [E], raw [], loss []) of the map objective; only loss is differentiable, and by scores."""
    found: Four = torch.ops.numcheck_kernels.balance_loss_map(scores, routing_map, padding, denominator, coefficient)
    return found


def balance_loss_topk(
    scores: Tensor, padding: Tensor | None, denominator: Tensor, coefficient: float, topk: int
) -> Four:
    """(frequencies [E], mass [E], raw [], loss []) of the top-k objective; only loss is differentiable, by scores."""
    found: Four = torch.ops.numcheck_kernels.balance_loss_topk(scores, padding, denominator, coefficient, topk)
    return found


def _forward_map(scores: Tensor, routing_map: Tensor, padding: Tensor | None, denominator: Tensor, c: float) -> Four:
    outputs = fused.forward_map(scores, routing_map, padding, denominator, coefficient=c)
    return outputs["frequencies"], outputs["mass"], outputs["raw"], outputs["loss"]


def _forward_topk(scores: Tensor, padding: Tensor | None, denominator: Tensor, c: float, topk: int) -> Four:
    outputs = fused.forward_topk(scores, padding, denominator, coefficient=c, topk=topk)
    return outputs["frequencies"], outputs["mass"], outputs["raw"], outputs["loss"]


def _backward(
    scores: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    frequencies: Tensor,
    d_loss: Tensor,
    coefficient: float,
    given: bool,
) -> Tensor:
    n = forward_sizes(scores, padding, denominator, coefficient)
    call = (scores, padding, denominator, frequencies, d_loss, coefficient)
    return fused.launch_backward(n, *call, given=given)["d_scores"]


def _fake_outputs(scores: Tensor, *rest: Any) -> Four:
    E = scores.shape[1]
    sizes: tuple[tuple[Any, ...], ...] = ((E,), (E,), (), ())
    frequencies, mass, raw, loss = (scores.new_empty(size, dtype=torch.float32) for size in sizes)
    return frequencies, mass, raw, loss


def _keep_map(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    scores, _, padding, denominator, coefficient = inputs
    _keep(ctx, scores, padding, denominator, output[0], coefficient)


def _keep_topk(ctx: Any, inputs: tuple[Any, ...], output: Four) -> None:
    scores, padding, denominator, coefficient, _ = inputs
    _keep(ctx, scores, padding, denominator, output[0], coefficient)


def _keep(
    ctx: Any, scores: Tensor, padding: Tensor | None, denominator: Tensor, frequencies: Tensor, coefficient: float
) -> None:
    ctx.set_materialize_grads(False)
    ctx.coefficient = coefficient
    ctx.save_for_backward(scores, padding, denominator, frequencies)


def _d_scores(ctx: Any, gradients: tuple[Tensor | None, ...], given: bool) -> Tensor | None:
    *others, d_loss = gradients
    if any(g is not None for g in others):
        raise RuntimeError("only loss is differentiable; frequencies, mass and raw are detached figures")
    if d_loss is None:
        return None
    scores, padding, denominator, frequencies = ctx.saved_tensors
    call = (scores, padding, denominator, frequencies, d_loss, ctx.coefficient, given)
    found: Tensor = torch.ops.numcheck_kernels.balance_loss_backward(*call)
    return found


def _backward_map(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return _d_scores(ctx, gradients, True), None, None, None, None


def _backward_topk(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return _d_scores(ctx, gradients, False), None, None, None, None


def _register(name: str, schema: str, function: Any, fake: Any, keep: Any = None, backward: Any = None) -> None:
    operator = torch.library.custom_op(f"numcheck_kernels::{name}", function, mutates_args=(), schema=schema)
    operator.register_fake(fake)
    if backward is not None:
        operator.register_autograd(backward, setup_context=keep)


_register(
    "balance_loss_map",
    f"({_MAP}, float coefficient) -> {_OUTPUTS}",
    _forward_map,
    _fake_outputs,
    _keep_map,
    _backward_map,
)
_register(
    "balance_loss_topk",
    f"({_TENSORS.format('')}, float coefficient, int topk) -> {_OUTPUTS}",
    _forward_topk,
    _fake_outputs,
    _keep_topk,
    _backward_topk,
)
_register(
    "balance_loss_backward",
    f"({_TENSORS.format('')}, Tensor frequencies, Tensor d_loss, float coefficient, bool given) -> Tensor",
    _backward,
    lambda scores, *rest: scores.new_empty(scores.shape),
)
