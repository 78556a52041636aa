"""Where a law's time goes: seconds by stage, counted only inside a `stopwatch`."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Literal, ParamSpec, TypeVar

Stage = Literal["draw", "sample", "kernel", "oracle", "judge", "record"]
STAGES: tuple[Stage, ...] = ("draw", "sample", "kernel", "oracle", "judge", "record")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Clock:
    """Seconds by stage; a stage inside a stage counts for the inner one alone."""

    seconds: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    nested: float = 0.0


_running: ContextVar[Clock | None] = ContextVar("numcheck_clock", default=None)


@contextmanager
def stopwatch() -> Iterator[Clock]:
    """Count the seconds of every `timed` function that is called within."""
    clock = Clock()
    token = _running.set(clock)
    try:
        yield clock
    finally:
        _running.reset(token)


def timed(stage: Stage) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Count a function's own seconds for `stage` of the running stopwatch; free where none runs."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            clock = _running.get()
            if clock is None:
                return function(*args, **kwargs)
            outer, clock.nested = clock.nested, 0.0
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - start
                clock.seconds[stage] += spent - clock.nested
                clock.nested = outer + spent

        return wrapper

    return decorate
