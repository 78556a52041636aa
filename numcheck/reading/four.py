"""The readings of one Sample together: what a kernel is judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from numcheck.case import Case
from numcheck.clock import timed
from numcheck.contract import Policy
from numcheck.errors import InvalidSpec
from numcheck.oracle import Oracle, Output
from numcheck.reading.derived import autograd
from numcheck.reading.kinds import Radius, Truth
from numcheck.reading.large import Spread
from numcheck.reading.spreading import Emulation, Key, Noise
from numcheck.reading.watch import unnamed

# Jittered emulations behind a flip rate. Flips are rare (2^-16 of 16-bit results), so four suffice to tell none
# from some; the match gate adds the Poisson quantile.
JITTERS = 4
# Seeds of one Sample's noise and jitter draws start this far apart, so that no two draws share one.
STRIDE = 2**20


class Exact(Protocol):
    """What `readings` needs of a Sample."""

    @property
    def case(self) -> Case: ...

    def exact(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Readings:
    """truth, emulation, noise draws, jittered emulations and worst case, each a dict output -> FP64 tensor."""

    truth: dict[str, Tensor]
    emulation: dict[str, Tensor]
    noise: tuple[dict[str, Tensor], ...]
    jitters: tuple[dict[str, Tensor], ...]
    radius: dict[str, Tensor]


@timed("oracle")
def read(
    oracle: Oracle, reading: Any, exact: Mapping[str, Any], saved: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Walk through `oracle` with one reading: its forward outputs, then its gradients, as FP64 tensors.

    exact: what a Sample's `exact` gives: inputs and cotangents (FP64, integers, bools), and scalars. saved: the
    kernel's own saved outputs, upcast exactly; without them the VJP takes the reading's own forward. An oracle without
    a VJP is differentiated by autograd.
    Raises InvalidSpec where the oracle's code returns something else than it declares.
    """
    reading.start()
    given = {name: reading.enter(v) if isinstance(v, Tensor) else v for name, v in exact.items()}
    results = _declared(oracle, "forward", oracle.forward(reading, **oracle.for_forward(given)), oracle.outputs)
    if oracle.gradients:
        kept = {name: reading.enter(t) for name, t in saved.items()} if saved else results
        if oracle.vjp is None:
            gradients = autograd(oracle, reading, exact)
        else:
            gradients = oracle.vjp(reading, **oracle.for_vjp(given, kept))
        results = results | _declared(oracle, "vjp", gradients, oracle.gradients)
    return {name: reading.leave(value) for name, value in results.items()}


@timed("oracle")
def readings(
    oracle: Oracle,
    policy: Policy,
    sample: Exact,
    draws: int,
    saved: Mapping[str, Tensor] | None = None,
    jitters: int = JITTERS,
) -> Readings:
    """All readings of `sample` under `policy`, with `draws` noise draws; the seeds come from the Case's hash.

    An oracle that sums without `read.total` is read all the same, with wider draws: name sums for sharper gates.
    """
    exact, seed = sample.exact(), int(sample.case.key, 16)
    truth = read(oracle, Truth(), exact, saved)
    _shaped(oracle, sample.case, truth)
    shared: dict[Key, Spread] = {}
    if unnamed(oracle, exact):
        # No tree is declared for such a sum, so what the accumulators do to a result is drawn from its worst case.
        bare = read(oracle, Radius(policy.with_rounds({})), exact, saved)
        shared = {("held", name, 0): (None, 2 * radius) for name, radius in bare.items()}
    emulation = read(oracle, Emulation(policy, shared=shared), exact, saved)
    return Readings(
        truth=truth,
        emulation=emulation,
        noise=tuple(read(oracle, Noise(policy, seed + k, shared), exact, saved) for k in range(draws)),
        jitters=tuple(read(oracle, Emulation(policy, seed + STRIDE + k, shared), exact, saved) for k in range(jitters)),
        radius=read(oracle, Radius(policy), exact, saved),
    )


def _declared(oracle: Oracle, part: str, returned: Mapping[str, Any], declared: tuple[Output, ...]) -> dict[str, Any]:
    """What `part` returned, in the declared order; None, or nothing, stands for what the Case does not have."""
    found = {name: value for name, value in returned.items() if value is not None}
    names = [o.name for o in declared]
    if not set(found) <= set(names) or any(o.name not in found for o in declared if not o.optional):
        raise InvalidSpec(
            f"oracle {oracle.name}: {part} returned {', '.join(found) or 'nothing'}, it declares {', '.join(names)}"
        )
    return {name: found[name] for name in names if name in found}


def _shaped(oracle: Oracle, case: Case, truth: Mapping[str, Tensor]) -> None:
    wanted = oracle.results_for(case)
    extra = set(truth) - {o.name for o in wanted}
    if extra:
        raise InvalidSpec(f"oracle {oracle.name}: it returned {', '.join(sorted(extra))}, which {case.line()} lacks")
    for output in wanted:
        if output.name not in truth:
            raise InvalidSpec(f"oracle {oracle.name}: it returned no {output.name} for {case.line()}")
        got, declared = tuple(truth[output.name].shape), output.shape(case)
        if got != declared:
            raise InvalidSpec(f"oracle {oracle.name}: {output.name} has shape {got}, it declares {declared}")
