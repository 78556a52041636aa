"""One generated test: what runs, in which order, and what it may say."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from numcheck.capability import Device, Unavailable
from numcheck.case import Case
from numcheck.draw import cost, grid
from numcheck.explore import Outcome, explore
from numcheck.gate import Gate
from numcheck.laws.law import Judged, Law
from numcheck.profile import CI, DEEP, QUICK, Profile
from numcheck.spec import KernelSpec
from numcheck.verdict import OutputVerdict, Status, Verdict
from tests.shrink.fakes import SPACE, Says, Watch, spec, where

OWN = Case.of(S=0, D=0, H=1)
OLD = Case.of(S=3, D=77, H=2, facts={"pattern": "holes"})


def never(case: Case) -> bool:
    return False


CLEAN = where(never)


def run(says: Says = CLEAN, profile: Profile = CI, regressions: tuple[Case, ...] = (), **law: Any) -> Outcome:
    return explore(Watch(says).law(**law), spec(), profile, regressions=regressions)


def test_regressions_then_the_laws_own_then_the_grid_then_draws() -> None:
    rows: list[tuple[str, Case]] = []
    started: list[Case] = []
    watch = Watch(where(never))
    outcome = explore(
        watch.law(cases=lambda spec: (OWN,)),
        spec(),
        CI,
        lambda case, verdict, phase: rows.append((phase, case)),
        (OLD,),
        starting=lambda case, phase: started.append(case),
    )
    named = grid(spec(), CI)
    assert rows[:2] == [("regression", OLD), ("grid", OWN)]
    assert [case for _, case in rows[2 : 2 + len(named)]] == list(named)
    assert {phase for phase, _ in rows[2 + len(named) :]} == {"draw"}
    assert started == [case for _, case in rows]
    assert outcome.status == Status.PASS
    assert outcome.judged == len(rows) == len({case for _, case in rows}) == outcome.counts["PASS"]
    # One Case was judged twice: without the slow rungs and with them.
    assert sorted(Counter(watch.asked).values())[-2:] == [1, 2]


def test_a_regression_outside_the_promise_is_left_out() -> None:
    watch = Watch(where(never))
    explore(watch.law(), spec(dtypes=("bf16",)), CI, regressions=(OLD,))
    assert OLD not in watch.asked


def test_the_grid_runs_whole_past_a_failure_and_nothing_more_is_drawn() -> None:
    phases: Counter[str] = Counter()
    law = Watch(where(lambda case: case["D"] >= 31)).law()
    outcome = explore(law, spec(), CI, lambda case, verdict, phase: phases.update([phase]))
    assert phases["grid"] == len(grid(spec(), CI)) == outcome.judged == outcome.counts["FAIL"]
    assert phases["draw"] == 0 < phases["shrink"]


def test_the_same_cases_on_every_run_where_derandomised_and_others_where_not() -> None:
    def asked(profile: Profile) -> list[Case]:
        watch = Watch(where(never))
        explore(watch.law(), spec(), profile)
        return watch.asked

    assert asked(CI) == asked(CI)
    assert asked(QUICK) != asked(QUICK)


@pytest.mark.parametrize("seed", [None, 1])
def test_kernels_of_one_oracle_are_tried_on_the_same_cases_whatever_they_answer(seed: int | None) -> None:
    """Else an edit of what they share shows in one of them alone, and a changed kernel is tried on other Cases."""

    def drawn(name: str, share: float, profile: Profile) -> list[Case]:
        def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
            gate = Gate("ceiling", "out", share / (1 + abs(case["D"] - 1500)), 1.0, "a fake")
            return Verdict(spec.name, "accuracy", "a claim", {"out": OutputVerdict(Status.PASS)}, (gate,))

        seen: list[Case] = []
        kernel = spec(replace(SPACE, grid={"D": (1,)})).but(name=name)
        explore(Law("accuracy", "a fake", judge), kernel, profile, lambda case, v, phase: seen.append(case), seed=seed)
        return seen

    more = replace(CI, examples=100)
    assert drawn("fake.one", 1.0, more) == drawn("fake.two", 1e-3, more)
    # Where draws are steered, what a kernel answers does choose them: the other answers are not too alike to tell.
    steered = replace(more, derandomize=False)
    assert drawn("fake.one", 1.0, steered) != drawn("fake.one", 0.0, steered)


def test_the_seed_is_told_and_repeats_the_draws() -> None:
    outcome = run(profile=QUICK)
    first, second = Watch(where(never)), Watch(where(never))
    for watch in (first, second):
        assert explore(watch.law(), spec(), QUICK, seed=outcome.seed).seed == outcome.seed
    assert first.asked == second.asked


def climbing(watch: Watch) -> list[Case]:
    return [case for case, effort in zip(watch.asked, watch.efforts, strict=True) if effort.slow]


def test_slow_rungs_are_climbed_by_as_many_large_cases_as_the_profile_says() -> None:
    watch = Watch(CLEAN)
    outcome = explore(watch.law(), spec(), replace(CI, slow=2))
    named = sorted(map(cost, grid(spec(), CI)))
    assert len(climbing(watch)) == 2
    assert min(map(cost, climbing(watch))) >= named[len(named) * 3 // 4 - 1] > 0
    assert outcome.judged == len(set(watch.asked))


def test_a_vacuous_case_is_not_worth_the_slow_rungs_where_another_tells_more() -> None:
    watch = Watch(lambda case: {"out": Status.PASS if case["D"] == 2053 else Status.VACUOUS})
    explore(watch.law(), spec(), CI)
    assert [case["D"] for case in climbing(watch)] == [2053]


def test_where_all_are_vacuous_the_largest_climbs() -> None:
    watch = Watch(lambda case: {"out": Status.VACUOUS})
    explore(watch.law(), spec(), CI)
    assert [cost(case) for case in climbing(watch)] == [max(map(cost, grid(spec(), CI)))]


def test_a_failure_of_the_slow_rungs_alone_is_shrunk_with_them() -> None:
    class Slow(Watch):
        def judge(self, spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
            held = super().judge(spec, case, profile)
            fails = profile.slow and case["S"] >= 1 and case["D"] >= 20
            return replace(held, outputs={"out": OutputVerdict(Status.FAIL)}) if fails else held

    outcome = explore(Slow(CLEAN).law(), spec(), CI)
    assert outcome.status == Status.FAIL
    assert outcome.counts["FAIL"] == 1
    assert outcome.shrunk is not None
    assert (outcome.shrunk["S"], outcome.shrunk["D"], outcome.shrunk["H"]) == (1, 20, 1)


def test_drawing_stops_at_its_time_and_the_grid_does_not() -> None:
    def slow(case: Case) -> dict[str, Status]:
        time.sleep(0.01)
        return {"out": Status.PASS}

    outcome = run(slow, replace(CI, seconds=0.05, examples=50))
    assert len(grid(spec(), CI)) < outcome.judged < len(grid(spec(), CI)) + 15
    (note,) = outcome.notes
    assert note.startswith("drawing stopped at its 0.05 s, after ")


def test_the_outputs_that_depended_on_the_order_are_named_once() -> None:
    dependent = {"out": Status.ORDER_DEPENDENT, "lse": Status.PASS}
    assert run(lambda case: dependent).notes == ("ORDER_DEPENDENT, as promised: out",)
    assert run().notes == ()


def test_no_case_at_all_is_an_error() -> None:
    nothing = spec(legal=lambda case: "nothing is legal")
    outcome = explore(Watch(where(never)).law(), nothing, CI)
    assert outcome.status == Status.ERROR
    assert "no Case was judged" in outcome.reason


def test_a_law_of_its_own_cases_draws_none_and_does_not_shrink() -> None:
    outcome = run(where(lambda case: True), cases=lambda spec: (OLD, OWN), drawn=False)
    assert outcome.judged == 2
    assert outcome.first == outcome.shrunk == OWN


def test_a_law_of_its_own_cases_that_has_none_is_an_error() -> None:
    assert run(drawn=False).status == Status.ERROR


def test_an_unavailable_spec_is_one_outcome_with_its_reason() -> None:
    def probe(device: Device) -> Unavailable:
        return Unavailable(f"no sm_90 on {device}", "sm90")

    watch = Watch(where(never))
    outcome = explore(watch.law(), spec().but(capability=probe), CI)
    assert (outcome.status, outcome.reason, outcome.missing[0].needs) == (Status.UNAVAILABLE, "no sm_90 on cpu", "sm90")
    assert watch.asked == []


def test_unavailable_outputs_are_counted_by_reason() -> None:
    outcome = run(lambda case: {"out": Status.PASS, "lse": Status.UNAVAILABLE if case["S"] else Status.PASS})
    (missing,) = outcome.missing
    assert missing.reason == "UNAVAILABLE: as asked"
    assert 0 < missing.cases == outcome.counts["UNAVAILABLE"] < outcome.judged
    assert outcome.status == Status.PASS


def test_what_one_case_proves_an_empty_one_does_not_take_away() -> None:
    assert run(lambda case: {"out": Status.VACUOUS if case["D"] < 100 else Status.PASS}).status == Status.PASS
    assert run(lambda case: {"out": Status.VACUOUS, "lse": Status.PASS}).status == Status.VACUOUS
    assert (
        run(lambda case: {"out": Status.PASS if case["D"] < 100 else Status.ORDER_DEPENDENT}).status
        == Status.ORDER_DEPENDENT
    )


def test_the_pooled_verdict_comes_last_and_can_fail_alone() -> None:
    seen: list[Judged] = []

    def pool(spec: KernelSpec, judged: Judged) -> Verdict:
        seen.append(judged)
        return Verdict(spec.name, "bitwise", "all in all", {"out": OutputVerdict(Status.FAIL, "every Case VACUOUS")})

    outcome = run(pool=pool)
    assert [len(judged) for judged in seen] == [outcome.judged]
    assert outcome.status == Status.FAIL
    assert outcome.findings == ()
    assert outcome.verdict is outcome.pooled


def test_shrinking_adds_nothing_to_what_is_pooled() -> None:
    pooled: list[Judged] = []
    outcome = run(where(lambda case: case["D"] >= 31), pool=lambda spec, judged: pooled.append(judged))
    assert len(pooled[0]) == outcome.judged == len(grid(spec(), CI))


def test_a_law_that_raises_is_an_error_and_shrinks() -> None:
    def raises(case: Case) -> dict[str, Status]:
        if case["D"] > 30:
            raise ZeroDivisionError("by D")
        return {"out": Status.PASS}

    outcome = run(raises)
    assert outcome.status == Status.ERROR
    (finding,) = outcome.findings
    assert finding.shrunk["D"] == 31
    assert "ZeroDivisionError: by D" in finding.verdict.outputs["*"].why


def test_an_interruption_is_not_taken_for_a_verdict() -> None:
    def stop(case: Case) -> dict[str, Status]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(stop)


@pytest.mark.parametrize("seed", range(3))
def test_headroom_steers_the_draws(seed: int) -> None:
    """A gate that comes nearer to its limit as D nears 1500 draws more Cases from there than chance does."""

    def near(steered: bool) -> int:
        def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
            share = 1 / (1 + abs(case["D"] - 1500)) if steered else 0.5
            gate = Gate("ceiling", "out", share, 1.0, "a fake")
            return Verdict(spec.name, "accuracy", "a claim", {"out": OutputVerdict(Status.PASS)}, (gate,))

        seen: set[Case] = set()
        law = Law("accuracy", "a fake", judge)
        explore(law, spec(replace(SPACE, grid={"D": (1,)})), DEEP, lambda case, v, phase: seen.add(case), seed=seed)
        return sum(abs(case["D"] - 1500) < 200 for case in seen)

    assert near(steered=True) > 2 * near(steered=False)
