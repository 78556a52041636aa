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
from numcheck.ulp import format_of, ulp, unit_roundoff

# Terms that are made and treated one by one: about 10 ms of one core.
EXACT = 2**18
# Terms made to find how much of the model's variance there is, at a few dozen addresses of a few hundred terms.
SAMPLED = 2**16
# Parts that a chain is cut into, of at least so many terms; partial sums between two cuts are taken in any order.
GROUPS, SHORTEST = 4, 64
# Where more than this share of the sampled addresses round nowhere, exactness is looked for address by address: of
# data that rounds at all, few sums of a few dozen terms round nowhere.
QUIET = 0.25
# Means over a binade of numbers whose logarithm is uniform in it: ulp^2 / 12 in units of (u x)^2, ulp / 2 in u |x|.
NEAREST = 1 / (8 * math.log(2))
TRUNCATED = 1 / (2 * math.log(2))

# Factors with fewer zeros than this leaves have as good as none.
DENSE = 0.99
# Sampled addresses that round, from which on a scale found in one slice of a batch holds for those after it.
SEEN = 16

Spread = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class Scale:
    """What sampled addresses showed of a model: exact variance and exact mean, each over the model's."""

    variance: float
    mean: float


# By the name of a sum: kept from slice to slice of a batch, whose rows are alike.
Scales = dict[str, Scale]


@dataclass(frozen=True)
class _Group:
    """Terms of one stretch of a sum, address by address: how many (zeros not counted), their sum and sum of squares.

    count: of a shape that broadcasts to the sum's, since it is often the same for a whole row; one number on the CPU
    where it is the same everywhere.
    """

    count: Tensor
    total: Tensor
    squares: Tensor


@dataclass(frozen=True)
class _Weights:
    """What a group's partial sums add up to: before^2 * bb + before * total * bt + total^2 * tt + squares * q.

    And themselves, not squared: before * sb + total * st. Each is a number, or broadcasts to the sum's shape.
    """

    bb: Tensor | float
    bt: Tensor | float
    tt: Tensor | float
    q: Tensor | float
    sb: Tensor | float
    st: Tensor | float


def product_spread(
    a: Tensor, b: Tensor, how: Sum, onto: Tensor | None = None, scales: Scales | None = None, name: str = ""
) -> Spread:
    """Mean and standard deviation of the error of a @ b added by the declared tree; None where it is zero everywhere.

    tf32 inputs are not counted: they round before the product. scales: what was found of `name` before.
    """
    how, terms = replace(how, dot="ieee"), Product(a, b, onto)
    if how.dtype == "fp64" or terms.addresses * a.shape[-1] == 0:
        return None, None
    if terms.addresses * terms.most <= EXACT:
        every = torch.arange(terms.addresses, device=a.device)
        return _shaped(spread(terms.at(every), how), terms.shape)
    whole = _in_blocks(how)
    model = _Model(whole, terms.shape, a)
    model.walk(_product_groups(a, b, whole), onto)

    def sampled() -> tuple[Tensor, Spread]:
        flat = spaced(terms.addresses, max(1, SAMPLED // terms.most), a.device)
        return flat, spread(terms.at(flat), how)

    def low() -> Tensor:
        return _with_onto(lowest_bit(a, -1).unsqueeze(-1) * lowest_bit(b, -2).unsqueeze(-2), onto)

    return model.spread(sampled, terms, low, scales, name)


def scatter_spread(terms: Scattered, how: Sum, scales: Scales | None = None, name: str = "") -> Spread:
    """Mean and standard deviation of the error of a scatter, each address added by the declared tree of its terms."""
    most = terms.most
    if how.dtype == "fp64" or terms.addresses * terms.index.numel() * most == 0:
        return None, None
    rows = torch.arange(terms.height, device=terms.terms.device)
    width = terms.addresses // max(1, terms.height)
    shape = (terms.height, *terms.terms.shape[1:])
    if terms.addresses * most <= EXACT:
        return _shaped(spread(terms.at(rows, torch.arange(width, device=rows.device)), how), shape)
    whole = _in_blocks(how)
    model = _Model(whole, shape, terms.terms)
    model.walk(_scatter_groups(terms, whole), terms.onto)

    def sampled() -> tuple[Tensor, Spread]:
        # Rows at random would mostly have few terms, where most of the error is in rows of many.
        columns = spaced(width, max(1, int(math.sqrt(SAMPLED // most))), rows.device)
        busy = torch.argsort(terms.counts, descending=True, stable=True)[: max(1, SAMPLED // (most * columns.numel()))]
        flat = (busy[:, None] * width + columns[None, :]).flatten()
        return flat, spread(terms.at(busy, columns).flatten(0, 1), how)

    def low() -> Tensor:
        return _with_onto(_scattered_low(terms), terms.onto)

    return model.spread(sampled, terms, low, scales, name)


def _in_blocks(how: Sum) -> Sum:
    """Aligned terms as blocks of a chain: what their cuts come to, sampled addresses tell."""
    return replace(how, block=how.aligned, aligned=0) if how.aligned else how


class _Model:
    """Mean and variance by the sums of partial sums and of their squares, address by address."""

    def __init__(self, how: Sum, shape: tuple[int, ...], like: Tensor) -> None:
        self.how = how
        self.squares = like.new_zeros(shape)
        self.sums = like.new_zeros(shape) if how.rounding != "nearest" else None

    def walk(self, groups: Iterator[_Group], onto: Tensor | None) -> None:
        """Add up what every group's partial sums come to, each group after the sum of those before it."""
        before = None if onto is None else onto.expand(self.squares.shape).clone()
        begun_at: Tensor | bool = onto is not None
        for group in groups:
            w = _weights(self.how, group.count, begun_at)
            if before is not None:
                self.squares += _plus(before * w.bb, group.total, w.bt).mul_(before)
            self.squares += _plus((group.total * w.tt).mul_(group.total), group.squares, w.q)
            if self.sums is not None:
                _plus(self.sums, group.total, w.st)
                self.sums += 0.0 if before is None else before * w.sb
            before = group.total if before is None else before.add_(group.total)
            begun_at = begun_at | (group.count > 0)

    def spread(
        self,
        sampled: Callable[[], tuple[Tensor, Spread]],
        terms: Addends,
        low: Callable[[], Tensor],
        scales: Scales | None,
        name: str,
    ) -> Spread:
        """The model's mean and deviation, scaled by what some addresses show exactly.

        sampled: some addresses, and their exact spread. low: the lowest bit of the terms of each address, which is
        asked for where many of those addresses are exact. scales: what is already known of `name`, and goes in.
        """
        unit = unit_roundoff(self.how.dtype)
        variance = self.squares.clamp_(min=0.0).mul_(NEAREST * unit**2)
        if self.how.tree == "any":
            # As for written-out terms: where the order is unknown, at least one rounding of the largest sum.
            floor = ulp(terms.size(), self.how.dtype).square_().mul_(1 / 12)
            variance = torch.where(variance > 0, torch.maximum(variance, floor), variance)
        mean = None if self.sums is None else self.sums * (-TRUNCATED * unit)
        scale = None if scales is None else scales.get(name)
        if scale is None:
            flat, exact = sampled()
            if _quiet(variance, flat, exact):
                # Every partial sum in any order is a multiple of the terms' lowest bit, and exact up to 2^precision
                # of it.
                sure = terms.size() <= 2.0 ** format_of(self.how.dtype).precision * low()
                variance.masked_fill_(sure, 0.0)
                mean = None if mean is None else mean.masked_fill_(sure, 0.0)
            elif scales is not None and int((variance.reshape(-1)[flat] > 0).sum()) >= SEEN:
                scales[name] = _scale(variance, mean, flat, exact)
            scale = _scale(variance, mean, flat, exact)
        if mean is not None:
            mean *= scale.mean
        # A sum of what is not finite has no spread: it is what it is.
        deviation = variance.mul_(scale.variance).nan_to_num_(0.0, 0.0, 0.0).sqrt_()
        return _none_if_zero(mean), _none_if_zero(deviation)


def _plus(into: Tensor, x: Tensor, weight: Tensor | float) -> Tensor:
    """`into` with x * weight added in place."""
    return into.add_(x, alpha=weight) if isinstance(weight, float) else into.addcmul_(x, weight)


def _shown(exact: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if exact is None else exact


def _quiet(variance: Tensor, flat: Tensor, exact: Spread) -> bool:
    """Whether many of the sampled addresses that might round do not."""
    model = variance.reshape(-1)[flat]
    found, may = _shown(exact[1], model), model > 0
    return bool((may & (found == 0)).sum() > QUIET * may.sum())


def _scale(variance: Tensor, mean: Tensor | None, flat: Tensor, exact: Spread) -> Scale:
    """The mean of exact over model variance, over the sampled addresses that may round; of the means, the best fit.

    Where none of them rounds, it is as if one address in twice as many did: not seen is not proven.
    """
    model = variance.reshape(-1)[flat]
    may, found = model > 0, _shown(exact[1], model).square()
    share = float((found[may] / model[may]).mean()) if bool(may.any()) else 1.0
    lean = 1.0
    if mean is not None:
        foretold = mean.reshape(-1)[flat]
        lean = float((_shown(exact[0], foretold) * foretold).sum()) / max(float(foretold.square().sum()), 1e-300)
    return Scale(max(share, 1 / (2 * flat.numel())), lean)


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
    weights = (bb, bt, tt + extra, share - extra + float(how.products), sb, st)
    return _Weights(*(w if w.ndim else w.item() for w in weights))


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
    """Stretches of k, blocks kept whole."""
    for part in _stretches(a.shape[-1], how):
        left, right = a[..., part], b[..., part, :]
        yield _Group(_nonzero(left, right), left @ right, left.square() @ right.square())


def _nonzero(left: Tensor, right: Tensor) -> Tensor:
    """Upper bounds of the terms that are not zero: counted row by row, or column by column where that is fewer.

    One number for all where hardly any are zero.
    """
    rows = (left != 0).sum(-1, dtype=left.dtype).unsqueeze(-1)
    columns = (right != 0).sum(-2, dtype=left.dtype).unsqueeze(-2)
    means = torch.stack([rows.mean(), columns.mean()]).tolist()
    if min(means) >= DENSE * left.shape[-1]:
        return torch.tensor(min(means), dtype=torch.float64)
    return rows if means[0] <= means[1] else columns


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
