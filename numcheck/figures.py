"""Figures: the sums, counts and extremes of one output beside its readings, from which every gate is made.

They are added up part by part and draw by draw, so that an output of any size is judged without holding a reading of
it whole; a small output is one part. Tensors are FP64 on one device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from numcheck.clock import timed
from numcheck.distinct import Distinct
from numcheck.ulp import format_of, ulp

if TYPE_CHECKING:
    from torch import Tensor

# FP64 rounds 2^-29 as coarsely as FP32: a result this far below its own radius is an exact zero that FP64 missed, such
# as the gradient of a null cotangent.
NULL = 2.0**-20
# Elements of a contiguous tile: the smallest block of differing elements that a count over the whole could hide.
TILE = 64
# How much larger the variance of summed errors may be, since equal values round alike, than if they did not: draws take
# each error for itself, so beyond this their spread is too narrow by more than a factor 1.4.
MOST_ALIKE = 2.0
# Of n normal values the ulps squared have a mean square of up to three times their square mean, as the values have; so
# many values of other sizes count as n that sum up as evenly as these.
NORMAL = 3.0


@dataclass(frozen=True)
class Standing:
    """A figure among the noise draws of the same statistic.

    value: the kernel's. center, spread: mean and standard deviation over the draws. draws: how many.
    """

    value: float
    center: float
    spread: float
    draws: int

    @property
    def width(self) -> float:
        """Standard deviation of (a new draw - center): the spread, widened for the center's own error."""
        return self.spread * math.sqrt(1.0 + 1.0 / self.draws)

    @property
    def z(self) -> float:
        """Distance from the center in widths: for a right kernel Student's t with draws - 1 degrees of freedom."""
        distance = self.value - self.center
        if self.width == 0:
            return 0.0 if distance == 0 else math.copysign(math.inf, distance)
        return distance / self.width


@dataclass(frozen=True)
class Element:
    """One element of an output: its index, and what each reading says of it."""

    index: tuple[int, ...]
    got: float
    emulation: float
    truth: float
    radius: float


class Figures:
    """The figures of the output `name` of `shape`, ending on `grid`, over `draws` noise draws and `jitters`.

    rounded: its final cast is narrower than its accumulator, so that the cast dominates the error; else ("FP32
    outputs") the sum tree does. bound: whether every part has its worst case. Filled by `part`; read when all parts
    are in.
    """

    def __init__(
        self,
        name: str,
        grid: str,
        rounded: bool,
        shape: tuple[int, ...],
        draws: int,
        jitters: int,
        *,
        bound: bool = True,
    ) -> None:
        self.name, self.grid, self.rounded, self.shape = name, grid, rounded, shape
        self.draws, self.jitters, self.bound = draws, jitters, bound
        self.elements = math.prod(shape)
        # Counts of elements: of each kind of truth, emulation, radius; wrong, differing, away from exactness; plain.
        self.nonzero = self.finite = self.bounded = self.loud = self.emulated = self.nan = 0
        self.wrong = self.differ = self.inexact = self.plain = self.rounds = 0
        # Sums over the plain elements: of squares of truth, error, output - emulation, emulation - truth, ulp; of
        # error * sign(truth).
        self.truth_square = self.error_square = self.off_square = self.ulp_square = self.error_lean = 0.0
        self.emulated_square = 0.0
        self.ulps = self.slack = 0.0
        # Of each draw the same sums, of each jitter the elements that it moves: on the device that they are made on.
        self._squares, self._leans = Sums(draws), Sums(draws)
        self._flips = Sums(jitters)
        self.emulation_lean = 0.0
        self.values = Distinct()
        # Variances of the distinct rounding errors in ulps squared: a value that occurs k times has one error k times.
        self.alike = self.apart = self.alike_square = 0.0
        self.blocks = Blocks(shape, jitters) if rounded else None
        self._worst: tuple[int, float, Element] | None = None

    def part(self, got: Tensor, truth: Tensor, emulation: Tensor, radius: Tensor | None, start: int = 0) -> Part:
        """A stretch of axis 0 from `start` on; add its draws and jitters, then close it."""
        return Part(self, got, truth, emulation, radius, start)

    def sees(self, rank: int, size: float, element: Element) -> None:
        """Keep the worst element: wrong (2), beyond its radius (1), far from the emulation (0); the first of equals."""
        if self._worst is None or (rank, size) > self._worst[:2]:
            self._worst = (rank, size, element)

    @property
    def worst(self) -> Element | None:
        """The worst element; None where there is none."""
        return self._worst[2] if self._worst else None

    @property
    def draw_squares(self) -> list[float]:
        """Sum of squared errors of each noise draw."""
        return self._squares.values()

    @property
    def draw_leans(self) -> list[float]:
        """Sum of error * sign(truth) of each noise draw."""
        return self._leans.values()

    @property
    def flips_by_run(self) -> list[int]:
        """Elements that each jitter moves away from the emulation."""
        return [int(count) for count in self._flips.values()]

    @property
    def seen(self) -> int:
        """Flips over all jitters."""
        return sum(self.flips_by_run)

    @property
    def exact(self) -> bool:
        """The predicted error is 0 at every element: nothing rounds, in any draw, jitter or the emulation.

        Never for FP64 outputs: the truth has FP64's own error there, and no draw tells of it.
        """
        return self.grid != "fp64" and self.inexact == 0

    @property
    def blind(self) -> str:
        """Why no gate on this output could tell its values from zeros, or ""."""
        if self.finite == 0:
            return "no element of the truth is finite"
        if self.bounded == 0:
            return "the Contract's radius is unbounded at every element: any output holds"
        if self.loud == 0:
            return "the truth is zero up to FP64 rounding (a null cotangent?): an output of zeros holds"
        return ""

    @property
    def independent(self) -> int:
        """How many rounding errors there are to average over: distinct nonzero values that round.

        Constant or repeated values round alike, so they count once; 0 where fewer than half are distinct, since a
        figure over them is one error many times over. Where the cast decides the error, a few large values among many
        small ones are few.
        """
        distinct = self.values.count
        if 2 * distinct < self.rounds or self.alike > MOST_ALIKE * self.apart:
            return 0
        return min(distinct, round(NORMAL * self.alike**2 / self.alike_square)) if self.alike_square else distinct

    @property
    def relative(self) -> float:
        """Relative L2 error against the truth; 0/0 is 0."""
        return _over(math.sqrt(self.error_square), math.sqrt(self.truth_square))

    @property
    def squares(self) -> list[float]:
        """Mean square error of each noise draw.

        Where the sum tree decides the error they are raised to ulp^2/12 in the mean: a kernel rounds at least once.
        """
        squares = [s / max(1, self.plain) for s in self.draw_squares]
        if self.rounded or not squares or self.plain == 0:
            return squares
        floor, mean = self.ulp_square / self.plain / 12, math.fsum(squares) / len(squares)
        if mean >= floor:
            return squares
        return [s * (floor / mean) for s in squares] if mean > 0 else [floor] * len(squares)

    @property
    def mean_square(self) -> float:
        """Mean of `squares` over the draws."""
        return math.fsum(self.squares) / max(1, self.draws)

    @property
    def emulation_share(self) -> float:
        """Mean square error of the emulation over the predicted one: what a right kernel's roundings come to here.

        The prediction takes a rounding as uniform over a spacing. Results near the grid (a softmax that one slot
        decides) round by less, results near ties by more; and where accumulators outweigh the cast, after a
        cancellation inside, they are predicted for the worst tree, which a right kernel's may fall far short of.
        """
        square = self.emulated_square / max(1, self.plain)
        return square / self.mean_square if self.mean_square else 1.0

    @property
    def error(self) -> float:
        """Root mean square error."""
        return math.sqrt(self.error_square / max(1, self.plain))

    @property
    def predicted(self) -> float:
        """Predicted relative L2 error: root mean square over the noise draws, over the truth's."""
        return _over(math.sqrt(self.mean_square), math.sqrt(self.truth_square / max(1, self.plain)))

    @property
    def ratio(self) -> float:
        """Measured over predicted relative L2 error; 0/0 is 1."""
        predicted = math.sqrt(self.mean_square)
        return 1.0 if self.error == predicted else _over(self.error, predicted)

    @property
    def match(self) -> float:
        """rms(output - emulation) over rms(output - truth): 0 where the emulated policy is the kernel's; 0/0 is 0."""
        return _over(math.sqrt(self.off_square), math.sqrt(self.error_square))

    @property
    def log_error(self) -> Standing:
        """ln of the root mean square error, among the draws."""
        return _standing(_log(self.error), [_log(s) / 2 for s in self.squares])

    @property
    def bias(self) -> Standing:
        """Sum of error * sign(truth): how far the output leans away from zero, among the draws."""
        return _standing(self.error_lean, self.draw_leans)

    @property
    def leaning(self) -> Standing:
        """The same of the emulation, which rounds the very values that a right kernel rounds."""
        return _standing(self.emulation_lean, self.draw_leans)


class Part:
    """A stretch of one output, whose draws and jitters are added one by one."""

    def __init__(
        self, figures: Figures, got: Tensor, truth: Tensor, emulation: Tensor, radius: Tensor | None, start: int
    ) -> None:
        self.figures, self.start = figures, start
        self.got, self.truth, self.emulation, self.radius = got, truth, emulation, radius
        self.plain = torch.isfinite(truth) & torch.isfinite(emulation) & torch.isfinite(got)
        # Most often every element is plain, and then much need not be looked at.
        self.ordinary = bool(self.plain.all())
        self.sign = self._over_plain(torch.sign(truth))
        self.moved = torch.zeros_like(self.plain)
        self.away = emulation != truth

    @timed("judge")
    def draw(self, number: int, noise: Tensor) -> None:
        """The `number`-th noise draw of this stretch."""
        drawn = self._over_plain(noise - self.truth)
        self.figures._squares.add(number, drawn.square().sum())
        self.figures._leans.add(number, (drawn * self.sign).sum())
        self.moved |= drawn != 0
        self.away |= self.moved if self.ordinary else noise != self.truth

    @timed("judge")
    def jitter(self, number: int, jittered: Tensor) -> None:
        """The `number`-th jittered emulation of this stretch."""
        flipped = jittered != self.emulation if self.ordinary else differing(jittered, self.emulation)
        self.figures._flips.add(number, flipped.sum())
        if self.figures.blocks is not None:
            self.figures.blocks.jitter(number, flipped, self.start)
        self.away |= jittered != self.truth

    @timed("judge")
    def close(self) -> None:
        """Count what needs no draw, and what needed all of them."""
        f, truth, emulation = self.figures, self.truth, self.emulation
        wrong = self._wrong()
        differs = self.got != emulation if self.ordinary else differing(self.got, emulation)
        error, off = self._over_plain(self.got - truth), self._over_plain(self.got - emulation)
        f.nonzero += int((truth != 0).sum())
        f.finite += truth.numel() if self.ordinary else int(torch.isfinite(truth).sum())
        f.nan += 0 if self.ordinary else int(torch.isnan(truth).sum())
        f.emulated += int((emulation != 0).sum())
        f.wrong += int(wrong.sum())
        f.differ += int(differs.sum())
        f.inexact += int(self.away.sum())
        f.plain += int(self.plain.sum())
        f.rounds += int(self.moved.sum())
        f.truth_square += float(self._over_plain(truth).square().sum())
        f.error_square += float(error.square().sum())
        f.off_square += float(off.square().sum())
        f.emulated_square += float(self._over_plain(emulation - truth).square().sum())
        f.error_lean += float((error * self.sign).sum())
        f.emulation_lean += float((self._over_plain(emulation - truth) * self.sign).sum())
        if bool(differs.any()):
            f.ulps = larger(f.ulps, _max(off.abs() / ulp(self._over_plain(emulation), f.grid)))
        if not f.rounded:
            f.ulp_square += float(self._over_plain(ulp(truth, f.grid).square()).sum())
        f.values.add(truth[self.moved].abs())
        if f.rounded:
            self._repeats(truth[self.moved].abs())
        slack = self._slack(error)
        f.slack = larger(f.slack, _max(slack))
        if f.blocks is not None:
            f.blocks.add(differs, self.start)
        self._worst(wrong, slack, off)

    def _repeats(self, values: Tensor) -> None:
        """Add up what values that occur again and again make of the sum of their errors."""
        distinct, counts = torch.unique(values, return_counts=True)
        if distinct.numel() == 0:
            return
        steps = ulp(distinct, self.figures.grid)
        alike = (counts * steps).square()
        self.figures.alike += float(alike.sum())
        self.figures.apart += float((counts * steps.square()).sum())
        self.figures.alike_square += float(alike.square().sum())

    def _over_plain(self, values: Tensor) -> Tensor:
        return values if self.ordinary else torch.where(self.plain, values, 0.0)

    def _slack(self, error: Tensor) -> Tensor:
        """|error| / radius of every plain element, 0/0 being 0: above 1 is beyond the ceiling."""
        f = self.figures
        if self.radius is None:
            f.bounded += self.truth.numel()
            f.loud += int((self.truth != 0).sum())
            return torch.zeros_like(error)
        f.bounded += int((~torch.isinf(self.radius)).sum())
        f.loud += int((~(self.truth.abs() <= NULL * self.radius)).sum())
        return torch.where(error == 0, 0.0, error.abs() / self.radius)

    def _wrong(self) -> Tensor:
        if self.ordinary:
            return torch.zeros_like(self.plain)
        radius = torch.full_like(self.truth, math.inf) if self.radius is None else self.radius
        return wrong(self.got, self.truth, self.emulation, radius, self.figures.grid)

    def _worst(self, wrong: Tensor, slack: Tensor, off: Tensor) -> None:
        if not self.got.numel():
            return
        rank, sizes = (2, wrong.to(torch.uint8)) if bool(wrong.any()) else (1, slack)
        if rank == 1 and not bool((slack > 1).any()):
            rank, sizes = 0, off.abs()
        flat = int(sizes.flatten().argmax())
        index = [int(i) for i in torch.unravel_index(torch.tensor(flat), self.got.shape)]
        at = tuple(index)
        index[:1] = [index[0] + self.start] if index else []
        radius = math.nan if self.radius is None else float(self.radius[at])
        element = Element(tuple(index), float(self.got[at]), float(self.emulation[at]), float(self.truth[at]), radius)
        self.figures.sees(rank, float(sizes[at]), element)


class Sums:
    """Sums of so many draws, kept on the device of what is added, so that no draw waits for its number."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sums: Tensor | None = None

    def add(self, number: int, value: Tensor) -> None:
        """Add a number to the sum of the `number`-th draw."""
        if self._sums is None:
            self._sums = torch.zeros(self._count, dtype=torch.float64, device=value.device)
        self._sums[number] += value

    def values(self) -> list[float]:
        """The sums of all draws."""
        return [0.0] * self._count if self._sums is None else [float(v) for v in self._sums.tolist()]


@dataclass(frozen=True)
class Kind:
    """Blocks of one kind: slices along one axis, or tiles.

    label: how block k is named, with {} for k. differ: (blocks,) elements that differ from the emulation. flips: those
    that the jitters moved, all together. most: the most that one jitter moved in one block.
    """

    label: str
    differ: Tensor
    flips: Tensor
    most: int


class Blocks:
    """Differing elements and flips in each slice along each axis, and in each contiguous tile, of one output."""

    def __init__(self, shape: tuple[int, ...], jitters: int) -> None:
        self.shape, self.jitters = shape, jitters
        self._device: torch.device | None = None
        # The most that one jitter moved in one tile.
        self._top: Tensor = torch.zeros((), dtype=torch.int32)

    def add(self, differs: Tensor, start: int) -> None:
        """Count a stretch of axis 0 from `start` on."""
        self._begin(differs.device)
        for axis, counts in enumerate(self._axes):
            counts[0, self._at(axis, differs, start)] += _along(differs, axis)
        if self._tiles is not None:
            self._tile(self._tiles[0], differs, start)

    def jitter(self, number: int, flipped: Tensor, start: int) -> None:
        """Count the same stretch of one jitter, stretches in order."""
        self._begin(flipped.device)
        for axis, counts in enumerate(self._axes):
            counts[1 + number, self._at(axis, flipped, start)] += _along(flipped, axis)
        if self._tiles is not None:
            # A tile that two stretches share counts as two here: it could hold a little more than is known.
            counts = self._tile(self._tiles[1], flipped, start)
            self._top = torch.maximum(self._top, counts)

    def found(self) -> list[Kind]:
        """The slices of each axis, then the tiles."""
        self._begin(torch.device("cpu"))
        found = []
        for axis, counts in enumerate(self._axes):
            label = "[" + ", ".join("{}" if a == axis else ":" for a in range(len(self.shape))) + "]"
            flips = counts[1:]
            most = int(flips.max()) if flips.numel() else 0
            found.append(Kind(label, counts[0].cpu(), flips.sum(0).cpu(), most))
        if self._tiles is not None:
            differ, total = (t.cpu().to(torch.int64) for t in self._tiles)
            found.append(Kind(f"tile {{}} of {TILE} elements", differ, total, int(self._top)))
        return found

    def _begin(self, device: torch.device) -> None:
        if self._device is not None:
            return
        self._device = device
        axes = self.shape if len(self.shape) > 1 else ()
        # Row 0 counts what differs, the others the flips of one jitter each.
        self._axes = [torch.zeros(1 + self.jitters, n, dtype=torch.int64, device=device) for n in axes]
        count = -(-math.prod(self.shape) // TILE)
        # A tile's counts are at most TILE times the jitters, so 32 bits do, and an output of 2^29 has 2^23 tiles.
        tiles = [torch.zeros(count, dtype=torch.int32, device=device) for _ in range(2)] if count > 1 else None
        self._tiles = tiles
        self._top = self._top.to(device)

    def _at(self, axis: int, part: Tensor, start: int) -> slice:
        return slice(start, start + part.shape[0]) if axis == 0 else slice(None)

    def _tile(self, tiles: Tensor, part: Tensor, start: int) -> Tensor:
        """Add a stretch's elements to their tiles; the most in one tile."""
        first = start * math.prod(self.shape[1:])
        inside = first % TILE
        flat = torch.nn.functional.pad(part.flatten(), (inside, -(inside + part.numel()) % TILE))
        counts = flat.reshape(-1, TILE).sum(1, dtype=torch.int32)
        tiles[first // TILE : first // TILE + counts.numel()] += counts
        return counts.max() if counts.numel() else torch.zeros_like(self._top)


def _along(marks: Tensor, axis: int) -> Tensor:
    """How many elements are marked in each slice along `axis`."""
    return marks.sum(tuple(a for a in range(marks.dim()) if a != axis))


def wrong(got: Tensor, truth: Tensor, emulation: Tensor, radius: Tensor, grid: str) -> Tensor:
    """Elements that break the rule for non-finite values.

    Truth NaN: NaN is the only answer. Truth infinite: that infinity is. Truth finite: NaN is wrong, and an
    infinity too, but for one of the truth's own sign where truth and radius reach past the grid's largest
    number (an overflow that the Contract's cast makes). Where the emulation itself overflows, anything but that
    infinity or the grid's largest number of that sign is wrong.
    """
    huge = format_of(grid).huge
    overflow = torch.isinf(got) & (truth.abs() + radius > huge) & (torch.sign(got) == torch.sign(truth))
    short = torch.isinf(emulation) & (got * torch.sign(emulation) < huge)
    finite = (torch.isfinite(got) | overflow) & ~short
    beyond = torch.isnan(got) | (got != truth)
    return torch.where(torch.isfinite(truth), ~finite, torch.where(torch.isnan(truth), ~torch.isnan(got), beyond))


def differing(a: Tensor, b: Tensor) -> Tensor:
    """Where two values differ; zeros of either sign are equal, and so are two NaNs."""
    return (a != b) & ~(torch.isnan(a) & torch.isnan(b))


def larger(a: float, b: float) -> float:
    """The larger of two figures; NaN where either is, since nothing is known then."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


def _max(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _over(value: float, size: float) -> float:
    if size == 0:
        return 0.0 if value == 0 else math.inf
    return value / size


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _standing(value: float, draws: list[float]) -> Standing:
    numbers = torch.tensor(draws, dtype=torch.float64)
    return Standing(value, float(numbers.mean()), float(numbers.std(correction=1)), numbers.numel())
