"""Timing: a law's cases a second and where its time goes; two kernels, interleaved."""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numcheck.case import Case
from numcheck.clock import STAGES, Stage, stopwatch
from numcheck.explore import explore
from numcheck.laws.law import Law
from numcheck.laws.measured import saved_alone
from numcheck.profile import Profile
from numcheck.record import Writer, new_run
from numcheck.sample import sample
from numcheck.spec import KernelSpec
from numcheck.verdict import Verdict

# Resamples behind a bootstrap interval: its 2.5 % ends then rest on 50 resamples each.
RESAMPLES = 2000
# Interleaved pairs below which a ratio is called exploratory: a sign test on 5 cannot reach p < 0.05 two-sided.
FEWEST_PAIRS = 6


@dataclass(frozen=True)
class Speed:
    """Cases a second of one law on one kernel, and its seconds by stage."""

    spec: str
    law: str
    cases: int
    seconds: float
    stages: dict[Stage, float]

    @property
    def outside(self) -> float:
        """Share of the time outside kernel and oracle: the judge's own cost."""
        return 1.0 - (self.stages["kernel"] + self.stages["oracle"]) / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object; seconds, and cases a second."""
        rate = self.cases / self.seconds if self.seconds else math.inf
        return {
            "spec": self.spec,
            "law": self.law,
            "cases": self.cases,
            "seconds": self.seconds,
            "cases_per_second": rate,
            "stages_seconds": dict(self.stages),
            "outside_share": self.outside,
        }


def speed(law: Law, spec: KernelSpec, effort: Profile) -> Speed:
    """Explore `spec` by `law` as a generated test does, records and all, once to warm up and once on the clock.

    What no stage claims (Hypothesis's drawing and the loop around it) counts as "draw".
    """
    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder) / "bench.jsonl", new_run()) as writer:

        def emit(case: Case, verdict: Verdict, phase: str) -> None:
            writer.case(spec.origin, case, verdict, phase)

        # The same seed twice: the second look draws the Cases whose kernels and caches the first has warmed.
        explore(law, spec, effort, emit, seed=0)
        with stopwatch() as clock:
            start = time.perf_counter()
            outcome = explore(law, spec, effort, emit, seed=0)
            seconds = time.perf_counter() - start
    stages = {stage: clock.seconds[stage] for stage in STAGES}
    stages["draw"] += max(0.0, seconds - sum(stages.values()))
    return Speed(spec.name, law.name, outcome.judged, seconds, stages)


@dataclass(frozen=True)
class Ratio:
    """Time of B over time of A, from interleaved pairs, with a 95 % bootstrap interval of the median."""

    a: str
    b: str
    case: Case
    pairs: int
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        label = (
            "" if self.pairs >= FEWEST_PAIRS else f" (exploratory: {self.pairs} pairs, at least {FEWEST_PAIRS} decide)"
        )
        return f"{self.b} / {self.a}: {self.ratio:.3f} [{self.low:.3f}, {self.high:.3f}] over {self.pairs} pairs{label}"

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object."""
        return {
            "a": self.a,
            "b": self.b,
            "case": self.case.to_json(),
            "pairs": self.pairs,
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "decides": self.pairs >= FEWEST_PAIRS,
        }


def against(a: KernelSpec, b: KernelSpec, case: Case, effort: Profile, pairs: int) -> Ratio:
    """Time `a` and `b` on the same bits, A B then B A in turn, so that drift falls on both alike."""
    first, second = (_timer(spec, case, effort) for spec in (a, b))
    first(), second()
    logs = []
    for index in range(pairs):
        if index % 2:
            time_b, time_a = second(), first()
        else:
            time_a, time_b = first(), second()
        logs.append(math.log(time_b / time_a))
    low, high = _interval(logs, case.key)
    return Ratio(a.name, b.name, case, pairs, math.exp(statistics.median(logs)), math.exp(low), math.exp(high))


def _timer(spec: KernelSpec, case: Case, effort: Profile) -> Callable[[], float]:
    """A function that runs the kernel's forward and backward once and returns its seconds."""
    import torch

    tensors = sample(spec.oracle, case, effort.device)
    saved = saved_alone(spec, tensors) or {}

    def once() -> float:
        _wait(effort)
        start = time.perf_counter()
        with torch.no_grad():
            outputs = spec.forward(**spec.oracle.for_forward(tensors.given)) if spec.forward else saved
            if spec.vjp and spec.oracle.gradients_for(case):
                spec.vjp(**spec.oracle.for_vjp(tensors.given, outputs))
        _wait(effort)
        return time.perf_counter() - start

    return once


def _wait(effort: Profile) -> None:
    if effort.device == "cuda":
        import torch

        torch.cuda.synchronize()


def _interval(logs: Sequence[float], key: str) -> tuple[float, float]:
    """95 % bootstrap interval of the median, seeded so that the same figures give the same interval."""
    rng = random.Random(key)
    medians = sorted(statistics.median(rng.choices(logs, k=len(logs))) for _ in range(RESAMPLES))
    edge = int(0.025 * RESAMPLES)
    return medians[edge], medians[-edge - 1]
