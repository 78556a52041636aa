"""A child process that ends with this one, however this one ends: by an error, TERM or, on Linux, KILL."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

# What asks a process to end; Ctrl-C reaches a child by itself, and raises KeyboardInterrupt here.
ENDING = (signal.SIGTERM, signal.SIGHUP)
# Seconds for a child to end by itself once it is told to: a pytest closes its records and its workers in one.
GRACE = 10.0
# prctl(PR_SET_PDEATHSIG): Linux then sends the child this signal when its parent is gone, however it went.
PARENT_DEATH = 1


def run(command: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> int:
    """The exit code of `command`, run to its end. Whatever ends the wait for it ends it too."""
    with ended(), subprocess.Popen(command, cwd=cwd, env=env, preexec_fn=_bound()) as process:
        try:
            return process.wait()
        except BaseException:
            process.terminate()
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
            raise


@contextmanager
def ended() -> Iterator[None]:
    """Inside, TERM and HUP raise SystemExit, so that what is open is closed and what is temporary is removed."""
    # Handlers are the main thread's to set.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # What is ignored stays so, as HUP under nohup; inside another `ended` there is nothing left to set.
    found = {number: signal.getsignal(number) for number in ENDING}
    before = {n: handler for n, handler in found.items() if handler not in (_raise, signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    for ending in ENDING:
        signal.signal(ending, signal.SIG_IGN)  # cleaning up is not to be cut short
    raise SystemExit(128 + number)


def _bound() -> Callable[[], None] | None:
    """What a child calls before it becomes the command: its life is bound to this process's."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)

    def bind() -> None:
        libc.prctl(PARENT_DEATH, signal.SIGTERM)

    return bind


def end_with_parent() -> None:
    """End this process, which its parent ends by itself, at once where that is gone; and leave Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL)
