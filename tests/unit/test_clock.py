"""The stopwatch counts each second once, for the innermost stage."""

from __future__ import annotations

import time

from numcheck.clock import stopwatch, timed

# Long enough to tell apart from the scheduler's noise of about a millisecond.
NAP = 0.02


@timed("oracle")
def inner() -> None:
    time.sleep(NAP)


@timed("judge")
def outer() -> None:
    time.sleep(NAP)
    inner()


def test_a_stage_inside_a_stage_counts_for_the_inner_one_alone() -> None:
    start = time.perf_counter()
    with stopwatch() as clock:
        outer()
    total = time.perf_counter() - start
    assert clock.seconds["oracle"] >= NAP
    assert clock.seconds["judge"] >= NAP
    assert sum(clock.seconds.values()) <= total


def test_nothing_is_counted_outside_a_stopwatch() -> None:
    with stopwatch() as clock:
        pass
    outer()
    assert sum(clock.seconds.values()) == 0
