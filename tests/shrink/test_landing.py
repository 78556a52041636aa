"""Where shrinking lands, written out: the smallest Case that still fails, whatever the seed and the way there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from numcheck.case import Case
from numcheck.errors import InvalidCase
from numcheck.explore import Outcome, explore
from numcheck.profile import CI, DEEP, QUICK, Profile
from numcheck.shrink import shrink
from numcheck.spec import KernelSpec
from numcheck.verdict import OutputVerdict, Status, Verdict
from tests.shrink.fakes import SPACE, Watch, spec, where

BLOCK = 1024
PASS = OutputVerdict(Status.PASS)
SIMPLEST = Case.of(S=0, D=1, H=1, facts={"pattern": "spread"})


def three_blocks(case: Case) -> bool:
    return case["S"] >= 1 and -(-case["D"] // BLOCK) >= 3


def flips_by_chance(case: Case) -> bool:
    """Like an order that shows only in some data: three blocks or more, and then for three seeds in four."""
    return three_blocks(case) and case.regime in ("wide", "normal") and int(case.but(offset=0).key, 16) % 4 > 0


def hundred(case: Case) -> bool:
    return case["S"] * case["D"] >= 100


def landing(outcome: Outcome) -> Case:
    assert outcome.shrunk is not None
    return outcome.shrunk


LANDINGS: list[tuple[Callable[[Case], bool], Callable[[Case], bool]]] = [
    (three_blocks, lambda c: c == SIMPLEST.but(S=1, D=2 * BLOCK + 1)),
    (flips_by_chance, lambda c: (c["S"], c["H"], math.ceil(c["D"] / BLOCK), c.regime) == (1, 1, 3, "wide")),
    (hundred, lambda c: not hundred(c.but(S=c["S"] - 1)) and not hundred(c.but(D=c["D"] - 1)) and c["H"] == 1),
    (lambda c: c.dtype == "bf16" and c["D"] % 2 == 0, lambda c: c == SIMPLEST.but(dtype="bf16", D=2)),
    (lambda c: c.offset >= 1 and c["D"] > 30, lambda c: c == SIMPLEST.but(offset=1, D=31)),
    (lambda c: c.layout == "strided" and c["H"] >= 3, lambda c: c == SIMPLEST.but(layout="strided", H=4)),
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("fails", "landed"), LANDINGS, ids=["blocks", "chance", "product", "dtype", "offset", "layout"]
)
def test_a_grid_failure_lands(fails: Callable[[Case], bool], landed: Callable[[Case], bool], seed: int) -> None:
    watch = Watch(where(fails))
    outcome = explore(watch.law(), spec(), CI, seed=seed)
    assert outcome.status == Status.FAIL
    assert outcome.first is not None
    assert fails(outcome.first)
    assert landed(landing(outcome)), outcome.shrunk
    assert outcome.findings[0].verdict.status == Status.FAIL


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("fails", "landed"), LANDINGS, ids=["blocks", "chance", "product", "dtype", "offset", "layout"]
)
def test_a_drawn_failure_lands(fails: Callable[[Case], bool], landed: Callable[[Case], bool], seed: int) -> None:
    watch = Watch(where(fails))
    outcome = explore(watch.law(), spec(replace(SPACE, grid={"D": (1,)})), DEEP, seed=seed)
    assert landed(landing(outcome)), outcome.shrunk


@pytest.mark.parametrize("seed", range(8))
def test_a_failure_only_at_a_far_case_is_found_again(seed: int) -> None:
    """The bounded search starts at the failing Case itself: chance alone would never meet this one again."""
    far = Case.of(S=5, D=2053, H=8, dtype="bf16", layout="strided", offset=3, facts={"pattern": "spread"})
    only = Watch(where(lambda case: case == far))
    assert shrink(only.law(), spec(), far, replace(QUICK, derandomize=bool(seed % 2))) == far
    nearly = Watch(where(lambda case: case["D"] == 2053 and case.offset == 3))
    assert shrink(nearly.law(), spec(), far, QUICK) == SIMPLEST.but(D=2053, offset=3)


def test_shrinking_asks_for_each_case_once_and_for_few() -> None:
    watch = Watch(where(three_blocks))
    shrink(watch.law(), spec(), Case.of(S=5, D=4096, H=8, offset=3, facts={"pattern": "holes"}), CI)
    assert len(watch.asked) == len(set(watch.asked)) <= 100


def test_shrinking_ends_at_its_time_and_says_so() -> None:
    import time

    def slow(case: Case) -> dict[str, Status]:
        time.sleep(0.02)
        return {"out": Status.FAIL if three_blocks(case) else Status.PASS}

    law = Watch(slow).law(cases=lambda spec: (Case.of(S=5, D=4096, H=8, facts={"pattern": "holes"}),))
    grid_of_one = spec(replace(SPACE, grid={"D": (1,)}))
    outcome = explore(law, grid_of_one, replace(CI, shrinking=0.2))
    assert three_blocks(landing(outcome))
    assert outcome.notes == ("shrinking stopped at its 0.2 s; a smaller failing Case may exist",)


def test_an_error_and_a_failure_do_not_slip_into_each_other() -> None:
    def both(case: Case) -> dict[str, Status]:
        if case["D"] >= 2000:
            return {"out": Status.FAIL, "lse": Status.PASS}
        return {"out": Status.PASS, "lse": Status.ERROR if case["D"] >= 200 else Status.PASS}

    outcome = explore(Watch(both).law(), spec(), CI)
    error, failure = outcome.findings
    assert outcome.status == error.verdict.status == Status.ERROR
    assert error.shrunk == SIMPLEST.but(D=200)
    assert failure.verdict.status == Status.FAIL
    assert failure.shrunk == SIMPLEST.but(D=2000)


def other_outputs(words: str) -> Watch:
    """FAIL in out from D 300 on, in lse with `words` from D 3 on."""

    def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
        out = OutputVerdict(Status.FAIL, f"ceiling {case['D']} beyond 1") if case["D"] >= 300 else PASS
        lse = OutputVerdict(Status.FAIL, words) if 3 <= case["D"] < 300 else PASS
        return Verdict(spec.name, "accuracy", "a claim", {"out": out, "lse": lse})

    watch = Watch(where(three_blocks))
    watch.judge = judge  # type: ignore[method-assign]
    return watch


def test_a_failure_does_not_slip_to_another_one_in_another_output() -> None:
    law = other_outputs("race between programs").law()
    assert shrink(law, spec(), Case.of(S=1, D=4096, H=1), CI) == Case.of(S=0, D=300, H=1)


def test_the_same_failure_in_another_output_is_followed() -> None:
    """A law may stop at the first output that shows it."""
    law = other_outputs("ceiling 7 beyond 1").law()
    assert shrink(law, spec(), Case.of(S=1, D=4096, H=1), CI) == Case.of(S=0, D=3, H=1)


def test_fewer_failing_outputs_are_still_the_same_failure() -> None:
    def outputs(case: Case) -> dict[str, Status]:
        out, lse = (Status.FAIL if case["D"] >= least else Status.PASS for least in (30, 300))
        return {"out": out, "lse": lse}

    assert shrink(Watch(outputs).law(), spec(), Case.of(S=1, D=4096, H=1), CI) == Case.of(S=0, D=30, H=1)


def test_a_case_that_holds_has_nothing_to_shrink() -> None:
    with pytest.raises(InvalidCase, match="nothing to shrink"):
        shrink(Watch(where(three_blocks)).law(), spec(), Case.of(S=1, D=31, H=1), CI)
