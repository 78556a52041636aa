"""Addends: the terms behind each address of a named sum, kept lazily so that a proof may look at some of them.

A total keeps its terms; a product keeps its two factors and a scatter its terms and index, and makes rows of terms only
for the addresses that are asked for. Everything is FP64, but for the index.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from numcheck.reading.tree import last


class Addends(Protocol):
    """The terms of one named sum, address by address; a value that they are added onto counts as the first."""

    @property
    def most(self) -> int:
        """Terms behind the address that has the most."""

    @property
    def addresses(self) -> int:
        """How many addresses the sum has."""

    def rows(self, limit: int) -> Tensor:
        """The terms of at most `limit` addresses, [addresses, most], in the order of adding; zeros fill a row up."""

    def size(self) -> Tensor:
        """Sum of |terms| of each address, of the sum's shape."""


class Listed(NamedTuple):
    """The terms of a total: every one of them, summed over `dim`."""

    terms: Tensor
    dim: int | tuple[int, ...]

    @property
    def most(self) -> int:
        return math.prod(self.terms.shape[d] for d in self._dims)

    @property
    def addresses(self) -> int:
        dims = {d % self.terms.ndim for d in self._dims}
        return math.prod(size for axis, size in enumerate(self.terms.shape) if axis not in dims)

    def rows(self, limit: int) -> Tensor:
        rows = last(self.terms, self.dim).reshape(self.addresses, self.most)
        return rows[spaced(self.addresses, limit, rows.device)] if self.addresses > limit else rows

    def size(self) -> Tensor:
        return self.terms.abs().sum(self.dim)

    @property
    def _dims(self) -> tuple[int, ...]:
        return (self.dim,) if isinstance(self.dim, int) else self.dim


@dataclass(frozen=True, eq=False)
class Product:
    """The terms of a matrix product a (..., m, k) @ b (..., k, n), onto `onto` (..., m, n) where that is given."""

    a: Tensor
    b: Tensor
    onto: Tensor | None = None

    @property
    def most(self) -> int:
        return self.a.shape[-1] + (self.onto is not None)

    @property
    def addresses(self) -> int:
        return math.prod(self.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The product's shape."""
        return (*self._batch, self.a.shape[-2], self.b.shape[-1])

    def rows(self, limit: int) -> Tensor:
        return self.at(spaced(self.addresses, limit, self.a.device))

    def at(self, flat: Tensor) -> Tensor:
        """The terms at the flat positions `flat` (n,): [n, most]."""
        *batch, row, column = torch.unravel_index(flat, self.shape)
        k = self.a.shape[-1]
        left = self.a.expand(*self._batch, self.a.shape[-2], k)[(*batch, row)]
        right = self.b.mT.expand(*self._batch, self.b.shape[-1], k)[(*batch, column)]
        return begun(None if self.onto is None else self.onto.expand(self.shape).reshape(-1)[flat], left * right)

    def size(self) -> Tensor:
        size = self.a.abs() @ self.b.abs()
        return size if self.onto is None else size + self.onto.abs()

    @property
    def _batch(self) -> tuple[int, ...]:
        shape: torch.Size = torch.broadcast_shapes(self.a.shape[:-2], self.b.shape[:-2])  # type: ignore[no-untyped-call]
        return tuple(shape)


@dataclass(frozen=True, eq=False)
class Scattered:
    """Terms (N, ...) added into (rows, ...) by index (N,), onto `onto` (rows, ...) where that is given.

    A negative index contributes nothing; a row of the result that is listed c times has c terms.
    """

    terms: Tensor
    index: Tensor
    height: int
    onto: Tensor | None = None

    @cached_property
    def counts(self) -> Tensor:
        """Terms of each row of the result, (rows,) int64; `onto` not counted."""
        return torch.bincount(self.index[self.index >= 0], minlength=self.height)

    @property
    def most(self) -> int:
        return (int(self.counts.max()) if self.height else 0) + (self.onto is not None)

    @property
    def addresses(self) -> int:
        return self.height * self._width

    def rows(self, limit: int) -> Tensor:
        """The rows with the most terms first: an address of few is no proof that order matters."""
        picked = torch.argsort(self.counts, descending=True, stable=True)[: max(1, limit)]
        columns = spaced(self._width, max(1, limit // max(1, picked.numel())), self.terms.device)
        return self.at(picked, columns).flatten(0, 1)

    def at(self, picked: Tensor, columns: Tensor) -> Tensor:
        """The terms of some rows and columns (flat positions within a row): [rows, columns, most]."""
        slots = self._slots(picked)
        terms = self.terms.reshape(self.terms.shape[0], self._width)
        taken = terms[slots.clamp(min=0)[:, None, :], columns[None, :, None]]
        taken = torch.where((slots >= 0)[:, None, :], taken, 0.0)
        if self.onto is None:
            return taken
        return begun(self.onto.reshape(self.height, self._width)[picked[:, None], columns[None, :]], taken)

    def size(self) -> Tensor:
        size = added(self.terms.abs(), self.index, self.height)
        return size if self.onto is None else size + self.onto.abs()

    def _slots(self, picked: Tensor) -> Tensor:
        """Positions of the terms of the rows `picked`, in order, [rows, most terms]; -1 fills up."""
        order = torch.argsort(self.index, stable=True)[int((self.index < 0).sum()) :]
        counts = self.counts[picked]
        position = torch.arange(int(counts.max()) if counts.numel() else 0, device=order.device)
        start = (self.counts.cumsum(0) - self.counts)[picked]
        inside = position[None, :] < counts[:, None]
        if not order.numel():
            return torch.full(inside.shape, -1, device=order.device)
        return torch.where(inside, order[torch.where(inside, start[:, None] + position, 0)], -1)

    @property
    def _width(self) -> int:
        return math.prod(self.terms.shape[1:])


@dataclass(frozen=True, eq=False)
class Chain:
    """The terms of one sum over a batch that was read slice by slice, each slice's after those before."""

    links: tuple[Addends, ...]

    @property
    def most(self) -> int:
        return sum(link.most for link in self.links)

    @property
    def addresses(self) -> int:
        return self.links[0].addresses

    def rows(self, limit: int) -> Tensor:
        return torch.cat([link.rows(limit) for link in self.links], -1)

    def size(self) -> Tensor:
        return torch.stack([link.size() for link in self.links]).sum(0)


def chained(links: Sequence[Addends]) -> Addends:
    """The addends of a sum over a batch from those of its slices."""
    if len(links) == 1:
        return links[0]
    scattered = [link for link in links if isinstance(link, Scattered)]
    if len(scattered) < len(links):
        return Chain(tuple(links))
    # Which rows are busy, all slices together say; their terms are in order as one scatter of them all.
    terms, index = (torch.cat([getattr(link, name) for link in scattered]) for name in ("terms", "index"))
    return Scattered(terms, index, scattered[0].height, scattered[0].onto)


def thinned(addends: Addends, columns: int) -> Addends:
    """The same of a scatter with at most so many columns of its terms, spread evenly; other addends as they are."""
    if not isinstance(addends, Scattered):
        return addends
    terms = addends.terms.reshape(addends.terms.shape[0], -1)
    kept = spaced(terms.shape[1], columns, terms.device)
    onto = None if addends.onto is None else addends.onto.reshape(addends.height, -1)[:, kept]
    return Scattered(terms[:, kept], addends.index, addends.height, onto)


def added(terms: Tensor, index: Tensor, rows: int) -> Tensor:
    """terms (N, ...) added into zeros (rows, ...) by index (N,); negative ones are dropped, whatever they hold.

    Raises IndexError where an index is not below `rows`.
    """
    if index.numel() and int(index.max()) >= rows:
        raise IndexError(f"scatter into {rows} rows has the index {int(index.max())}; allowed: 0 to {rows - 1}, or < 0")
    total = terms.new_zeros((rows + 1, *terms.shape[1:]))
    # One row more takes what is dropped, which costs less than a copy of the terms that are kept.
    return total.index_add(0, torch.where(index < 0, rows, index), terms)[:rows]


def begun(onto: Tensor | None, terms: Tensor) -> Tensor:
    """`terms` [..., k] with `onto` [...] before them."""
    return terms if onto is None else torch.cat([onto.unsqueeze(-1), terms], -1)


def spaced(count: int, limit: int, device: torch.device) -> Tensor:
    """At most `limit` of `count` positions, spread evenly, int64."""
    if count <= limit:
        return torch.arange(count, device=device)
    return torch.linspace(0, count - 1, max(1, limit), dtype=torch.float64, device=device).long()
