"""The covering array: every pair there can be, in few rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest

from numcheck.covering import Row, pairwise


def pairs(rows: tuple[Row, ...]) -> set[tuple[int, int, int, int]]:
    return {(a, r[a], b, r[b]) for r in rows for a, b in itertools.combinations(range(len(r)), 2)}


def never_both_last(row: Row) -> bool:
    return row[0] != 2 or row[1] != 3


def odd_sum(row: Row) -> bool:
    return sum(row) % 2 == 1


@pytest.mark.parametrize("widths", [(2, 2), (3, 4, 4, 2, 2, 4), (5, 1, 3), (4,) * 8])
@pytest.mark.parametrize("legal", [lambda row: True, never_both_last, odd_sum], ids=["all", "pair", "parity"])
def test_every_pair_that_a_legal_row_can_hold_is_covered(widths: tuple[int, ...], legal: Callable[[Row], bool]) -> None:
    rows = pairwise(widths, legal)
    possible = pairs(tuple(r for r in itertools.product(*map(range, widths)) if legal(r)))
    assert pairs(rows) == possible
    assert all(legal(row) for row in rows)


def test_few_rows_and_the_same_ones_each_time() -> None:
    widths = (3, 4, 4, 2, 2, 4)
    rows = pairwise(widths)
    # No array is smaller than the two widest columns' product; greedy stays within twice that, of 768 rows in all.
    assert 16 <= len(rows) <= 32 < math.prod(widths)
    assert rows == pairwise(widths)


def test_one_column_is_covered_value_by_value() -> None:
    assert pairwise((3,)) == ((0,), (1,), (2,))
    assert pairwise(()) == ((),)


def test_the_check_above_sees_a_lost_row() -> None:
    rows = pairwise((4, 4, 4))
    assert any(pairs(rows) != pairs(rows[:k] + rows[k + 1 :]) for k in range(len(rows)))
