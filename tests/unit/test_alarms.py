"""Counting alarms: a right spec has none, a wrong one is counted, named and replayable."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from torch import Tensor

from numcheck import Case, Unavailable
from numcheck.alarms import BITWISE_SHARE, alarms
from numcheck.clean import LARGE_SIZE, SMALL_SIZE, clean_case
from numcheck.errors import InvalidSpec
from numcheck.laws.accuracy import ACCURACY
from numcheck.profile import QUICK
from numcheck.tally import Beyond
from tests.meta.mhc import mhc


def test_a_right_spec_raises_no_alarm() -> None:
    found = alarms([mhc()], cases=30, large=1, seed=7)
    assert found.held, found
    assert (found.cases, found.large, found.by_spec) == (30, 1, {"right": 31})
    assert {r.gate for r in found.rows} >= {"exact", "ceiling", "match", "band"}
    assert all(r.interval[0] == 0 < r.interval[1] for r in found.rows)
    assert "held" in str(found)
    assert json.loads(json.dumps(found.to_json()))["held"] is True


def test_a_wrong_spec_is_counted_and_its_alarms_replay() -> None:
    wrong = mhc("wrong", truncate=True)
    found = alarms([wrong], cases=8, large=0)
    assert not found.held
    assert any("from ceiling" in c for c in found.complaints)
    assert "wrong" in str(found)
    alarm = found.alarms[0]
    verdict = ACCURACY.judge(wrong, Case.from_json(alarm.case), QUICK)
    assert any((g.kind, g.output, g.value) == (alarm.gate, alarm.output, alarm.value) for g in verdict.gates)


def test_a_kernel_that_raises_is_an_alarm() -> None:
    def forward(**inputs: object) -> dict[str, object]:
        raise ValueError("broken")

    found = alarms([mhc("raises", forward=forward)], cases=2, large=0)
    assert {a.gate for a in found.alarms} == {"error"}
    assert not found.held


def test_a_kernel_that_does_not_repeat_is_a_bitwise_alarm() -> None:
    calls = iter(range(1000))

    def shaky(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: t * (1 + 2.0**-20 * (next(calls) % 2)) for name, t in outputs.items()}

    found = alarms([mhc("shaky", change=shaky)], cases=4 * BITWISE_SHARE, large=0)
    assert any("from bitwise" in c for c in found.complaints)


def test_two_workers_count_what_one_does() -> None:
    one, two = (alarms([mhc()], cases=8, large=0, workers=w) for w in (1, 2))
    assert (one.rows, one.by_spec, one.statuses) == (two.rows, two.by_spec, two.statuses)


def test_specs_that_cannot_run_leave_nothing_to_count() -> None:
    with pytest.raises(InvalidSpec, match="no spec can run here"):
        alarms([mhc(capability=lambda device: Unavailable("no GPU"))], cases=1)


def test_sizes_fill_the_decades() -> None:
    spec, rng = mhc(), random.Random(0)

    def sizes(low: int, high: int) -> list[int]:
        drawn = [clean_case(spec, rng, low, high) for _ in range(300)]
        assert all(c["H"] in (1, 2, 4, 8) for c in drawn)
        return [c["S"] * c["H"] * c["D"] for c in drawn]

    small = sizes(1, SMALL_SIZE)
    assert max(small) <= SMALL_SIZE
    for low, high in ((1, 10), (11, 100), (101, 1000)):
        assert 0.15 < sum(low <= s <= high for s in small) / len(small) < 0.6
    assert max(sizes(SMALL_SIZE, LARGE_SIZE)) > 10 * SMALL_SIZE


def test_more_beyond_than_students_t_foretells_is_a_complaint() -> None:
    fine = Beyond("bias", figures=10_000, beyond=1, foretold=0.24, worst=6.2)
    many = replace(fine, beyond=5)
    found = replace(alarms([mhc()], cases=4, large=0), beyond=(fine,), pooled=1.0, pools={"right out": (1.0, 5000)})
    assert found.held
    assert replace(found, pooled=1.2, pools={"right out": (1.2, 50)}).held
    assert not replace(found, beyond=(many,)).held
    assert not replace(found, pooled=1.2).held
