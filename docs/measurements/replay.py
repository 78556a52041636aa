"""Two calls against each other by graph replay, and rows of JSON: what the measurements of this folder share."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import torch

# A pair is two of these, timed by events; 50 replays of some 20 us make 1 ms, far above an event's resolution.
REPLAYS, PAIRS, WARM, RESAMPLES = 50, 60, 10, 2000


def captured(function: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """`function` as a graph, and its static results."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = function()
    return graph, results


def interleaved(
    a: torch.cuda.CUDAGraph, b: torch.cuda.CUDAGraph, *, replays: int = REPLAYS, pairs: int = PAIRS
) -> list[tuple[float, float]]:
    """Microseconds a replay of `a` and of `b`, in turns that swap, so that drift falls on both alike."""
    for _ in range(WARM):
        timed(a, replays), timed(b, replays)
    found = []
    for k in range(pairs):
        if k % 2:
            second, first = timed(b, replays), timed(a, replays)
        else:
            first, second = timed(a, replays), timed(b, replays)
        found.append((first, second))
    return found


def timed(graph: torch.cuda.CUDAGraph, replays: int = REPLAYS) -> float:
    """Microseconds a replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end) / replays


def summary(pairs: Sequence[tuple[float, float]]) -> Mapping[str, Any]:
    """The median ratio b / a with its 95 % bootstrap interval, the median of `a` in microseconds, and every pair."""
    logs, rng = [math.log(b / a) for a, b in pairs], random.Random(0)
    medians = sorted(statistics.median(rng.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    edge = int(0.025 * RESAMPLES)
    low, middle, high = (math.exp(x) for x in (medians[edge], statistics.median(logs), medians[-edge - 1]))
    return {"ratio": middle, "low": low, "high": high, "us": statistics.median(a for a, _ in pairs), "pairs": pairs}


def line(label: str, found: Mapping[str, Any]) -> str:
    """One line for people."""
    return f"{label}: {found['ratio']:.3f} [{found['low']:.3f}, {found['high']:.3f}], {found['us']:.2f} us"


def writer(file: TextIO) -> Callable[..., None]:
    """write(kind, **row): one line of JSON."""

    def write(kind: str, **row: Any) -> None:
        file.write(json.dumps({"kind": kind, **row}) + "\n")
        file.flush()

    return write
