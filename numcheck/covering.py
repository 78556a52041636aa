"""A pairwise covering array: few rows in which every pair of values of two columns appears together."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

# A row is one index into each column.
Row = tuple[int, ...]
Pair = tuple[int, int, int, int]

# Completions of one pair that are tried before it counts as impossible: a rule that forbids this many rows in a
# row forbids the pair in practice, and the search must end.
TRIES = 10_000


def pairwise(widths: Sequence[int], legal: Callable[[Row], bool] = lambda row: True) -> tuple[Row, ...]:
    """Rows that together cover every pair of values which some legal row can hold; greedy and deterministic.

    widths: how many values each column has. legal: whether a whole row may be used. One column or none needs no
    pairs: every single value is covered.
    """
    if len(widths) < 2:
        return tuple(row for row in itertools.product(*(range(w) for w in widths)) if legal(row))
    missing = dict.fromkeys(_pairs(widths))
    rows: list[Row] = []
    while missing:
        pair = next(iter(missing))
        row = _row(pair, widths, missing, legal)
        if row is None:
            del missing[pair]
            continue
        rows.append(row)
        for covered in _covered(row):
            missing.pop(covered, None)
    return tuple(rows)


def _pairs(widths: Sequence[int]) -> Iterator[Pair]:
    for a, b in itertools.combinations(range(len(widths)), 2):
        for i, j in itertools.product(range(widths[a]), range(widths[b])):
            yield a, i, b, j


def _covered(row: Row) -> Iterator[Pair]:
    for a, b in itertools.combinations(range(len(row)), 2):
        yield a, row[a], b, row[b]


def _row(pair: Pair, widths: Sequence[int], missing: dict[Pair, None], legal: Callable[[Row], bool]) -> Row | None:
    """The first legal row that holds `pair`, values that cover most missing pairs tried first."""
    a, i, b, j = pair
    fixed = {a: i, b: j}
    rest = [column for column in range(len(widths)) if column not in fixed]
    for row in itertools.islice(_completions(fixed, rest, widths, missing), TRIES):
        if legal(row):
            return row
    return None


def _completions(
    fixed: dict[int, int], rest: Sequence[int], widths: Sequence[int], missing: dict[Pair, None]
) -> Iterator[Row]:
    if not rest:
        yield tuple(fixed[column] for column in range(len(widths)))
        return
    column, later = rest[0], rest[1:]
    gains = {value: _gain(column, value, fixed, missing) for value in range(widths[column])}
    for value in sorted(gains, key=lambda v: (-gains[v], v)):
        yield from _completions({**fixed, column: value}, later, widths, missing)


def _gain(column: int, value: int, fixed: dict[int, int], missing: dict[Pair, None]) -> int:
    """How many missing pairs `value` in `column` makes with the values fixed so far."""
    pairs = ((c, v, column, value) if c < column else (column, value, c, v) for c, v in fixed.items())
    return sum(pair in missing for pair in pairs)
