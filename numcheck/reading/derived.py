"""A VJP that nobody wrote: autograd of an oracle's forward, and the worst case of computing it.

Without an analytic VJP no sum of a gradient has a name. Its value is FP64 autograd's; its worst case comes from
running the traced backward graph, operator by operator, on Balls, with each sum in the worst order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from numcheck.errors import Refused
from numcheck.oracle import Oracle
from numcheck.reading.ball import Ball
from numcheck.reading.elementary import structural
from numcheck.reading.enclosure import FUNCTIONS, STRUCTURAL
from numcheck.reading.kinds import Radius, Truth
from numcheck.reading.spreading import HELD, Spreading
from numcheck.ulp import unit_roundoff

Gradients = dict[str, Any]
# aten's names for what the Ball calls otherwise.
_RENAMED = {"_unsafe_view": "view", "_softmax": "softmax", "slice": "slice", "alias": "clone", "_to_copy": "clone"}
# aten operators that only move elements, or set them to zero, called through the operator itself.
_MOVING = frozenset({"slice", "select_scatter", "slice_scatter", "constant_pad_nd", "index", "lift_fresh_copy"})


def autograd(oracle: Oracle, reading: Truth, exact: Mapping[str, Any]) -> Gradients:
    """The gradients by autograd, each read at the point of its own name."""
    gradient, tensors = _gradient(oracle, exact)
    values = gradient(*tensors)
    names = _names(oracle, exact)
    if isinstance(reading, Radius):
        balls = _balls(gradient, tensors, unit_roundoff(reading.held))
        return {name: reading.at(name, ball) for name, ball in zip(names, balls, strict=True)}
    if isinstance(reading, Spreading) and not all(("held", name, 0) in reading.shared for name in names):
        for name, ball in zip(names, _balls(gradient, tensors, unit_roundoff(reading.held)), strict=True):
            # No sum is named, so the disturbance in the accumulator's dtype is uniform over its whole worst case.
            reading.shared["held", name, 0] = (None, 2 * HELD * ball.radius)
    return {name: reading.at(name, value) for name, value in zip(names, values, strict=True)}


def _gradient(oracle: Oracle, exact: Mapping[str, Any]) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
    """The gradients as a function of the inputs and cotangents, and those tensors."""
    inputs = [i.name for i in oracle.inputs if i.name in exact]
    roots = [c.name.removeprefix("d_") for c in oracle.cotangents if c.name in exact]
    wanted = [inputs.index(name.removeprefix("d_")) for name in _names(oracle, exact)]
    scalars = {name: value for name, value in exact.items() if not isinstance(value, Tensor)}

    def gradient(*tensors: Tensor) -> tuple[Tensor, ...]:
        given, cotangents = list(tensors[: len(inputs)]), tensors[len(inputs) :]

        def forward(*leaves: Tensor) -> tuple[Tensor, ...]:
            for k, leaf in zip(wanted, leaves, strict=True):
                given[k] = leaf
            outputs = oracle.forward(Truth(), **oracle.for_forward(dict(zip(inputs, given, strict=True)) | scalars))
            return tuple(outputs[r] for r in roots)

        pulled: Any = torch.func.vjp(forward, *[given[k] for k in wanted])
        return tuple(pulled[1](tuple(cotangents)))

    return gradient, [exact[name] for name in (*inputs, *("d_" + r for r in roots))]


def _names(oracle: Oracle, exact: Mapping[str, Any]) -> list[str]:
    """The gradients of the inputs that are there."""
    return [g.name for g in oracle.gradients if g.name.removeprefix("d_") in exact]


def _balls(gradient: Callable[..., tuple[Tensor, ...]], tensors: list[Tensor], unit: float) -> tuple[Ball, ...]:
    from torch._decomp import core_aten_decompositions
    from torch.fx.experimental.proxy_tensor import make_fx

    table: Any = core_aten_decompositions()
    graph = make_fx(torch.func.functionalize(gradient), decomposition_table=table)(*tensors)
    entered = [Ball.exact(t, unit) if t.is_floating_point() else t for t in tensors]
    walk = _walker()(graph)
    walk.extra_traceback = False
    results = walk.run(*entered)
    return tuple(r if isinstance(r, Ball) else Ball.exact(r, unit) for r in results)


def _walker() -> Any:
    from torch.fx import Interpreter

    class Walk(Interpreter):
        """Runs a graph of aten operators, on Balls where they come in."""

        def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not any(isinstance(a, Ball) for a in _flat(args)):
                return super().call_function(target, args, kwargs)
            name = str(target.overloadpacket.__name__)
            if name in _MOVING:
                return _moved(target, args, kwargs)
            name = _RENAMED.get(name, name)
            if name in FUNCTIONS:
                return FUNCTIONS[name](*args, **_kept(kwargs))
            if name in STRUCTURAL:
                return structural(lambda t: getattr(t, name)(*args[1:]), args[0])
            raise Refused(f"autograd's VJP calls {target}, which Ball does not enclose; give the oracle a vjp")

    return Walk


def _moved(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ball:
    """The operator on the values, and on the radii with plain tensors as zeros."""
    balls = [a for a in _flat(args) if isinstance(a, Ball)]
    values = [a.value if isinstance(a, Ball) else a for a in args]
    radii = [a.radius if isinstance(a, Ball) else torch.zeros_like(a) if _floating(a) else a for a in args]
    return Ball(target(*values, **kwargs), target(*radii, **kwargs), max(b.unit for b in balls))


def _floating(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


def _kept(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k not in ("dtype", "layout", "device", "pin_memory", "memory_format")}


def _flat(args: Any) -> list[Any]:
    found: list[Any] = []
    for a in args:
        found += _flat(a) if isinstance(a, tuple | list) else [a]
    return found
