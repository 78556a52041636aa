"""Helpers: processes that judge the Cases of one generated test side by side.

A verdict is a pure function of kernel, Case and profile, so that it does not matter which process gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import NamedTuple

from numcheck import heap, interpreter
from numcheck.case import Case
from numcheck.clock import stopwatch
from numcheck.explore import Nobody, Others
from numcheck.laws import LAWS
from numcheck.laws.law import Law
from numcheck.load import find
from numcheck.profile import Profile
from numcheck.shrink import ignore, judged
from numcheck.spec import KernelSpec
from numcheck.verdict import Verdict

# took(case, seconds by stage): what a Case cost that a helper judged.
Took = Callable[[Case, Mapping[str, float]], None]
Judged = tuple[Verdict, Mapping[str, float]]


class Asked(NamedTuple):
    """What a helper is to judge, in words that another process can load it by."""

    law: str
    origin: str
    spec: str
    case: Case
    profile: Profile
    interpret: bool


@dataclass(frozen=True)
class Helpers:
    """Processes at work on a law and a spec; see `numcheck.explore.Others`."""

    pool: Executor
    law: Law
    spec: KernelSpec
    profile: Profile
    took: Took
    waiting: dict[Case, Future[Judged]] = field(default_factory=dict)

    def ask(self, cases: Iterable[Case]) -> None:
        """Begin to judge `cases`, in their order, each once."""
        for case in cases:
            asked = Asked(self.law.name, self.spec.origin, self.spec.name, case, self.profile, interpreter.active())
            # After a process has died none takes anything.
            with suppress(BrokenProcessPool):
                self.waiting[case] = self.waiting.get(case) or self.pool.submit(_judge, asked)

    def answer(self, case: Case) -> Verdict | None:
        """The verdict on a Case that was asked for, once it is there. None for others, and after a process has died."""
        if case not in self.waiting:
            return None
        try:
            verdict, seconds = self.waiting[case].result()
        except BrokenProcessPool:
            return None
        self.took(case, seconds)
        return verdict


@contextmanager
def helped(law: Law, spec: KernelSpec, profile: Profile, *, count: int, took: Took = ignore) -> Iterator[Others]:
    """`count` processes that judge as long as the context is open; nobody for a law that is not numcheck's own.

    spec: as `origin` has it, since each process loads it from there.
    """
    if not count or law.name not in {known.name for known in LAWS}:
        yield Nobody()
        return
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        try:
            yield Helpers(pool, law, spec, profile, took)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _judge(asked: Asked) -> Judged:
    if asked.interpret:
        interpreter.enable()
    if asked.profile.device == "cuda":
        heap.keep()
    spec = find(asked.origin, asked.spec).on(asked.profile.device)
    law = next(known for known in LAWS if known.name == asked.law)
    with stopwatch() as clock:
        verdict = judged(law, spec, asked.case, asked.profile)
    return verdict, {str(stage): spent for stage, spent in clock.seconds.items()}
