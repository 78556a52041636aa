"""Repeat: the rungs of the repeat ladder. Each runs one Case again, changes one thing, and compares every bit.

A rung never decides: it tells which hashes came back, how often an output flipped and where first, and leaves it to
the law what a flip means. A rung that cannot run here says why and counts no runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from numcheck import fresh, interpreter
from numcheck.capability import Device
from numcheck.difference import Difference, difference
from numcheck.errors import RAISED
from numcheck.execute import Run, execute
from numcheck.interpreter.pins import pinned
from numcheck.order import Order
from numcheck.sample import Sample
from numcheck.snapshot import reused
from numcheck.spec import KernelSpec
from numcheck.ulp import digest
from numcheck.verdict import ONE_ORDER, Rung

if TYPE_CHECKING:
    from torch import Tensor

# The name of the one rung that changes the order of programs; a flip in any other is no matter of order.
PERMUTED = "permuted order"


@dataclass(frozen=True)
class Subject:
    """What is repeated: a spec on one Sample, its first Run and the hashes of that Run's outputs.

    saved: the outputs that a spec without a forward takes as saved; None where its own forward gives them.
    """

    spec: KernelSpec
    sample: Sample
    device: Device
    saved: Mapping[str, Tensor] | None
    first: Run
    hashes: Mapping[str, str]

    @classmethod
    def of(cls, spec: KernelSpec, sample: Sample, device: Device, saved: Mapping[str, Tensor] | None = None) -> Subject:
        """The Subject after a first Run, measured and checked for integer overflow where the interpreter runs it."""
        interpreted = interpreter.active() and device == "cpu"
        first = execute(spec, sample, device=device, saved=saved, measure=interpreted, check_overflow=interpreted)
        return cls(spec, sample, device, saved, first, {name: digest(t) for name, t in first.outputs.items()})

    def again(self, *, order: Order | None = None, dirty: int | None = None) -> Run:
        """One more Run of the same bits: programs in another order, or fresh memory full of other leftovers."""
        return execute(self.spec, self.sample, device=self.device, order=order, saved=self.saved, dirty=dirty)


@dataclass(frozen=True)
class Step:
    """A climbed rung: its record, each output's first Difference, and the error that ended it, if one did."""

    rung: Rung
    differences: Mapping[str, Difference] = field(default_factory=dict)
    error: str = ""


Repeats = Iterable[tuple[str, Callable[[], Run]]]
Enough = Callable[[Mapping[str, int]], bool]


def _never(flips: Mapping[str, int]) -> bool:
    return False


def skipped(name: str, why: str) -> Step:
    """The Step of a rung that cannot run here."""
    return Step(Rung(name, 0, note=why))


def climb(name: str, subject: Subject, repeats: Repeats, enough: Enough = _never, note: str = "") -> Step:
    """Run `repeats` one after the other against the first Run; `enough`, asked for the flips so far, ends it early."""
    seen = {output: [first] for output, first in subject.hashes.items()}
    flips = dict.fromkeys(subject.hashes, 0)
    differences: dict[str, Difference] = {}
    runs = 0
    for under, repeat in repeats:
        run = repeat()
        if run.error:
            return Step(_rung(name, runs, seen, flips, note), differences, f"{under}: {run.error}")
        runs += 1
        kept = reused(run.outputs, subject.first.outputs)
        if kept:
            return Step(_rung(name, runs, seen, flips, note), differences, f"{under}: {'; '.join(kept)}")
        for output, found in _flipped(subject, run, under):
            flips[output] += 1
            differences.setdefault(output, found)
            hashed = digest(run.outputs[output]) if output in run.outputs else "missing"
            if hashed not in seen[output]:
                seen[output].append(hashed)
        if enough(flips):
            break
    return Step(_rung(name, runs, seen, flips, note), differences)


def _rung(name: str, runs: int, seen: Mapping[str, list[str]], flips: Mapping[str, int], note: str) -> Rung:
    return Rung(name, runs, {k: tuple(v) for k, v in seen.items()}, dict(flips), note)


def _flipped(subject: Subject, run: Run, under: str) -> Iterator[tuple[str, Difference]]:
    for output, expected in subject.first.outputs.items():
        found = difference(run.outputs.get(output), expected, under)
        if found is not None:
            yield output, found


def same_process(subject: Subject, repeats: int) -> Step:
    """The same call again, `repeats` times: state kept between calls, unordered work on a device."""
    return climb("same process", subject, ((f"repeat {k}", subject.again) for k in range(1, repeats + 1)))


def permuted(subject: Subject, orders: Iterable[Order], enough: Enough = _never) -> Step:
    """Programs, and the lanes of one atomic, in other orders. Only the interpreter can choose the order."""
    if subject.first.evidence.backend != "interpreter":
        return skipped(PERMUTED, f"only the interpreter chooses an order; this ran on {subject.first.evidence.backend}")
    tried = tuple(orders)
    if not tried:
        return skipped(PERMUTED, ONE_ORDER)
    return climb(PERMUTED, subject, ((f"order {o}", _ordered(subject, o)) for o in tried), enough)


def _ordered(subject: Subject, order: Order) -> Callable[[], Run]:
    return lambda: subject.again(order=order)


def dirty_memory(subject: Subject, fills: Iterable[int]) -> Step:
    """New tensors, and new allocations inside the call full of other garbage each time: stale memory shows."""
    return climb("new allocation, dirty memory", subject, ((f"garbage {k}", _dirty(subject, k)) for k in fills))


def _dirty(subject: Subject, fill: int) -> Callable[[], Run]:
    return lambda: subject.again(dirty=fill)


def threads(subject: Subject) -> Step:
    """Torch's operators on one, two and all CPU threads; the caller's number is restored."""
    before = torch.get_num_threads()
    counts = sorted({1, 2, os.cpu_count() or 1} - {before})
    note = f"first run on {before}"
    return climb("thread counts", subject, ((f"{n} threads", _threaded(subject, n)) for n in counts), note=note)


def _threaded(subject: Subject, count: int) -> Callable[[], Run]:
    def run() -> Run:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return subject.again()
        finally:
            torch.set_num_threads(before)

    return run


def fresh_process(subject: Subject) -> Step:
    """The same Case in a newly started Python: bits that depend on what ran before, or on a hash seed."""
    name = "fresh process"
    try:
        found = fresh.fresh(subject.spec, subject.sample.case, subject.device, subject.saved)
    except fresh.NotFresh as error:
        return skipped(name, str(error))
    outputs = {output: tensor.to(subject.first.outputs[output].device) for output, tensor in found.outputs.items()}
    run = replace(subject.first, outputs=outputs, error=found.error)
    return climb(name, subject, [("a fresh process", lambda: run)])


def compiled(subject: Subject) -> Step:
    """The spec's callables through torch.compile, for specs that claim the same bits from it."""
    name = "compiled"
    spec = subject.spec
    if not spec.compiled:
        return skipped(name, "the spec does not claim the same bits when compiled")
    if subject.first.evidence.backend == "interpreter":
        return skipped(name, "torch.compile cannot trace an interpreted kernel")
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    step = climb(name, subject, [("torch.compile", lambda: bare(_compiled(spec), subject))])
    if not step.error and graphs["unique_graphs"] == before:
        return skipped(name, "torch.compile built no graph, so nothing was compared")
    return step


def _compiled(spec: KernelSpec) -> KernelSpec:
    def build(function: Callable[..., dict[str, Tensor]] | None) -> Callable[..., dict[str, Tensor]] | None:
        return None if function is None else torch.compile(function, dynamic=False)

    torch._dynamo.reset()
    return spec.but(forward=build(spec.forward), vjp=build(spec.vjp))


def bare(spec: KernelSpec, subject: Subject) -> Run:
    """The spec's callables without guards or dispatch modes, which compilers and graph capture do not see through."""
    try:
        outputs = call(spec, subject)
    except RAISED as error:
        return replace(subject.first, outputs={}, error=f"{type(error).__name__}: {error}")
    return replace(subject.first, outputs=outputs)


def call(spec: KernelSpec, subject: Subject) -> dict[str, Tensor]:
    """Forward outputs, then gradients, on the Sample's own tensors and the first Run's saved outputs, pins in force."""
    with pinned(spec.pins), torch.no_grad():
        oracle, given = spec.oracle, subject.sample.given
        outputs = dict(spec.forward(**oracle.for_forward(given))) if spec.forward else {}
        if spec.vjp and oracle.gradients_for(subject.sample.case):
            outputs.update(spec.vjp(**oracle.for_vjp(given, subject.first.saved)))
    return {name: tensor for name, tensor in outputs.items() if tensor is not None}
