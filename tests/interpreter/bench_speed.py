"""Times the interpreter with and without a session's speed-ups: python -m tests.interpreter.bench_speed"""

# ruff: noqa: E402
from __future__ import annotations

from numcheck import interpreter

interpreter.enable()

import contextlib
import statistics
import time

import torch
from triton.runtime import interpreter as upstream

from numcheck.interpreter import speed
from tests.interpreter import small

ROUNDS = 40
PROGRAMS = 8
PATCH = upstream._patch_lang


@contextlib.contextmanager
def without_memos():
    install, speed.install = speed.install, lambda patches: None
    try:
        with interpreter.session():
            yield
    finally:
        speed.install = install


@contextlib.contextmanager
def patching_each_call():
    with without_memos():
        once, upstream._patch_lang = upstream._patch_lang, PATCH
        try:
            yield
        finally:
            upstream._patch_lang = once


MODES = {
    "plain interpreter": contextlib.nullcontext,
    "session, language patched each call": patching_each_call,
    "session, no memos": without_memos,
    "session": interpreter.session,
    "session, measured": lambda: interpreter.session(measure=True),
    "session, overflow checked": lambda: interpreter.session(check_overflow=True),
}


def main():
    torch.set_num_threads(1)
    n = 128 * PROGRAMS
    x, out = torch.randn(n), torch.zeros(n)
    seconds = {name: [] for name in MODES}
    for _ in range(ROUNDS):
        for name, mode in MODES.items():
            start = time.perf_counter()
            with mode():
                small.with_helper[(PROGRAMS,)](x, out, n, BLOCK=128)
                small.total_atomic[(PROGRAMS,)](x, out, n, BLOCK=128)
            seconds[name].append(time.perf_counter() - start)
    for name, taken in seconds.items():
        ratios = sorted(a / b for a, b in zip(taken, seconds["session"], strict=True))
        low, middle, high = (ratios[k * ROUNDS // 4] for k in (1, 2, 3))
        each = 1e3 * statistics.median(taken) / (2 * PROGRAMS)
        print(f"{name:36s} {each:6.2f} ms a program, {middle:.2f} times a session ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
