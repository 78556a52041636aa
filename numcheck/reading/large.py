"""Large sums: the spread of a matrix product or a scatter from sums of squares, without ever holding its terms.

The declared tree rounds each partial sum s with variance ulp(s)^2 / 12. Over a binade that is RN * (u s)^2 in the mean,
so the variance needs the sum of the partial sums' squares. For the n terms of a group in any order, which add up to D
and whose squares add up to Q, a partial sum of j of them after an earlier C has in the mean

    E[(C + s_j)^2] = C^2 + 2 C D j/n + Q j/n + (D^2 - Q) j (j - 1) / (n (n - 1)),

exactly (all orders alike), and groups in the declared order keep what the order does on the large scale. How many of
those partial sums round at all (products of 16-bit numbers often do not), a few addresses tell, whose terms are made
and treated by `numcheck.reading.tree.spread`. Sums of fewer than EXACT terms are treated so altogether.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from numcheck.contract import Sum
from numcheck.reading.addends import Product, Scattered, added, spaced
from numcheck.reading.tree import levels, lowest_bit, spread
from numcheck.ulp import format_of, unit_roundoff

# Terms that are made and treated one by one: about 10 ms of one core.
EXACT = 2**18
# Terms made to find how much of the model's variance there is, at a few dozen addresses of a few hundred terms.
SAMPLED = 2**16
# Parts that a chain is cut into; partial sums between two cuts are taken in any order.
GROUPS = 8
# Means over a binade of numbers whose logarithm is uniform in it: ulp^2 / 12 in units of (u x)^2, ulp / 2 in u |x|.
NEAREST = 1 / (8 * math.log(2))
TRUNCATED = 1 / (2 * math.log(2))

Spread = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class _Group:
    """Terms of one stretch of a sum, address by address: how many (zeros not counted), their sum and sum of squares."""

    count: Tensor
    total: Tensor
    squares: Tensor


def product_spread(a: Tensor, b: Tensor, how: Sum, onto: Tensor | None = None) -> Spread:
    """Mean and standard deviation of the error of a @ b added by the declared tree; None where it is zero everywhere.

    tf32 inputs are not counted: they round before the product.
    """
    how, terms = replace(how, dot="ieee"), Product(a, b, onto)
    if how.dtype == "fp64" or terms.addresses * a.shape[-1] == 0:
        return None, None
    if terms.addresses * terms.most <= EXACT:
        every = torch.arange(terms.addresses, device=a.device)
        return _shaped(spread(terms.at(every), how), terms.shape)
    low = lowest_bit(a, -1).unsqueeze(-1) * lowest_bit(b, -2).unsqueeze(-2)
    model = _Model(how, terms.size(), _with_onto(low, onto))
    model.walk(_product_groups(a, b, how), onto)
    flat = spaced(terms.addresses, max(1, SAMPLED // terms.most), a.device)
    return model.spread(flat, spread(terms.at(flat), how))


def scatter_spread(terms: Scattered, how: Sum) -> Spread:
    """Mean and standard deviation of the error of a scatter, each address added by the declared tree of its terms."""
    most = terms.most
    if how.dtype == "fp64" or terms.addresses * terms.index.numel() * most == 0:
        return None, None
    rows = torch.arange(terms.height, device=terms.terms.device)
    width = terms.addresses // max(1, terms.height)
    shape = (terms.height, *terms.terms.shape[1:])
    if terms.addresses * most <= EXACT:
        return _shaped(spread(terms.at(rows, torch.arange(width, device=rows.device)), how), shape)
    model = _Model(how, terms.size(), _with_onto(_scattered_low(terms), terms.onto))
    model.walk(_scatter_groups(terms, how), terms.onto)
    # Rows at random would mostly have few terms, where most of the error is in rows of many.
    columns = spaced(width, max(1, int(math.sqrt(SAMPLED // most))), rows.device)
    busy = torch.argsort(terms.counts, descending=True, stable=True)[: max(1, SAMPLED // (most * columns.numel()))]
    flat = (busy[:, None] * width + columns[None, :]).flatten()
    return model.spread(flat, spread(terms.at(busy, columns).flatten(0, 1), how))


class _Model:
    """Mean and variance by the sums of partial sums and of their squares, address by address."""

    def __init__(self, how: Sum, size: Tensor, low: Tensor) -> None:
        self.how, self.size = how, size
        # Every partial sum in any order is a multiple of the terms' lowest bit; below 2^precision of it all are exact.
        self.sure = size <= 2.0 ** format_of(how.dtype).precision * low
        self.squares = torch.zeros_like(size)
        self.sums = torch.zeros_like(size) if how.rounding == "truncate" else None
        self.products = torch.zeros_like(size) if how.products else None

    def walk(self, groups: Iterator[_Group], onto: Tensor | None) -> None:
        """Add up what every group's partial sums come to, each group after the sum of those before it."""
        before = torch.zeros_like(self.size) if onto is None else onto.expand(self.size.shape).clone()
        begun_at = before != 0
        for group in groups:
            squares, sums = _partials(self.how, group, before, begun_at)
            self.squares += squares
            if self.sums is not None:
                self.sums += sums
            if self.products is not None:
                self.products += group.squares
            before += group.total
            begun_at |= group.count > 0

    def spread(self, flat: Tensor, exact: Spread) -> Spread:
        """The model's mean and deviation, scaled by what the addresses `flat` show exactly."""
        unit = unit_roundoff(self.how.dtype)
        variance = self.squares if self.products is None else self.squares + self.products
        variance = (variance * (NEAREST * unit**2)).masked_fill_(self.sure, 0.0)
        mean = None if self.sums is None else (self.sums * (-TRUNCATED * unit)).masked_fill_(self.sure, 0.0)
        sampled = variance.reshape(-1)[flat]
        found = torch.zeros_like(sampled) if exact[1] is None else exact[1].square()
        share = _ratio(found, sampled, flat.numel())
        if mean is not None:
            foretold = mean.reshape(-1)[flat]
            shown = torch.zeros_like(foretold) if exact[0] is None else exact[0]
            mean *= float((shown * foretold).sum()) / max(float(foretold.square().sum()), 1e-300)
        deviation = variance.mul_(share).masked_fill_(~torch.isfinite(variance), 0.0).sqrt_()
        return _none_if_zero(mean), _none_if_zero(deviation)


def _ratio(found: Tensor, model: Tensor, count: int) -> float:
    """The mean of found / model over sampled addresses that may round.

    Where none of them does, it is as if one address in twice as many did: not seen is not proven.
    """
    may = model > 0
    if not bool(may.any()):
        return 1.0
    return max(float((found[may] / model[may]).mean()), 1 / (2 * count))


def _partials(how: Sum, group: _Group, before: Tensor, begun_at: Tensor) -> tuple[Tensor, Tensor]:
    """Over the partial sums that the adds of a group make: the expected sum of their squares, and of themselves."""
    count, total, squares = group.count, group.total, group.squares
    block = max(1, how.block)
    extra = total.square() - squares
    pairs = (count * (count - 1)).clamp(min=1.0)
    some = count > 0
    inner, inner_sum = _levels(math.ceil(math.log2(block)), float(block), count, squares, extra, total)
    if how.tree == "pairwise":
        depth = levels(torch.ceil(count / block))
        share = (count * (2 - 2.0 ** (1 - depth)) - depth) / (count - 1).clamp(min=1.0)
        outer = depth * squares + share * extra + torch.where(begun_at & some, (before + total).square(), 0.0)
        outer_sum = depth * total + torch.where(begun_at & some, before + total, 0.0)
        return (inner + outer).clamp_(min=0.0), inner_sum + outer_sum
    steps = torch.where(some, (count / block).clamp(min=1.0), 0.0)
    size = count / steps.clamp(min=1.0)
    curve = (size**2 * steps * (steps + 1) * (2 * steps + 1) / 6 - size * steps * (steps + 1) / 2) / pairs
    half = torch.where(some, (steps + 1) / 2, 0.0)
    outer = steps * before.square() + 2 * half * before * total + half * squares + curve * extra
    outer_sum = steps * before + half * total
    if how.products or block > 1:
        # The first addend onto nothing is no add, but for a fused chain, whose first product rounds.
        first = some & ~begun_at
        share = size / count.clamp(min=1.0)
        outer -= torch.where(first, share * squares + size * (size - 1) / pairs * extra, 0.0)
        outer_sum -= torch.where(first, share * total, 0.0)
    return (inner + outer).clamp_(min=0.0), inner_sum + outer_sum


def _levels(
    depth: int, block: float, count: Tensor, squares: Tensor, extra: Tensor, total: Tensor
) -> tuple[Tensor, Tensor]:
    """The same over the levels of pairwise sums inside blocks; blocks longer than the sum are cut to it."""
    found, passed = torch.zeros_like(total), torch.zeros_like(total)
    for level in range(1, depth + 1):
        # Beyond the number of terms there is nothing left to add.
        adds = (count > 2.0 ** (level - 1)).to(total.dtype)
        inside = (min(2.0**level, block) - 1) / (count - 1).clamp(min=1.0)
        found += adds * (squares + inside.clamp(max=1.0) * extra)
        passed += adds
    return found, passed * total


def _product_groups(a: Tensor, b: Tensor, how: Sum) -> Iterator[_Group]:
    """Stretches of k, blocks kept whole. Zeros are counted row by row and column by column: an upper bound."""
    for part in _stretches(a.shape[-1], how):
        left, right = a[..., part], b[..., part, :]
        rows = (left != 0).sum(-1, dtype=a.dtype).unsqueeze(-1)
        count = torch.minimum(rows, (right != 0).sum(-2, dtype=a.dtype).unsqueeze(-2))
        yield _Group(count, left @ right, left.square() @ right.square())


def _scatter_groups(terms: Scattered, how: Sum) -> Iterator[_Group]:
    shape = (-1, *[1] * (terms.terms.ndim - 1))
    for part in _stretches(terms.index.numel(), how if how.tree == "pairwise" else replace(how, block=0)):
        index, values = terms.index[part], terms.terms[part]
        counts = torch.bincount(index[index >= 0], minlength=terms.height).to(values.dtype).reshape(shape)
        total = added(values, index, terms.height)
        yield _Group(counts.expand(total.shape), total, added(values.square(), index, terms.height))


def _stretches(length: int, how: Sum) -> list[slice]:
    """`length` terms in at most GROUPS stretches of whole blocks; one for a pairwise tree."""
    if how.tree == "pairwise":
        return [slice(0, length)]
    step = -(-length // GROUPS)
    step = -(-step // max(1, how.block)) * max(1, how.block)
    return [slice(start, start + step) for start in range(0, length, step)]


def _scattered_low(terms: Scattered) -> Tensor:
    low = lowest_bit(terms.terms.unsqueeze(-1), -1)
    index = torch.where(terms.index < 0, terms.height, terms.index).reshape(-1, *[1] * (low.ndim - 1))
    found = low.new_full((terms.height + 1, *low.shape[1:]), math.inf)
    return found.scatter_reduce(0, index.expand(low.shape), low, "amin")[: terms.height]


def _with_onto(low: Tensor, onto: Tensor | None) -> Tensor:
    return low if onto is None else torch.minimum(low, lowest_bit(onto.unsqueeze(-1), -1))


def _shaped(found: Spread, shape: tuple[int, ...]) -> Spread:
    mean, deviation = found
    return (None if mean is None else mean.reshape(shape)), (None if deviation is None else deviation.reshape(shape))


def _none_if_zero(x: Tensor | None) -> Tensor | None:
    return x if x is not None and bool((x != 0).any()) else None
