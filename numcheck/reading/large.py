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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from numcheck.contract import Sum
from numcheck.reading.addends import Addends, Product, Scattered, added, spaced
from numcheck.reading.tree import levels, lowest_bit, spread
from numcheck.ulp import format_of, unit_roundoff

# Terms that are made and treated one by one: about 10 ms of one core.
EXACT = 2**18
# Terms made to find how much of the model's variance there is, at a few dozen addresses of a few hundred terms.
SAMPLED = 2**16
# Parts that a chain is cut into, of at least so many terms; partial sums between two cuts are taken in any order.
GROUPS, SHORTEST = 8, 32
# Where more than this share of the sampled addresses round nowhere, exactness is looked for address by address: of
# data that rounds at all, few sums of a few dozen terms round nowhere.
QUIET = 0.25
# Means over a binade of numbers whose logarithm is uniform in it: ulp^2 / 12 in units of (u x)^2, ulp / 2 in u |x|.
NEAREST = 1 / (8 * math.log(2))
TRUNCATED = 1 / (2 * math.log(2))

Spread = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class _Group:
    """Terms of one stretch of a sum, address by address: how many (zeros not counted), their sum and sum of squares.

    count: of a shape that broadcasts to the sum's, since it is often the same for a whole row.
    """

    count: Tensor
    total: Tensor
    squares: Tensor


@dataclass(frozen=True)
class _Weights:
    """What a group's partial sums add up to: before^2 * bb + before * total * bt + total^2 * tt + squares * q.

    And themselves, not squared: before * sb + total * st. Each broadcasts to the sum's shape.
    """

    bb: Tensor
    bt: Tensor
    tt: Tensor
    q: Tensor
    sb: Tensor
    st: Tensor


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
    model = _Model(how, terms.shape, a)
    model.walk(_product_groups(a, b, how), onto)
    flat = spaced(terms.addresses, max(1, SAMPLED // terms.most), a.device)

    def low() -> Tensor:
        return _with_onto(lowest_bit(a, -1).unsqueeze(-1) * lowest_bit(b, -2).unsqueeze(-2), onto)

    return model.spread(flat, spread(terms.at(flat), how), terms, low)


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
    model = _Model(how, shape, terms.terms)
    model.walk(_scatter_groups(terms, how), terms.onto)
    # Rows at random would mostly have few terms, where most of the error is in rows of many.
    columns = spaced(width, max(1, int(math.sqrt(SAMPLED // most))), rows.device)
    busy = torch.argsort(terms.counts, descending=True, stable=True)[: max(1, SAMPLED // (most * columns.numel()))]
    flat = (busy[:, None] * width + columns[None, :]).flatten()

    def low() -> Tensor:
        return _with_onto(_scattered_low(terms), terms.onto)

    return model.spread(flat, spread(terms.at(busy, columns).flatten(0, 1), how), terms, low)


class _Model:
    """Mean and variance by the sums of partial sums and of their squares, address by address."""

    def __init__(self, how: Sum, shape: tuple[int, ...], like: Tensor) -> None:
        self.how = how
        self.squares = like.new_zeros(shape)
        self.sums = like.new_zeros(shape) if how.rounding == "truncate" else None

    def walk(self, groups: Iterator[_Group], onto: Tensor | None) -> None:
        """Add up what every group's partial sums come to, each group after the sum of those before it."""
        before = torch.zeros_like(self.squares) if onto is None else onto.expand(self.squares.shape).clone()
        begun_at: Tensor | bool = onto is not None
        for group in groups:
            w = _weights(self.how, group.count, begun_at)
            self.squares += (before * w.bb).addcmul_(group.total, w.bt).mul_(before)
            self.squares += (group.total * w.tt).mul_(group.total).addcmul_(group.squares, w.q)
            if self.sums is not None:
                self.sums.addcmul_(before, w.sb).addcmul_(group.total, w.st)
            before += group.total
            begun_at = begun_at | (group.count > 0)

    def spread(self, flat: Tensor, exact: Spread, terms: Addends, low: Callable[[], Tensor]) -> Spread:
        """The model's mean and deviation, scaled by what the addresses `flat` show exactly.

        low: the lowest bit of the terms of each address, which is asked for where many of those addresses are exact.
        """
        unit = unit_roundoff(self.how.dtype)
        variance = self.squares.clamp_(min=0.0).mul_(NEAREST * unit**2)
        mean = None if self.sums is None else self.sums * (-TRUNCATED * unit)
        sampled = variance.reshape(-1)[flat]
        found = torch.zeros_like(sampled) if exact[1] is None else exact[1].square()
        if bool(((found == 0) & (sampled > 0)).sum() > QUIET * (sampled > 0).sum()):
            # Every partial sum in any order is a multiple of the terms' lowest bit; below 2^precision of it all are
            # exact.
            sure = terms.size() <= 2.0 ** format_of(self.how.dtype).precision * low()
            variance.masked_fill_(sure, 0.0)
            mean = None if mean is None else mean.masked_fill_(sure, 0.0)
            sampled = variance.reshape(-1)[flat]
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


def _weights(how: Sum, count: Tensor, begun_at: Tensor | bool) -> _Weights:
    """The weights of the partial sums that the adds of a group make, and of its rounded products.

    With n of a group's terms in any order, E[s^2] = n/count * squares + n (n-1) / pairs * (total^2 - squares).
    """
    block = max(1, how.block)
    pairs, some = (count * (count - 1)).clamp(min=1.0), (count > 0).to(count.dtype)
    begun = some * begun_at
    inside, inside_pairs = _inside(block, count)
    if how.tree == "pairwise":
        depth = levels(torch.ceil(count / block))
        extra = inside_pairs + (count * (2 - 2.0 ** (1 - depth)) - depth) / (count - 1).clamp(min=1.0)
        share = inside + depth
        first = torch.zeros_like(count)
        # What comes before joins the whole sum, in one add more.
        bb, bt, tt, sb, st = begun, 2 * begun, begun, begun, share + begun
    else:
        steps = torch.where(count > 0, (count / block).clamp(min=1.0), 0.0)
        size, half = count / steps.clamp(min=1.0), (steps + 1) / 2 * some
        curve = (size**2 * steps * (steps + 1) * (2 * steps + 1) / 6 - size * steps * (steps + 1) / 2) / pairs
        # The first addend onto nothing is no add, but for a fused chain, whose first product rounds.
        first = (some - begun) * float(how.products or block > 1)
        share = inside + half - first * size / count.clamp(min=1.0)
        extra = inside_pairs + curve - first * size * (size - 1) / pairs
        bb, bt, tt, sb, st = steps, 2 * half, torch.zeros_like(count), steps, share
    return _Weights(bb, bt, tt + extra, share - extra + float(how.products), sb, st)


def _inside(block: int, count: Tensor) -> tuple[Tensor, Tensor]:
    """Levels of pairwise sums inside blocks, and over them the sum of (n - 1) / (count - 1), n terms a partial sum."""
    depth, pairs = torch.zeros_like(count), torch.zeros_like(count)
    for level in range(1, math.ceil(math.log2(block)) + 1):
        # Beyond the number of terms there is nothing left to add.
        adds = (count > 2.0 ** (level - 1)).to(count.dtype)
        depth += adds
        pairs += adds * ((min(2**level, block) - 1) / (count - 1).clamp(min=1.0)).clamp(max=1.0)
    return depth, pairs


def _product_groups(a: Tensor, b: Tensor, how: Sum) -> Iterator[_Group]:
    """Stretches of k, blocks kept whole. Zeros are counted row by row and column by column: an upper bound."""
    for part in _stretches(a.shape[-1], how):
        left, right = a[..., part], b[..., part, :]
        rows = (left != 0).sum(-1, dtype=a.dtype).unsqueeze(-1)
        columns = (right != 0).sum(-2, dtype=a.dtype).unsqueeze(-2)
        # Most often one factor has no zeros, and then the other's counts are all there is to know.
        full = bool((columns == left.shape[-1]).all())
        yield _Group(rows if full else torch.minimum(rows, columns), left @ right, left.square() @ right.square())


def _scatter_groups(terms: Scattered, how: Sum) -> Iterator[_Group]:
    shape = (-1, *[1] * (terms.terms.ndim - 1))
    for part in _stretches(terms.index.numel(), how if how.tree == "pairwise" else replace(how, block=0)):
        index, values = terms.index[part], terms.terms[part]
        counts = torch.bincount(index[index >= 0], minlength=terms.height).to(values.dtype).reshape(shape)
        total = added(values, index, terms.height)
        yield _Group(counts, total, added(values.square(), index, terms.height))


def _stretches(length: int, how: Sum) -> list[slice]:
    """`length` terms in at most GROUPS stretches of whole blocks; one for a pairwise tree."""
    if how.tree == "pairwise":
        return [slice(0, length)]
    step = max(SHORTEST, -(-length // GROUPS))
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
