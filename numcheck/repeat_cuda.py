"""The rungs of the repeat ladder that one CUDA device adds: other work beside, graph replay, other addresses."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from numcheck.errors import RAISED
from numcheck.execute import Run
from numcheck.repeat import Step, Subject, call, climb, skipped

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


def graph_replay(subject: Subject, repeats: int) -> Step:
    """The call captured once in a CUDA graph, then replayed; one that cannot be captured says so and counts no runs."""
    name = "graph replay"
    if subject.device != "cuda":
        return skipped(name, "needs a CUDA device")
    try:
        graph, outputs = _captured(subject)
    except RAISED as error:
        torch.cuda.synchronize()
        return skipped(name, f"cannot be captured: {type(error).__name__}: {str(error).splitlines()[0]}")

    def replay() -> Run:
        for tensor in outputs.values():
            # What a replay does not write again must not pass for its result.
            tensor.fill_(float("nan") if tensor.is_floating_point() else 1)
        graph.replay()
        torch.cuda.synchronize()
        return replace(subject.first, outputs={k: t.clone() for k, t in outputs.items()})

    return climb(name, subject, ((f"replay {k}", replay) for k in range(1, repeats + 1)))


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
