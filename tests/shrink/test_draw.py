"""What is drawn: legal Cases of the problem's space, small and large sizes alike, the simplest with most teeth."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from numcheck.case import Case
from numcheck.draw import bounded, cases, cost, grid, search
from numcheck.errors import InvalidSpec
from numcheck.profile import CI, QUICK
from tests.shrink.fakes import SPACE, facts, spec


def drawn(strategy: object, count: int = 300, seed: int = 1) -> list[Case]:
    seen: list[Case] = []
    assert search(strategy, lambda case: bool(seen.append(case)), count, seed) is None  # type: ignore[arg-type, func-returns-value]
    return seen


def test_the_simplest_case_has_the_most_teeth() -> None:
    smallest = search(cases(spec()), lambda case: case["D"] >= 1, 10, 0)
    assert smallest == Case.of(S=0, D=1, H=1, dtype="fp32", regime="wide", facts={"pattern": "spread"})


def test_sizes_are_small_and_large_alike() -> None:
    widths = [case["D"] for case in drawn(cases(spec(), largest=4096 * 8 * 64))]
    # Plain uniform draws would put 15 in 16 above 255, logarithmic ones a third.
    assert len(widths) / 5 < sum(d > 255 for d in widths) < len(widths) * 4 / 5
    assert sum(d > 2048 for d in widths) > len(widths) / 50


def test_no_drawn_case_is_larger_than_asked() -> None:
    seen = drawn(cases(spec(), largest=1000))
    assert max(cost(case) for case in seen) <= 1000
    assert max(case["D"] for case in seen) > 500
    assert max(case["S"] for case in seen) > 32


def test_dtypes_are_those_of_the_contract_and_illegal_cases_are_never_drawn() -> None:
    kernel = spec(dtypes=("bf16",), legal=lambda case: "H beyond 4" if case["H"] > 4 else None)
    seen = drawn(cases(kernel))
    assert {case.dtype for case in seen} == {"bf16"}
    assert {case["H"] for case in seen} == {1, 2, 4}
    assert {case.regime for case in seen} == set(SPACE.regimes)


def test_a_contract_without_a_dtype_of_the_space_says_what_to_do() -> None:
    with pytest.raises(InvalidSpec, match=r"takes fp64 data, but fake draws fp32, bf16; give its Contract `dtypes`"):
        cases(spec(dtypes=("fp64",)))


def test_bounded_draws_nothing_beyond_the_bound_and_the_bound_itself() -> None:
    bound = Case.of(
        S=5, D=257, H=4, dtype="bf16", regime="normal", layout="contiguous", offset=2, seed=9, facts={"pattern": "same"}
    )
    seen = drawn(bounded(spec(), bound))
    assert bound in seen
    for case in seen:
        assert case["S"] <= 5
        assert case["D"] <= 257
        assert case["H"] in (1, 2, 4)
        assert case.regime in ("wide", "normal")
        assert case.layout == "contiguous"
        assert case.offset <= 2
        assert case.fact("pattern", "") in ("spread", "same")


def test_bounded_keeps_what_the_space_does_not_know() -> None:
    """A law's own Case may lie outside the space: below its smallest size, with a fact of its own."""
    bound = Case.of(S=1, D=0, H=3, facts={"named": "three"})
    seen = drawn(bounded(spec(), bound), 50)
    assert bound in seen
    assert {case["D"] for case in seen} == {0}
    assert {case["H"] for case in seen} == {1, 2, 3}
    assert {case.facts for case in seen} == {(("named", "three"),)}


def test_bounded_by_an_illegal_case_stays_illegal() -> None:
    kernel = spec(legal=lambda case: "odd D" if case["D"] % 2 else None)
    assert all(case["D"] % 2 for case in drawn(bounded(kernel, Case.of(S=1, D=31, H=1)), 50))


def test_a_small_grid_is_taken_whole_and_cheapest_first() -> None:
    small = replace(SPACE, grid={"H": (8, 1), "D": (257, 31), "S": (1,)})
    got = grid(spec(small), CI)
    assert {(c["H"], c["D"]) for c in got} == {(8, 257), (8, 31), (1, 257), (1, 31)}
    assert [cost(c) for c in got] == sorted(cost(c) for c in got)
    assert {(c.dtype, c.regime, c.fact("pattern", "")) for c in got} == {("fp32", "wide", "spread")}


def test_a_large_grid_is_covered_pairwise_and_legally() -> None:
    kernel = spec(legal=lambda case: "H 8 with D 4096" if (case["H"], case["D"]) == (8, 4096) else None)
    got = grid(kernel, QUICK)
    assert got == grid(kernel, QUICK)
    assert len(got) <= 32
    columns = list(SPACE.grid)
    for a, b in itertools.combinations(columns, 2):
        seen = {(facts(c)[a], facts(c)[b]) for c in got}
        wanted = set(itertools.product(SPACE.grid[a], SPACE.grid[b])) - {(8, 4096)}
        assert wanted <= seen
    assert all(kernel.illegal(c) is None for c in got)


def test_the_grid_leaves_out_dtypes_that_the_spec_does_not_take() -> None:
    assert {c.dtype for c in grid(spec(dtypes=("bf16",)), CI)} == {"bf16"}


def test_search_is_the_same_for_a_seed_and_differs_between_seeds() -> None:
    assert drawn(cases(spec()), 40, 3) == drawn(cases(spec()), 40, 3)
    assert drawn(cases(spec()), 40, 3) != drawn(cases(spec()), 40, 4)


def test_search_ignores_the_hosts_profile() -> None:
    import hypothesis

    before = hypothesis.settings.default
    hypothesis.settings.register_profile("host", max_examples=1, phases=[], derandomize=True)
    hypothesis.settings.load_profile("host")
    try:
        assert len(drawn(cases(spec()), 20)) >= 20
        assert hypothesis.settings.default.max_examples == 1
    finally:
        hypothesis.settings.register_profile("before", before)
        hypothesis.settings.load_profile("before")


def test_a_strategy_is_short_in_words() -> None:
    """Hypothesis writes it out for each test, and warns beyond 30 kB; the spec alone took 45 kB."""
    from kernels import sparse_mla

    for kernel in sparse_mla.SPECS:
        assert len(repr(cases(kernel))) < 10_000
        assert repr(kernel) == f"KernelSpec({kernel.name!r})"
