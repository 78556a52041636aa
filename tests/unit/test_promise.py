"""What each order promise makes of what was seen: one row a claim."""

from __future__ import annotations

from dataclasses import replace

import pytest

from numcheck.difference import Difference
from numcheck.evidence import Footprint
from numcheck.promise import Witness, decide
from numcheck.repeat import PERMUTED, Step
from numcheck.vacuity import Proof
from numcheck.verdict import Rung, Status, flip_bound

FLIP = Difference(3, 8, (0, 1), "1.5 (0x3fc00000)", "1.25 (0x3fa00000)", "order reversed")
PROVEN = Proof("out", 3, "measured", 33, 4, 2, 2)
TWO = Proof("out", 2, "measured", 32, 4)
BLIND = Proof("out", 3, "measured", 33, 4, 0, 0)
ONE_WRITER = Footprint(writers=1)
ATOMIC = Footprint(addends=3, atomic=True)


def _step(name: str = PERMUTED, runs: int = 4, flips: int = 0) -> Step:
    rung = Rung(name, runs, {"out": ("a", "b") if flips else ("a",)}, {"out": flips})
    return Step(rung, {"out": FLIP} if flips else {})


QUIET, FLIPPED = _step(), _step(flips=2)
STILL = Witness("out", "fixed", PROVEN, None, None, 8, "interpreter", (QUIET,))


@pytest.mark.parametrize(
    ("promise", "proof", "footprint", "step", "status"),
    [
        ("fixed", PROVEN, ATOMIC, QUIET, Status.PASS),
        ("fixed", PROVEN, ATOMIC, FLIPPED, Status.FAIL),
        ("fixed", TWO, ATOMIC, QUIET, Status.VACUOUS),
        ("fixed", BLIND, ATOMIC, QUIET, Status.VACUOUS),
        # A flip that was seen outranks a proof that says that there can be none.
        ("fixed", TWO, ATOMIC, FLIPPED, Status.FAIL),
        ("fixed", BLIND, None, FLIPPED, Status.FAIL),
        ("any", PROVEN, ATOMIC, FLIPPED, Status.ORDER_DEPENDENT),
        ("any", TWO, ATOMIC, FLIPPED, Status.ORDER_DEPENDENT),
        ("any", PROVEN, ATOMIC, QUIET, Status.PASS),
        ("any", BLIND, ATOMIC, QUIET, Status.PASS),
        ("any", TWO, ATOMIC, QUIET, Status.VACUOUS),
        ("single", TWO, ONE_WRITER, QUIET, Status.PASS),
        ("single", PROVEN, ONE_WRITER, FLIPPED, Status.FAIL),
        ("single", PROVEN, ATOMIC, QUIET, Status.FAIL),
        ("single", PROVEN, Footprint(writers=2), QUIET, Status.FAIL),
        ("single", TWO, Footprint(addends=1, atomic=True), QUIET, Status.PASS),
        # Nothing measured: fixed rules.
        ("single", PROVEN, None, QUIET, Status.PASS),
        ("single", TWO, None, QUIET, Status.VACUOUS),
        ("single", TWO, Footprint(), QUIET, Status.VACUOUS),
    ],
)
def test_promise(promise, proof, footprint, step, status) -> None:
    witness = replace(STILL, promise=promise, proof=proof, footprint=footprint, steps=(step,))
    assert decide(witness).status is status


@pytest.mark.parametrize("promise", ["single", "fixed", "any"])
def test_a_race_fails_whatever_was_promised(promise) -> None:
    raced = Footprint(writers=2, races=((7, 0, 2),))
    verdict = decide(replace(STILL, promise=promise, footprint=raced))
    assert verdict.status is Status.FAIL
    assert verdict.where == "out shared by programs 0 and 2 at flat index 7"


@pytest.mark.parametrize("rung", ["same process", "new allocation, dirty memory", "thread counts"])
def test_in_the_interpreter_an_any_output_may_flip_by_order_alone(rung) -> None:
    kept = replace(STILL, promise="any", footprint=ATOMIC, steps=(_step(rung, flips=1),))
    assert decide(kept).status is Status.FAIL
    assert "in the same order" in decide(kept).why
    assert decide(replace(kept, backend="device")).status is Status.ORDER_DEPENDENT


def test_atomics_in_a_workspace_unsettle_a_single_claim() -> None:
    fed = replace(STILL, promise="single", footprint=ONE_WRITER, workspace=Footprint(addends=5, atomic=True), proof=TWO)
    assert decide(fed).status is Status.VACUOUS
    assert "5 addends" in decide(fed).why
    assert decide(replace(fed, proof=PROVEN)).status is Status.PASS


def test_no_elements_are_vacuous() -> None:
    assert decide(replace(STILL, elements=0, footprint=ONE_WRITER, promise="single")).status is Status.VACUOUS


def test_a_failure_tells_count_order_and_first_index() -> None:
    verdict = decide(replace(STILL, steps=(QUIET, FLIPPED)))
    assert verdict.why == "claimed fixed, but 3 of 8 differ in order reversed; 2 of 8 runs flipped"
    assert verdict.where == "out got=1.5 (0x3fc00000) expected=1.25 (0x3fa00000) at (0, 1)"


def test_a_pass_states_its_power_over_all_rungs() -> None:
    verdict = decide(replace(STILL, steps=(QUIET, _step("same process", 2))))
    assert f"0 flips in 6 runs bound the flip rate at {flip_bound(6):.2g}" in verdict.why
    none_seen = decide(replace(STILL, promise="any"))
    assert "none seen in 4 runs" in none_seen.why
