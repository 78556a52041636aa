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
        # Sums over the plain elements: of squares of truth, error, output - emulation, ulp; of error * sign(truth); and
        # of squares of draw - truth and jitter - emulation.
        self.truth_square = self.error_square = self.off_square = self.ulp_square = self.error_lean = 0.0
        self.ulps = self.slack = 0.0
        self.draw_squares, self.draw_leans = [0.0] * draws, [0.0] * draws
        self.flips_by_run, self.jitter_squares = [0] * jitters, [0.0] * jitters
        self.values = Distinct()
        self.blocks = Blocks(shape) if rounded else None
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
        figure over them is one error many times over.
        """
        distinct = self.values.count
        return distinct if 2 * distinct >= self.rounds else 0

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
    def loose(self) -> float:
        """Share of the predicted mean square that the accumulators alone make, from 0 to 1.

        Where a 16-bit result is left over from a cancellation inside, FP32 errors outweigh its cast. They are predicted
        for the worst tree and a right kernel's may be far smaller, so that much may be missing from its error.
        """
        moved = math.fsum(self.jitter_squares) / max(1, self.jitters * self.plain)
        return min(1.0, moved / self.mean_square) if self.mean_square else 0.0

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
        self.flips = torch.zeros_like(truth, dtype=torch.int32) if figures.rounded else None
        self.away = emulation != truth

    @timed("judge")
    def draw(self, number: int, noise: Tensor) -> None:
        """The `number`-th noise draw of this stretch."""
        drawn = self._over_plain(noise - self.truth)
        self.figures.draw_squares[number] += float(drawn.square().sum())
        self.figures.draw_leans[number] += float((drawn * self.sign).sum())
        self.moved |= drawn != 0
        self.away |= self.moved if self.ordinary else noise != self.truth

    @timed("judge")
    def jitter(self, number: int, jittered: Tensor) -> None:
        """The `number`-th jittered emulation of this stretch."""
        flipped = jittered != self.emulation if self.ordinary else differing(jittered, self.emulation)
        self.figures.flips_by_run[number] += int(flipped.sum())
        if self.flips is not None:
            self.flips += flipped
            self.figures.jitter_squares[number] += float(self._over_plain(jittered - self.emulation).square().sum())
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
        f.error_lean += float((error * self.sign).sum())
        if bool(differs.any()):
            f.ulps = larger(f.ulps, _max(off.abs() / ulp(self._over_plain(emulation), f.grid)))
        if not f.rounded:
            f.ulp_square += float(self._over_plain(ulp(truth, f.grid).square()).sum())
        f.values.add(truth[self.moved].abs())
        slack = self._slack(error)
        f.slack = larger(f.slack, _max(slack))
        if f.blocks is not None and self.flips is not None:
            f.blocks.add(differs, self.flips, self.start)
        self._worst(wrong, slack, off)

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


class Blocks:
    """Differing elements and flips in each slice along each axis, and in each contiguous tile, of one output."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._device: torch.device | None = None

    def add(self, differs: Tensor, flips: Tensor, start: int) -> None:
        """Count a stretch of axis 0 from `start` on."""
        self._begin(differs.device)
        for axis in range(len(self.shape) if len(self.shape) > 1 else 0):
            others = tuple(a for a in range(len(self.shape)) if a != axis)
            at = slice(start, start + differs.shape[0]) if axis == 0 else slice(None)
            self._axes[axis][0][at] += differs.sum(others)
            self._axes[axis][1][at] += flips.sum(others)
        if self._tiles is not None and differs.numel():
            first = start * math.prod(self.shape[1:])
            for tiles, counts in zip(self._tiles, (differs, flips), strict=True):
                flat = counts.flatten()
                where = torch.nonzero(flat).flatten()
                tiles.index_add_(0, (where + first) // TILE, flat[where].to(tiles.dtype))

    def found(self) -> list[tuple[str, Tensor, Tensor]]:
        """(label, differing elements, flips) of every slice of each axis, then of every tile."""
        self._begin(torch.device("cpu"))
        found = []
        for axis, (differ, flips) in enumerate(self._axes):
            label = "[" + ", ".join("{}" if a == axis else ":" for a in range(len(self.shape))) + "]"
            found.append((label, differ.cpu(), flips.cpu()))
        if self._tiles is not None:
            differ, flips = (t.cpu().to(torch.int64) for t in self._tiles)
            found.append((f"tile {{}} of {TILE} elements", differ, flips))
        return found

    def _begin(self, device: torch.device) -> None:
        if self._device is not None:
            return
        self._device = device
        axes = self.shape if len(self.shape) > 1 else ()
        self._axes = [tuple(torch.zeros(n, dtype=torch.int64, device=device) for _ in range(2)) for n in axes]
        count = -(-math.prod(self.shape) // TILE)
        # A tile's counts are at most TILE times the jitters, so 32 bits do, and an output of 2^29 has 2^23 tiles.
        tiles = [torch.zeros(count, dtype=torch.int32, device=device) for _ in range(2)] if count > 1 else None
        self._tiles = tiles


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
