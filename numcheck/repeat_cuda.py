"""The rungs that one CUDA device adds: other work beside, late inputs on a stream, graph replay, other addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from numcheck.errors import RAISED
from numcheck.execute import Run
from numcheck.repeat import Step, Subject, call, climb, skipped
from numcheck.sample import Sample, sample

if TYPE_CHECKING:
    from torch import Tensor

# A square FP32 product of this size keeps all SMs of a large GPU busy for longer than a small kernel runs.
BUSY_SIZE = 4096
BUSY_PRODUCTS = 8
# The caching allocator hands out multiples of 512 bytes; an odd number of such blocks moves every later address.
SPACER_BYTES = 512 * 1237
# Capture needs lazily built handles and autotuned choices to exist, which a few calls on the capturing stream ensure.
WARM_UPS = 3


def busy_device(subject: Subject, repeats: int) -> Step:
    """The same call while a second stream keeps the device busy: other scheduling of the same programs."""
    name = "other work on the device"
    if subject.device != "cuda":
        return skipped(name, "needs a CUDA device")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    load = torch.ones(BUSY_SIZE, BUSY_SIZE, device="cuda")

    def beside() -> Run:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(BUSY_PRODUCTS):
                torch.mm(load, load)
        run = subject.again()
        torch.cuda.synchronize()
        return run

    return climb(name, subject, ((f"repeat {k} beside a busy stream", beside) for k in range(1, repeats + 1)))


def moved(subject: Subject, repeats: int) -> Step:
    """The same call with its allocations at other addresses."""
    name = "new addresses"
    if subject.device != "cuda":
        return skipped(name, "needs a CUDA device; on a CPU the dirty-memory rung makes new allocations")
    spacers: list[Tensor] = []

    def elsewhere() -> Run:
        torch.cuda.empty_cache()
        spacers.append(torch.empty(SPACER_BYTES * (len(spacers) + 1), dtype=torch.uint8, device="cuda"))
        return subject.again()

    return climb(name, subject, ((f"allocation {k}", elsewhere) for k in range(1, repeats + 1)))


def late_inputs(subject: Subject) -> Step:
    """The call on a stream of its own, where its inputs arrive late, NaN until then, and its outputs are read at once.

    A kernel on another stream, which does not wait for this one, reads what is not there yet or comes too late itself.
    Chance has no part in that, so one run is enough.
    """
    name = "late inputs on a stream"
    if subject.device != "cuda":
        return skipped(name, "needs a CUDA device")
    late = subject.sample.map(lambda _, t: _copied(t))
    load = torch.ones(BUSY_SIZE, BUSY_SIZE, device="cuda")

    def behind() -> Run:
        for tensor in late.tensors.values():
            # Integers stay as they are: an index that is none could take the device down.
            if tensor.is_floating_point():
                tensor.fill_(float("nan"))
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            for _ in range(BUSY_PRODUCTS):
                torch.mm(load, load)
            _fill(late, subject.sample)
            outputs = {k: t.clone() for k, t in call(subject.spec, replace(subject, sample=late)).items()}
        torch.cuda.synchronize()
        return replace(subject.first, outputs=outputs)

    def guarded() -> Run:
        try:
            return behind()
        except RAISED as error:
            torch.cuda.synchronize()
            return replace(subject.first, outputs={}, error=f"{type(error).__name__}: {error}")

    return climb(name, subject, [("inputs that arrive late", guarded)])


def graph_replay(subject: Subject, repeats: int) -> Step:
    """The call captured once in a CUDA graph on another seed's inputs, then replayed on this Case's own.

    So what was decided or read while the graph was captured must hold for whatever its inputs hold later. A call that
    cannot be captured says so and counts no runs.
    """
    name = "graph replay"
    if subject.device != "cuda":
        return skipped(name, "needs a CUDA device")
    static = replace(subject, sample=subject.sample.map(lambda _, t: _copied(t)))
    _fill(static.sample, _other(subject))
    try:
        graph, outputs = _captured(static)
    except RAISED as error:
        torch.cuda.synchronize()
        return skipped(name, f"cannot be captured: {type(error).__name__}: {str(error).splitlines()[0]}")

    def replay() -> Run:
        for tensor in outputs.values():
            # What a replay does not write again must not pass for its result.
            tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
        _fill(static.sample, subject.sample)
        graph.replay()
        torch.cuda.synchronize()
        return replace(subject.first, outputs={k: t.clone() for k, t in outputs.items()})

    return climb(name, subject, ((f"replay {k}", replay) for k in range(1, repeats + 1)))


def _other(subject: Subject) -> Sample:
    """What the same Case draws with another seed; its own where that is not legal, which leaves it its repeats."""
    case = subject.sample.case
    other = case.but(seed=case.seed + 1)
    if subject.spec.illegal(other) is not None:
        return subject.sample
    return sample(subject.spec.oracle, other, device=subject.device)


def _copied(tensor: Tensor) -> Tensor:
    """A copy with the same strides and storage offset, margins and gaps included."""
    whole = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    return whole.clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _fill(static: Sample, values: Sample) -> None:
    """Put the elements of `values` into the tensors of `static`, which stay where they are."""
    for name, tensor in static.tensors.items():
        tensor.copy_(values.tensors[name])


def _captured(subject: Subject) -> tuple[torch.cuda.CUDAGraph, dict[str, Tensor]]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            call(subject.spec, subject)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call(subject.spec, subject)
    return graph, outputs
