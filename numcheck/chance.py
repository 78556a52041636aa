"""Chances: the few distributions that turn a count or a spread into a limit. Plain floats, no dependency.

Source of the mathematics: the regularised incomplete beta function by its continued fraction (Abramowitz and
Stegun 26.5.8, evaluated by Lentz's method); the binomial and Student's t tails are values of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

# Where the continued fraction stops: 100 times the spacing of FP64, far below any chance that is used as a limit.
CONVERGED = 1e-14
# The fraction converges within sqrt(max(a, b)) terms or so; this covers counts of 10^8.
MOST_TERMS = 20_000


def beta_share(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), for a > 0, b > 0 and 0 <= x <= 1."""
    if not 0.0 <= x <= 1.0 or a <= 0 or b <= 0:
        raise ValueError(f"I_x(a, b) of x={x}, a={a}, b={b}; it takes 0 <= x <= 1 and positive a, b")
    if x in (0.0, 1.0):
        return x
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _fraction(x, a, b) / a
    return 1.0 - math.exp(log_front) * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1)
    d = 1.0 / (d if abs(d) > tiny else tiny)
    result = d
    for m in range(1, MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d = 1.0 + term * d
            d = 1.0 / (d if abs(d) > tiny else tiny)
            c = 1.0 + term / c
            c = c if abs(c) > tiny else tiny
            result *= c * d
        if abs(c * d - 1.0) < CONVERGED:
            return result
    raise ArithmeticError(f"incomplete beta of x={x}, a={a}, b={b} did not converge in {MOST_TERMS} terms")


def binomial_tail(k: int, n: int, p: float) -> float:
    """The chance of at least `k` successes in `n` trials of chance `p`."""
    if k <= 0:
        return 1.0
    if k > n:
        return 0.0
    return beta_share(p, k, n - k + 1)


def clopper_pearson(k: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """The exact interval of a rate that showed `k` successes in `n` trials (Clopper and Pearson 1934)."""
    if n <= 0:
        return 0.0, 1.0
    outside = (1.0 - confidence) / 2
    low = 0.0 if k == 0 else _crossing(lambda p: binomial_tail(k, n, p) - outside)
    high = 1.0 if k == n else _crossing(lambda p: outside - (1.0 - binomial_tail(k + 1, n, p)))
    return low, high


def _crossing(rising: Callable[[float], float]) -> float:
    """Where a rising function of a chance crosses zero, by bisection to the last bit."""
    low, high = 0.0, 1.0
    while True:
        middle = (low + high) / 2
        if middle in (low, high):
            return middle
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)


def student_tail(t: float, degrees: float) -> float:
    """The chance that |T| exceeds `t` for Student's T with `degrees` degrees of freedom."""
    return beta_share(degrees / (degrees + t * t), degrees / 2, 0.5)


@functools.cache
def student_limit(chance: float, degrees: float) -> float:
    """The t that |T| exceeds with that chance."""
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > chance:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if student_tail(middle, degrees) > chance else (low, middle)
    return high


def most_flips(seen: int, runs: int, risk: float) -> int:
    """The most flips of one more run that a right kernel may show, having seen `seen` flips in `runs` runs.

    Given the sum of two Poisson counts of the same rate, one over 1 run and one over `runs`, the first is binomial
    with chance 1/(runs + 1), whatever the rate (Przyborowski and Wilenski 1940). So the limit needs no estimate of
    the rate, and is exact: the chance of more is at most `risk`.
    """
    low, high = 0, 1
    while _more_chance(high, seen, runs) > risk:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if _more_chance(middle, seen, runs) > risk else (low, middle)
    return low


def _more_chance(most: int, seen: int, runs: int) -> float:
    return binomial_tail(most + 1, most + 1 + seen, 1.0 / (runs + 1))
