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
from numcheck.oracle import Oracle
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

    def exact(self) -> dict[str, Tensor]: ...


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
    oracle: Oracle, reading: Any, exact: Mapping[str, Tensor], saved: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Walk through `oracle` with one reading: its forward outputs, then its gradients, as FP64 tensors.

    exact: inputs and cotangents, FP64. saved: the kernel's own saved outputs, upcast exactly; without them the VJP
    takes the reading's own forward. An oracle without a VJP is differentiated by autograd.
    Raises InvalidSpec where the oracle's code returns something else than it declares.
    """
    reading.start()
    inputs = {i.name: reading.enter(exact[i.name]) for i in oracle.inputs}
    results = dict(_declared(oracle, "forward", oracle.forward(reading, **inputs), [o.name for o in oracle.outputs]))
    if oracle.gradients:
        kept = {name: reading.enter(saved[name]) if saved else results[name] for name in oracle.saved}
        cotangents = {c.name: reading.enter(exact[c.name]) for c in oracle.cotangents}
        names = [g.name for g in oracle.gradients]
        if oracle.vjp is None:
            gradients = autograd(oracle, reading, exact)
        else:
            gradients = oracle.vjp(reading, **inputs, **kept, **cotangents)
        results |= _declared(oracle, "vjp", gradients, names)
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


def _declared(oracle: Oracle, part: str, returned: Mapping[str, Any], names: list[str]) -> Mapping[str, Any]:
    if set(returned) != set(names):
        raise InvalidSpec(
            f"oracle {oracle.name}: {part} returned {', '.join(returned) or 'nothing'}, it declares {', '.join(names)}"
        )
    return {name: returned[name] for name in names}


def _shaped(oracle: Oracle, case: Case, truth: Mapping[str, Tensor]) -> None:
    for output in oracle.results:
        got, declared = tuple(truth[output.name].shape), output.shape(case)
        if got != declared:
            raise InvalidSpec(f"oracle {oracle.name}: {output.name} has shape {got}, it declares {declared}")
