"""Trees: what a declared summation does to the sum. Exact replay, the spread of its error, its worst growth.

Every function takes the terms with the summed axis last. Terms and results are FP64.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from numcheck.contract import Sum
from numcheck.ulp import disturbance, format_of, round_to, ulp, unit_roundoff

# Longest chain that is replayed add by add. One add costs a few passes over the result, so 32 cover every sum
# over streams, experts or slots of a block, and leave out those over features, whose tree is rarely a chain.
REPLAYED = 32
# A tf32 input keeps 11 significant bits, so a product of two keeps 22; its rounding is 2^-11 relative.
TF32_PRECISION = 11
# Tensor cores keep 23 to 25 bits and more of aligned terms below the largest, by the generation (Fasi et al., PeerJ CS
# 7:e330; arXiv 2512.07004). With 24 they are cut at half an FP32 ulp, which is coarser than what Hopper keeps.
KEPT_BELOW = 1
# Terms worked on at a time: a dozen FP64 temporaries of this size stay in a core's cache, or fill a GPU with work.
CHUNK = {"cpu": 2**14, "cuda": 2**23}


def last(terms: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """`terms` with the axes `dim` merged into one and moved last."""
    if isinstance(dim, int):
        return terms.movedim(dim, -1)
    axes = [d % terms.ndim for d in dim]
    moved = terms.movedim(axes, list(range(-len(axes), 0)))
    return moved.reshape(*moved.shape[: terms.ndim - len(axes)], math.prod(terms.shape[a] for a in axes))


def replays(how: Sum, count: int) -> bool:
    """Whether the tree is declared so exactly, and is so short, that the emulation adds as the kernel does."""
    declared = how.tree == "sequential" and how.block == 0 and how.rounding != "any" and how.split == 1
    return declared and count <= REPLAYED and how.dtype != "fp64" and how.dot == "ieee"


def replay(terms: Tensor, how: Sum) -> Tensor:
    """The sum, add by add in the declared dtype. Exact: each partial sum is the correctly rounded one."""
    if terms.shape[-1] == 0:
        return terms.sum(-1)
    if how.products:
        terms = round_to(terms, how.dtype)
    # FP64 holds a sum of two numbers of p bits well enough to round it again where 2 p + 2 <= 53 (Figueroa 1995).
    twice = how.products and 2 * format_of(how.dtype).precision + 2 <= format_of("fp64").precision
    mode: Literal["nearest", "truncate"] = "nearest" if how.rounding == "any" else how.rounding
    total = round_to(terms[..., 0], how.dtype, mode)
    for k in range(1, terms.shape[-1]):
        term = terms[..., k]
        added = total + term if twice and mode == "nearest" else _add_to_odd(total, term)
        total = round_to(added, how.dtype, mode)
    return total


def spread(terms: Tensor, how: Sum) -> tuple[Tensor | None, Tensor | None]:
    """Mean and standard deviation of the sum's error, or None where every element's is zero.

    Each partial sum rounds with variance ulp^2 / 12 where it is not representable; truncation adds a mean of
    -ulp / 2 towards zero, which a draw takes a share of where the rounding is "any". A tree of "any" is bounded by the
    chain, unless no order at all could round.
    """
    shape, count = terms.shape[:-1], terms.shape[-1]
    if how.dtype == "fp64" or terms.numel() == 0:
        return None, None
    rows = torch.split(terms.reshape(-1, count), max(1, CHUNK[terms.device.type] // count))
    means, variances = zip(*(_moments(part, how) for part in rows), strict=True)
    mean, variance = torch.cat(means).reshape(shape), torch.cat(variances).reshape(shape)
    # A sum of what is not finite has no spread: it is what it is.
    variance = torch.where(torch.isfinite(variance), variance, 0.0)
    return _none_if_zero(mean), _none_if_zero(variance.sqrt())


def _moments(terms: Tensor, how: Sum) -> tuple[Tensor, Tensor]:
    """Mean and variance of the error of each row's sum."""
    mean = terms.new_zeros(terms.shape[:-1])
    variance = mean.clone()
    if how.dot == "tf32":
        variance += _tf32_variance(terms)
    if how.products:
        rounded = round_to(terms, how.dtype)
        variance += _variance(terms, rounded, how.dtype)
        terms = rounded
    else:
        # The first addend of a fused chain is a plain product: the partial sum that it makes rounds too.
        mean, variance = _count(mean, variance, terms[..., :1], how)
    alike = _alike(terms, how)
    if how.aligned:
        mean, variance = _count_cuts(mean, variance, terms, how)
    for partial in _partials(terms, how):
        mean, variance = _count(mean, variance, partial, how, alike)
    if how.tree != "sequential" or how.block:
        variance = torch.maximum(variance, _unordered(terms, variance, how))
    if how.split > 1:
        # So many adds for one; of equal terms one after the other they err alike.
        run = torch.zeros_like(variance, dtype=torch.bool) if alike is None else alike.any(-1)
        mean, variance = mean * how.split, variance * torch.where(run, how.split**2, how.split)
    return mean, variance


def growths(how: Sum, count: Tensor) -> Tensor:
    """For each count of terms in an FP64 tensor, the factor g of the worst case of their sum.

    |computed - exact| <= g * sum |terms|, products not counted; inf beyond its range. Higham, Accuracy and Stability of
    Numerical Algorithms, 2nd ed., section 4.2: h u / (1 - h u), with h the depth of the tree. Truncation doubles u. The
    FP64 sum that it is compared with has its own such error.
    """
    unit = unit_roundoff(how.dtype) * (1 if how.rounding == "nearest" else 2)
    adds = _depth(how.tree, how.block, count * how.split) * unit
    if how.aligned:
        # Each of n terms and the sum so far are cut by at most a unit roundoff of the largest, the result by two.
        adds = (count * how.split + 3 * torch.ceil(count * how.split / how.aligned)) * unit_roundoff(how.dtype)
    inputs = (1 + 2.0**-TF32_PRECISION) ** 2 - 1 if how.dot == "tf32" else 0.0
    grown = (1 + adds / (1 - adds)) * (1 + inputs) - 1 + count * unit_roundoff("fp64")
    return torch.where(adds < 1, grown, math.inf)


def _depth(tree: str, block: int, count: Tensor) -> Tensor:
    """Most adds that one term passes through; for "any" that of the chain, which no tree exceeds."""
    if block:
        return levels(count.clamp(max=block)) + _depth(tree, 0, torch.ceil(count / block))
    return levels(count) if tree == "pairwise" else (count - 1).clamp(min=0)


def levels(count: Tensor) -> Tensor:
    """ceil(log2(count)) of whole numbers in an FP64 tensor, 0 for none: the depth of a pairwise tree."""
    return torch.frexp((count - 1).clamp(min=0)).exponent.to(count.dtype)


def _partials(terms: Tensor, how: Sum) -> list[Tensor]:
    """Every partial sum of the declared tree that an add makes, as tensors with the partials last."""
    count = terms.shape[-1]
    if how.block:
        blocks = -(-count // how.block)
        padded = torch.nn.functional.pad(terms, (0, blocks * how.block - count))
        inside, sums = _pairwise(padded.reshape(*terms.shape[:-1], blocks, how.block), how)
        outside = _partials(sums, Sum(how.dtype, how.tree))
        return [p.flatten(-2) for p in inside] + outside
    if how.aligned:
        return [_in_blocks(terms, how.aligned).sum(-1).cumsum(-1)]
    if how.tree == "pairwise":
        return _pairwise(terms, how)[0]
    # A term of zero adds no rounding, so its partial sum is not counted a second time.
    return [terms.cumsum(-1)[..., 1:].masked_fill_(terms[..., 1:] == 0, 0.0)]


def _pairwise(terms: Tensor, how: Sum) -> tuple[list[Tensor], Tensor]:
    """Partial sums of neighbours before they round, level by level, and the sum itself.

    The next level takes them rounded, so that the zeros which fill a block up add nothing.
    """
    levels = []
    while terms.shape[-1] > 1:
        if terms.shape[-1] % 2:
            terms = torch.nn.functional.pad(terms, (0, 1))
        terms = terms[..., 0::2] + terms[..., 1::2]
        levels.append(terms)
        terms = round_to(terms, how.dtype)
    return levels, terms[..., 0]


def _alike(terms: Tensor, how: Sum) -> Tensor | None:
    """Which adds of a chain add the same term as the add before them; None where none does."""
    if how.block or how.aligned or how.tree == "pairwise" or terms.shape[-1] < 3:
        return None
    alike = (terms[..., 2:] == terms[..., 1:-1]) & (terms[..., 2:] != 0)
    return alike if bool(alike.any()) else None


def _count(
    mean: Tensor, variance: Tensor, partial: Tensor, how: Sum, alike: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    if how.rounding != "nearest":
        step = disturbance(partial, how.dtype, "truncate")
        mean = mean - (step * torch.sign(partial)).sum(-1) / 2
        if how.rounding == "truncate":
            return mean, variance + (step**2).sum(-1) / 12
    return mean, variance + _variance(partial, round_to(partial, how.dtype), how.dtype, alike)


def _in_blocks(terms: Tensor, size: int) -> Tensor:
    """(..., blocks, size), filled up with zeros."""
    count = terms.shape[-1]
    blocks = -(-count // size)
    return torch.nn.functional.pad(terms, (0, blocks * size - count)).reshape(*terms.shape[:-1], blocks, size)


def _count_cuts(mean: Tensor, variance: Tensor, terms: Tensor, how: Sum) -> tuple[Tensor, Tensor]:
    """What aligned terms lose, those that end above the cut excepted: towards zero, half of the cut in the mean."""
    blocks = _in_blocks(terms, how.aligned)
    sums = blocks.sum(-1)
    before = sums.cumsum(-1) - sums
    largest = torch.maximum(blocks.abs().amax(-1), before.abs())
    cut = (ulp(largest, how.dtype) * 2.0**-KEPT_BELOW).unsqueeze(-1)
    lost = torch.trunc(blocks / cut) * cut != blocks
    mean = mean - (torch.sign(blocks) * lost * cut).sum((-2, -1)) / 2
    return mean, variance + (lost * cut**2).sum((-2, -1)) / 12


def _variance(x: Tensor, rounded: Tensor, dtype: str, alike: Tensor | None = None) -> Tensor:
    """Variance of rounding each `x`, summed: `numcheck.ulp.disturbance` squared, of values that are rounded already.

    alike: which of them but the first come of adding the same term as the one before. On one grid that leaves the same
    error each time, so that deviations add up where variances otherwise do.
    """
    step, error = ulp(x, dtype), (x - rounded).abs_()
    certain = error + error == step
    exact = error == 0
    uniform = step.square_().mul_(1 / 12).masked_fill_(exact, 0.0)
    each = torch.where(certain, error.square_(), uniform)
    if alike is None:
        return each.sum(-1)
    run = torch.nn.functional.pad((~alike).cumsum(-1), (1, 0))
    return torch.zeros_like(each).scatter_add_(-1, run, each.sqrt_()).square_().sum(-1)


def _tf32_variance(terms: Tensor) -> Tensor:
    """Two inputs of relative rounding error uniform on +-2^-11, unless the product can be one of tf32 numbers."""
    cut = ulp(terms, "fp32") * 2.0 ** (24 - 2 * TF32_PRECISION)
    exact = torch.round(terms / cut) * cut == terms
    return (terms**2 * (2 * 2.0 ** (-2 * TF32_PRECISION) / 3)).masked_fill_(exact, 0.0).sum(-1)


def tf32_step(x: Tensor) -> Tensor:
    """Spacing of tf32 at each element that is no tf32 number, 0 elsewhere."""
    step = ulp(x, "fp32") * 2.0 ** (24 - TF32_PRECISION)
    return step.masked_fill_((torch.round(x / step) * step == x) | ~torch.isfinite(x), 0.0)


def _unordered(terms: Tensor, variance: Tensor, how: Sum) -> Tensor:
    """A floor for trees whose order is not known: 0 where no order can round, else one rounding of the largest sum.

    Where any order may be taken, the chain's own partial sums may be small by luck (1 - 1 + 2^-13, where another order
    rounds 1 + 2^-13), so the floor holds for every sum; other trees need it only where theirs does not round.
    """
    size = terms.abs().sum(-1)
    floor = ulp(size, how.dtype) ** 2 / 12
    low = (variance < floor if how.tree == "any" else variance == 0) & (size > 0)
    if not bool(low.any()):
        return variance
    return floor.masked_fill_(~low | exact_in_any_order(terms, how), 0.0)


def exact_in_any_order(terms: Tensor, how: Sum) -> Tensor:
    """Which sums over the last axis round in no order of their terms, taken as exact.

    All partial sums are multiples of the terms' lowest bit; those up to 2^precision of it are exact.
    """
    size = terms.abs().sum(-1)
    if terms.shape[-1] == 0:
        return size == 0
    return size <= 2.0 ** format_of(how.dtype).precision * lowest_bit(terms)


def lowest_bit(terms: Tensor, dim: int = -1) -> Tensor:
    """The smallest set bit over the axis `dim`; infinite where all of its terms are zero."""
    raw = terms.contiguous().view(torch.int64)
    exponent = (raw >> 52) & 0x7FF
    mantissa = (raw & ((1 << 52) - 1)) | (1 << 52)
    low = (mantissa & -mantissa).to(torch.float64)
    scale = ((exponent - 52).clamp(min=1) << 52).view(torch.float64)
    return (low * scale).masked_fill_(terms == 0, torch.inf).amin(dim)


def _none_if_zero(x: Tensor) -> Tensor | None:
    return x if bool((x != 0).any()) else None


def _add_to_odd(a: Tensor, b: Tensor) -> Tensor:
    """a + b in FP64 rounded to odd, so that a second rounding to a format of at most 51 bits is as good as one.

    Boldo and Melquiond, IEEE Trans. Computers 57(4), 2008. The error of the sum comes from TwoSum.
    """
    total = a + b
    virtual = total - a
    error = (a - (total - virtual)) + (b - virtual)
    raw = total.view(torch.int64)
    even = (error != 0) & torch.isfinite(total) & ((raw & 1) == 0)
    away = torch.where(torch.signbit(error) == torch.signbit(total), 1, -1)
    return (raw + torch.where(even, away, 0)).view(torch.float64)
