"""The chances behind the limits, against mpmath and against counting."""

from __future__ import annotations

import math

import mpmath
import pytest

from numcheck.chance import beta_share, binomial_tail, clopper_pearson, most_flips, student_limit, student_tail


@pytest.mark.parametrize(
    ("x", "a", "b"), [(0.3, 2, 5), (1 / 9, 9, 1), (0.999, 100, 0.5), (0.5, 0.001, 0.001), (0.02, 40, 900), (1e-9, 1, 3)]
)
def test_incomplete_beta_agrees_with_mpmath(x: float, a: float, b: float) -> None:
    # Here and below: a continued fraction of FP64 steps keeps some 1e-14; limits need three digits.
    expected = float(mpmath.betainc(a, b, 0, x, regularized=True))
    assert beta_share(x, a, b) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bad", [(-0.1, 1, 1), (1.1, 1, 1), (0.5, 0, 1)])
def test_incomplete_beta_refuses_what_is_no_chance(bad: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="0 <= x <= 1"):
        beta_share(*bad)


def test_binomial_tail_is_the_sum_of_its_terms() -> None:
    n, p = 12, 0.2
    for k in range(n + 2):
        terms = math.fsum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
        assert binomial_tail(k, n, p) == pytest.approx(terms, rel=1e-12)


def test_student_puts_24_in_a_million_beyond_6_at_16_draws() -> None:
    assert student_tail(6.0, 15) == pytest.approx(2.43e-5, rel=0.01)
    # Cauchy, whose tail has a closed form.
    assert student_tail(3.0, 1) == pytest.approx(1 - 2 / math.pi * math.atan(3.0), rel=1e-12)


def test_student_limit_is_the_inverse_of_its_tail() -> None:
    assert student_tail(student_limit(1e-8, 15), 15) == pytest.approx(1e-8, rel=1e-9)
    # Cauchy again.
    assert student_limit(0.01, 1) == pytest.approx(1 / math.tan(math.pi * 0.01 / 2), rel=1e-9)


def test_clopper_pearson_ends_where_the_tails_do() -> None:
    low, high = clopper_pearson(3, 2400)
    assert binomial_tail(3, 2400, low) == pytest.approx(0.025, rel=1e-9)
    assert 1 - binomial_tail(4, 2400, high) == pytest.approx(0.025, rel=1e-9)
    assert clopper_pearson(0, 10_000) == (0.0, pytest.approx(1 - 0.025 ** (1 / 10_000)))
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("seen", [0, 1, 7, 300])
def test_most_flips_is_the_least_count_within_the_risk(seen: int) -> None:
    runs, risk = 8, 1e-8
    most = most_flips(seen, runs, risk)
    chance = [binomial_tail(k + 1, k + 1 + seen, 1 / (runs + 1)) for k in (most - 1, most)]
    assert chance[1] <= risk < chance[0]


def test_most_flips_grows_with_the_rate_and_not_with_the_size() -> None:
    """Row 13 of the false passes: nothing but flips that were seen loosens the limit."""
    assert [most_flips(seen, 8, 1e-8) for seen in (0, 8, 800)] == [8, 13, 166]
