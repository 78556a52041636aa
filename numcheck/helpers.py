"""Helpers: processes that judge the Cases of one generated test side by side.

A verdict is a pure function of kernel, Case and profile, so that it does not matter which process gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from numcheck import heap, interpreter
from numcheck.case import Case
from numcheck.clock import stopwatch
from numcheck.laws import LAWS
from numcheck.laws.law import Law
from numcheck.load import find
from numcheck.profile import Profile
from numcheck.shrink import Answered, ignore, judged
from numcheck.spec import KernelSpec
from numcheck.verdict import Verdict

# took(case, seconds by stage): what a Case cost that a helper judged.
Took = Callable[[Case, Mapping[str, float]], None]


class Asked(NamedTuple):
    """What a helper is to judge, in words that another process can load it by."""

    law: str
    origin: str
    spec: str
    case: Case
    profile: Profile
    interpret: bool


@contextmanager
def helped(
    law: Law, spec: KernelSpec, profile: Profile, cases: Sequence[Case], *, count: int, took: Took = ignore
) -> Iterator[Answered]:
    """Have `count` processes judge `cases` in their order; yields the function that waits for the verdict on one.

    spec: as `origin` has it, since each process loads it from there. The verdict is None where it is for the caller to
    judge: after a process has died, with the Case that it died of, and for a law that is not numcheck's own.
    """
    if not count or law.name not in {known.name for known in LAWS}:
        yield ignore
        return
    interpret = interpreter.active()
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        asked = {case: Asked(law.name, spec.origin, spec.name, case, profile, interpret) for case in cases}
        waiting: dict[Case, Future[tuple[Verdict, Mapping[str, float]]]] = {
            case: pool.submit(_judge, one) for case, one in asked.items()
        }

        def answer(case: Case) -> Verdict | None:
            if case not in waiting:
                return None
            try:
                verdict, seconds = waiting[case].result()
            except BrokenProcessPool:
                return None
            took(case, seconds)
            return verdict

        try:
            yield answer
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _judge(asked: Asked) -> tuple[Verdict, Mapping[str, float]]:
    if asked.interpret:
        interpreter.enable()
    if asked.profile.device == "cuda":
        heap.keep()
    spec = find(asked.origin, asked.spec).on(asked.profile.device)
    law = next(known for known in LAWS if known.name == asked.law)
    with stopwatch() as clock:
        verdict = judged(law, spec, asked.case, asked.profile)
    return verdict, {str(stage): spent for stage, spent in clock.seconds.items()}
