"""Patience: how long code under judgement may take, and whose a KeyboardInterrupt is that comes out of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import NoReturn

# Seconds that any Case of a suspect has. The longest honest one takes two; a compiler on a crowded machine takes tens.
PATIENCE = 60.0
# A Case of a suspect also has this many times what the honest spec took for it, so that a slow machine makes nobody
# hang: a mistake that still ends does its loops once more or in smaller steps, and is a few times slower.
SLOWER = 10.0


class OutOfTime(BaseException):
    """What was to end in time did not; no Exception, so that no kernel and no law takes it for its own."""


class Interrupted(Exception):
    """Code under judgement raised KeyboardInterrupt, and nobody had pressed Ctrl-C."""


def patience(honest: float) -> float:
    """Seconds that a suspect has for what took the honest spec `honest` seconds."""
    return max(PATIENCE, SLOWER * honest)


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise OutOfTime inside once the time is up; in a thread, or without alarms, there is no limit.

    Nor is there one for what never comes back to Python, or swallows the OutOfTime: only another process ends that.
    """
    if not _handles() or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> NoReturn:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Raise Interrupted for a KeyboardInterrupt that the code inside made up; one of Ctrl-C stays what it is."""
    pressed: list[int] = []
    with ExitStack() as stack:
        if _handles():
            before = signal.getsignal(signal.SIGINT)

            def note(number: int, frame: FrameType | None) -> None:
                pressed.append(number)
                if callable(before):
                    before(number, frame)

            # Where Ctrl-C is ignored, or handled outside Python, it stays so.
            if callable(before):
                signal.signal(signal.SIGINT, note)
                stack.callback(signal.signal, signal.SIGINT, before)
        try:
            yield
        except KeyboardInterrupt as error:
            if pressed or not _handles():
                raise
            raise Interrupted("KeyboardInterrupt, which nobody had pressed") from error


def _handles() -> bool:
    """Whether this thread may set handlers."""
    return threading.current_thread() is threading.main_thread()
