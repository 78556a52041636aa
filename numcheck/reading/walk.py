"""One walk through an oracle with one reading: forward, then VJP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from numcheck.clock import timed
from numcheck.errors import InvalidSpec
from numcheck.oracle import Oracle, Output
from numcheck.reading.derived import autograd


@timed("oracle")
def read(
    oracle: Oracle,
    reading: Any,
    exact: Mapping[str, Any],
    saved: Mapping[str, Tensor] | None = None,
    device: str = "cpu",
) -> dict[str, Tensor]:
    """Walk through `oracle` with one reading: its forward outputs, then its gradients, as FP64 tensors on the CPU.

    exact: what a Sample's `exact` gives: inputs and cotangents (FP64, integers, bools), and scalars. saved: the
    kernel's own saved outputs, upcast exactly; without them the VJP takes the reading's own forward. An oracle without
    a VJP is differentiated by autograd. device: where to walk, for a reading that keeps nothing of its own
    (`slices.nearest` says where a Sample is read best).
    Raises InvalidSpec where the oracle's code returns something else than it declares.
    """
    reading.start()
    given = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in exact.items()}
    kept = None if saved is None else {name: t.to(device) for name, t in saved.items()}
    return {name: reading.leave(value).cpu() for name, value in walk(oracle, reading, given, kept).items()}


def walk(
    oracle: Oracle,
    reading: Any,
    exact: Mapping[str, Any],
    saved: Mapping[str, Tensor] | None,
    forward: bool = True,
) -> dict[str, Any]:
    """`read` without its start and end: results as the reading's own numbers. forward: False for the VJP alone."""
    given = {name: reading.enter(v) if isinstance(v, Tensor) else v for name, v in exact.items()}
    results: dict[str, Any] = {}
    if forward:
        results = _declared(oracle, "forward", oracle.forward(reading, **oracle.for_forward(given)), oracle.outputs)
    if oracle.gradients:
        kept = {name: reading.enter(t) for name, t in saved.items()} if saved else results
        if oracle.vjp is None:
            gradients = autograd(oracle, reading, exact)
        else:
            gradients = oracle.vjp(reading, **oracle.for_vjp(given, kept))
        results = results | _declared(oracle, "vjp", gradients, oracle.gradients)
    return results


def _declared(oracle: Oracle, part: str, returned: Mapping[str, Any], declared: tuple[Output, ...]) -> dict[str, Any]:
    """What `part` returned, in the declared order; None, or nothing, stands for what the Case does not have."""
    found = {name: value for name, value in returned.items() if value is not None}
    names = [o.name for o in declared]
    if not set(found) <= set(names) or any(o.name not in found for o in declared if not o.optional):
        raise InvalidSpec(
            f"oracle {oracle.name}: {part} returned {', '.join(found) or 'nothing'}, it declares {', '.join(names)}"
        )
    return {name: found[name] for name in names if name in found}
