"""The kinds of reading: truth, a recording of it, emulation, noise and radius of a declared Policy.

A kind decides what a named point does to its value and how a named sum adds its terms; the oracle's code is the
same for all of them. `enter` and `leave` turn tensors into the kind's numbers and back. Emulation and Noise, which
draw, are in `numcheck.reading.spreading`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numcheck.contract import Policy, Rounding
from numcheck.errors import Refused
from numcheck.reading.addends import Addends, Listed, Product, Scattered, added
from numcheck.reading.ball import OUTWARD, Ball
from numcheck.reading.elementary import ball_of, known
from numcheck.reading.pieces import Pieces
from numcheck.reading.tree import exact_in_any_order, growths, last
from numcheck.ulp import format_of, unit_roundoff

# Point name of a total's single terms.
TERMS = ".terms"

Dims = int | tuple[int, ...]


class Truth:
    """No point rounds, every sum is FP64's."""

    # What the slices of a batch before this one added up to; None where the whole batch is read at once.
    pieces: Pieces | None = None

    def start(self) -> None:
        """Called once before each walk through the oracle, or through the slices of one batch."""

    def enter(self, value: Tensor) -> Any:
        """An input as this reading's number."""
        return value

    def leave(self, value: Any) -> Tensor:
        """A result as a tensor."""
        return value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)

    def at(self, name: str, value: Any) -> Any:
        """The value at the point `name`; that of a partial output rounds when all slices are in."""
        if self.pieces is not None and name in self.pieces.names:
            return self.pieces.whole(name, value)
        return self._at(name, value)

    def total(self, name: str, terms: Any, dim: Dims, *, onto: Any = None, apart: str = "") -> Any:
        """The sum of `terms` over `dim`; see `numcheck.oracle.Reading.total`."""
        onto = self._first(name, onto)
        if onto is None:
            return self._share(name, self._add(name, self._each(name, terms), dim))
        if apart and self._rounding(apart):
            inside = self.at(apart, self._add(apart, self._each(apart, terms), dim))
            return self._share(name, self._add(name, torch.stack([onto, inside]), 0))
        chain = [onto.unsqueeze(-1), self._each(name, merged(terms, dim))]
        return self._share(name, self._add(name, torch.cat(chain, -1), -1))

    def matmul(self, name: str, a: Any, b: Any, *, onto: Any = None) -> Any:
        """a @ b as the sum called `name`; see `numcheck.oracle.Reading.matmul`."""
        if self._rounding(name + TERMS):
            raise Refused(f"the products of matmul {name!r} never exist one by one, so they cannot round; use total")
        if a.ndim < 2 or b.ndim < 2:
            raise Refused(f"matmul {name!r} of {a.ndim} and {b.ndim} axes; give (..., m, k) and (..., k, n)")
        return self._share(name, self._multiply(name, a, b, self._first(name, onto)))

    def scatter(self, name: str, terms: Any, index: Tensor, rows: int, *, onto: Any = None) -> Any:
        """`terms` added into `rows` rows by `index`; see `numcheck.oracle.Reading.scatter`."""
        return self._share(name, self._scatter(name, self._each(name, terms), index, rows, self._first(name, onto)))

    def keep(self, name: str, value: Any) -> None:
        """Add this slice's share of the partial output `name` to those of the slices before it."""
        assert self.pieces is not None
        self.pieces.add(name, value, self._join)

    def settle(self, name: str) -> Any:
        """A partial output after the last slice: the sum of all shares, read at its own point."""
        assert self.pieces is not None
        return self._at(name, self.pieces.before[name])

    def _at(self, name: str, value: Any) -> Any:
        return value

    def _rounding(self, name: str) -> Rounding | None:
        return None

    def _each(self, name: str, terms: Any) -> Any:
        return self.at(name + TERMS, terms) if self._rounding(name + TERMS) else terms

    def _add(self, name: str, terms: Any, dim: Dims) -> Any:
        return terms.sum(dim)

    def _multiply(self, name: str, a: Any, b: Any, onto: Any) -> Any:
        return a @ b if onto is None else a @ b + onto

    def _scatter(self, name: str, terms: Any, index: Tensor, rows: int, onto: Any) -> Any:
        total = added(terms, index, rows)
        return total if onto is None else total + onto

    def _join(self, a: Any, b: Any) -> Any:
        return a + b

    def _before(self, name: str) -> Any:
        """What the slices before this one gave of the partial output `name`; None for any other."""
        return None if self.pieces is None else self.pieces.before.get(name)

    def _first(self, name: str, onto: Any) -> Any:
        """`onto`, which only the first slice adds."""
        return onto if self._before(name) is None else None

    def _share(self, name: str, total: Any) -> Any:
        if self.pieces is not None and name in self.pieces.names:
            self.pieces.share[name] = total
        return total


class Recording(Truth):
    """Truth that keeps each named sum's addends, the first addend of a chain included: `terms[name]`."""

    def __init__(self) -> None:
        self.terms: dict[str, Addends] = {}

    def start(self) -> None:
        self.terms.clear()

    def _add(self, name: str, terms: Any, dim: Dims) -> Any:
        self.terms[name] = Listed(terms, dim)
        return super()._add(name, terms, dim)

    def _multiply(self, name: str, a: Any, b: Any, onto: Any) -> Any:
        self.terms[name] = Product(a, b, onto)
        return super()._multiply(name, a, b, onto)

    def _scatter(self, name: str, terms: Any, index: Tensor, rows: int, onto: Any) -> Any:
        self.terms[name] = Scattered(terms, index, rows, onto)
        return super()._scatter(name, terms, index, rows, onto)


class Declared(Truth):
    """What emulation, noise and radius share: the Policy's rounding points and accumulators."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    @property
    def held(self) -> str:
        """The dtype that values between named points are computed in: that of the default accumulator."""
        return self.policy.sums[""].dtype

    def _rounding(self, name: str) -> Rounding | None:
        """The rounding at `name`; None where it holds all that its accumulator holds, which is no rounding."""
        rounding = self.policy.rounds.get(name)
        if rounding is None:
            return None
        to, accumulator = format_of(rounding.dtype), format_of(self.policy.sum_of(name).dtype)
        wide = to.precision >= accumulator.precision and to.largest >= accumulator.largest
        return None if wide else rounding

    def _flushes(self, name: str) -> bool:
        """Whether what is below the normal range is zero behind the point `name`."""
        rounding = self.policy.rounds.get(name)
        return rounding is not None and rounding.flush


class Radius(Declared):
    """The worst case of every element: (value, radius) numbers through the unchanged code."""

    def enter(self, value: Tensor) -> Any:
        return Ball.exact(value, unit_roundoff(self.held)) if value.is_floating_point() else value

    def leave(self, value: Any) -> Tensor:
        """The radius; a result below the held dtype's normal range may be flushed to zero on the way."""
        ball, normal = ball_of(value), format_of(self.held).normal
        below = (ball.value != 0) & (ball.value.abs() < normal)
        return ball.radius + below * normal

    def settle(self, name: str) -> Any:
        assert self.pieces is not None
        total, (size, count) = self.pieces.before[name], self.pieces.growing[name]
        return self._at(name, self._grown(name, total.value, total.radius, size, count, total.unit))

    def _at(self, name: str, value: Any) -> Any:
        rounding = self._rounding(name)
        if self._flushes(name):
            value = ball_of(value).flushed(format_of(self.held).normal)
        return value if rounding is None else ball_of(value).rounded(rounding)

    def _join(self, a: Any, b: Any) -> Any:
        # The sum's growth counts the adds, those between slices too.
        return Ball(a.value + b.value, a.radius + b.radius, a.unit)

    def _add(self, name: str, terms: Any, dim: Dims) -> Any:
        ball = ball_of(terms)
        count = ball.value.new_tensor(float(term_count(ball, dim)))
        size, how = ball.bound.sum(dim), self.policy.sum_of(name)
        whole = self.pieces is None or name not in self.pieces.names
        if whole and how.dot == "ieee" and not bool(ball.radius.any()):
            # Exact terms whose sum rounds in no order: what is compared with it (a clamp) has one answer.
            size = size.masked_fill(exact_in_any_order(last(ball.value, dim), how), 0.0)
        return self._summed(name, ball.value.sum(dim), ball.radius.sum(dim), size, count, ball.unit)

    def _multiply(self, name: str, a: Any, b: Any, onto: Any) -> Any:
        a, b = ball_of(a), ball_of(b)
        value, size = a.value @ b.value, a.bound @ b.bound
        how = self.policy.sum_of(name)
        radius = size * (unit_roundoff(how.dtype) if how.products else 0.0)
        if not b.sure:
            radius += a.value.abs() @ b.radius
        if not a.sure:
            radius += a.radius @ b.bound
        count = value.new_tensor(float(a.shape[-1]))
        return self._summed(name, *_begun(onto, value, radius, size, count), max(a.unit, b.unit))

    def _scatter(self, name: str, terms: Any, index: Tensor, rows: int, onto: Any) -> Any:
        ball = ball_of(terms)
        value, size = added(ball.value, index, rows), added(ball.bound, index, rows)
        radius = value.new_zeros(()).expand(value.shape) if ball.sure else added(ball.radius, index, rows)
        counts = torch.bincount(index[index >= 0], minlength=rows).to(value.dtype)
        count = counts.reshape(rows, *[1] * (value.ndim - 1))
        return self._summed(name, *_begun(onto, value, radius, size, count), ball.unit)

    def _summed(self, name: str, value: Tensor, radius: Tensor, size: Tensor, count: Tensor, unit: float) -> Ball:
        """The ball of a sum; that of a partial output grows when all of its terms are counted."""
        if self.pieces is not None and name in self.pieces.names:
            self.pieces.grow(name, size, count)
            return Ball(value, radius, unit)
        return self._grown(name, value, radius, size, count, unit)

    def _grown(self, name: str, value: Tensor, radius: Tensor, size: Tensor, count: Tensor, unit: float) -> Ball:
        how = self.policy.sum_of(name)
        grown = growths(how, count)
        # In place where that can be, since sums may be as large as memory allows; an expanded zero cannot.
        radius = radius.clone() if 0 in radius.stride() else radius
        if bool(torch.isfinite(grown).all()):
            radius.addcmul_(size, grown)
        else:
            # No growth, however large, makes anything of terms that are all zero.
            radius += torch.where(size > 0, grown * size, 0.0)
        radius.mul_(OUTWARD)
        if how.flush:
            # An add loses less than the smallest normal number of its term, and as much of what it leaves.
            radius = radius + 2 * how.split * count * format_of(how.dtype).normal
        return Ball(value, radius if bool(torch.isfinite(radius.sum())) else known(value, radius), unit)


def _begun(
    onto: Any, value: Tensor, radius: Tensor, size: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A sum's value, radius, size and count with `onto` as one addend more."""
    if onto is None:
        return value, radius, size, count
    first = ball_of(onto)
    return value + first.value, radius + first.radius, size + first.bound, count + 1


def merged(terms: Any, dim: Dims) -> Any:
    if isinstance(terms, Ball):
        return Ball(last(terms.value, dim), last(terms.radius, dim), terms.unit, terms.sure)
    return last(terms, dim)


def term_count(terms: Any, dim: Dims) -> int:
    count = 1
    for axis in (dim,) if isinstance(dim, int) else dim:
        count *= terms.shape[axis]
    return count
