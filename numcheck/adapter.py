"""Adapter: a differentiable function (an autograd.Function, a module) in numcheck's calling convention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from numcheck.errors import InvalidSpec
from numcheck.oracle import Oracle

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.spec import Kernel


def adapter(fn: Callable[..., Any], oracle: Oracle) -> tuple[Kernel, Kernel]:
    """`(forward, vjp)` for a KernelSpec from `fn(**inputs, **scalars)`, which autograd can differentiate.

    `fn` takes the oracle's inputs and scalars by name, None for an input that the Case does not have, and returns its
    outputs: a dict by name, a tuple in the oracle's order, or one tensor where there is one output. The vjp runs `fn`
    again and differentiates it at the same inputs, so saved outputs that it is given are not read. A gradient that
    autograd does not reach is left out, which `execute` reports.

    Raises InvalidSpec when called, where `fn` returns anything else.
    """

    def forward(**given: Any) -> dict[str, Tensor]:
        return _named(fn(**given), oracle)

    def vjp(**given: Any) -> dict[str, Tensor]:
        import torch

        wanted = {g.name.removeprefix("d_") for g in oracle.gradients}
        call = oracle.for_forward({name: value for name, value in given.items() if name not in oracle.saved})
        leaves = {name: t.detach().requires_grad_() for name, t in call.items() if name in wanted and t is not None}
        with torch.enable_grad():
            outputs = _named(fn(**call | leaves), oracle)
            pairs = [(outputs[c.name.removeprefix("d_")], given[c.name]) for c in oracle.cotangents]
            reached = [(value, cotangent) for value, cotangent in pairs if value is not None and value.requires_grad]
            if not reached:
                return {}
            values, cotangents = zip(*reached, strict=True)
            found = torch.autograd.grad(values, list(leaves.values()), cotangents, allow_unused=True)
        return {"d_" + name: g for name, g in zip(leaves, found, strict=True) if g is not None}

    return forward, vjp


def _named(returned: Any, oracle: Oracle) -> dict[str, Tensor]:
    names = [o.name for o in oracle.outputs]
    if isinstance(returned, Mapping):
        return dict(returned)
    values = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    if len(values) != len(names):
        raise InvalidSpec(f"the function returned {len(values)} value(s); {oracle.name} has {', '.join(names)}")
    return dict(zip(names, values, strict=True))
