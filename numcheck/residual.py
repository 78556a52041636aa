"""A Residual: one output beside its four readings, and the statistics that its gates judge."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from numcheck.ulp import format_of, ulp

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.case import Case
    from numcheck.contract import Policy
    from numcheck.oracle import Output
    from numcheck.reading import Readings

# FP64 rounds 2^-29 as coarsely as FP32: a result this far below its own radius is an exact zero that FP64 missed, such
# as the gradient of a null cotangent.
NULL = 2.0**-20


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
class Residual:
    """One output of a Run beside its readings: FP64 CPU tensors of the output's shape.

    grid: dtype on whose grid the output ends. rounded: its final cast is narrower than its accumulator, so that the
    cast dominates the error; else ("FP32 outputs") the sum tree does. noise, jitters: draws stacked in front.
    """

    name: str
    grid: str
    rounded: bool
    got: Tensor
    truth: Tensor
    emulation: Tensor
    radius: Tensor
    noise: Tensor
    jitters: Tensor

    @cached_property
    def wrong(self) -> Tensor:
        """Elements that break the rule for non-finite values.

        Truth NaN: NaN is the only answer. Truth infinite: that infinity is. Truth finite: NaN is wrong, and an
        infinity too, but for one of the truth's own sign where truth and radius reach past the grid's largest
        number (an overflow that the Contract's cast makes). Where the emulation itself overflows, anything but that
        infinity or the grid's largest number of that sign is wrong.
        """
        got, truth, emulation, huge = self.got, self.truth, self.emulation, format_of(self.grid).huge
        reaches = truth.abs() + self.radius > huge
        overflow = torch.isinf(got) & reaches & (torch.sign(got) == torch.sign(truth))
        short = torch.isinf(emulation) & (got * torch.sign(emulation) < huge)
        finite = (torch.isfinite(got) | overflow) & ~short
        beyond = torch.isnan(got) | (got != truth)
        return torch.where(torch.isfinite(truth), ~finite, torch.where(torch.isnan(truth), ~torch.isnan(got), beyond))

    @cached_property
    def plain(self) -> Tensor:
        """Elements whose truth, emulation and output are finite: those that the statistics are taken over."""
        return torch.isfinite(self.truth) & torch.isfinite(self.emulation) & torch.isfinite(self.got)

    @cached_property
    def error(self) -> Tensor:
        """Output - truth over the plain elements, flat."""
        return (self.got - self.truth)[self.plain]

    @cached_property
    def drawn(self) -> Tensor:
        """Noise draw - truth over the plain elements: (draws, elements)."""
        return (self.noise - self.truth)[:, self.plain]

    @cached_property
    def differs(self) -> Tensor:
        """Elements whose value is not the emulation's; zeros of either sign are equal, and so are two NaNs."""
        return _moved(self.got, self.emulation)

    @cached_property
    def _flipped(self) -> Tensor:
        return _moved(self.jitters, self.emulation)

    @cached_property
    def flips(self) -> Tensor:
        """How many jitters moved each element away from the emulation."""
        return self._flipped.sum(0)

    @cached_property
    def flips_by_run(self) -> Tensor:
        """How many elements each jitter moved away from the emulation, (jitters,), FP64."""
        return self._flipped.reshape(self.jitters.shape[0], -1).sum(1).double()

    @cached_property
    def exact(self) -> bool:
        """The predicted error is 0 at every element: nothing rounds, in any draw, jitter or the emulation.

        Never for FP64 outputs: the truth has FP64's own error there, and no draw tells of it.
        """
        if self.grid == "fp64":
            return False
        same = (self.noise == self.truth).all() and (self.jitters == self.truth).all()
        return bool(same and (self.emulation == self.truth).all())

    @cached_property
    def null(self) -> bool:
        """The truth is zero, up to the oracle's own FP64 rounding, beside the radius of every element."""
        return bool((self.truth.abs() <= NULL * self.radius).all())

    @cached_property
    def blind(self) -> str:
        """Why no gate on this output could tell its values from zeros, or ""."""
        if not bool(torch.isfinite(self.truth).any()):
            return "no element of the truth is finite"
        if bool(torch.isinf(self.radius).all()):
            return "the Contract's radius is unbounded at every element: any output holds"
        if self.null:
            return "the truth is zero up to FP64 rounding (a null cotangent?): an output of zeros holds"
        return ""

    @cached_property
    def independent(self) -> int:
        """How many rounding errors there are to average over: distinct nonzero values that round.

        Constant or repeated values round alike, so they count once; 0 where fewer than half are distinct, since a
        figure over them is one error many times over.
        """
        rounds = (self.drawn != 0).any(0)
        values = self.truth[self.plain][rounds].abs()
        distinct = int(torch.unique(values).numel())
        return distinct if 2 * distinct >= values.numel() else 0

    @cached_property
    def scale(self) -> float:
        """Root mean square of the truth."""
        return _rms(self.truth[self.plain])

    @cached_property
    def relative(self) -> float:
        """Relative L2 error against the truth; 0/0 is 0."""
        return _over(_rms(self.error), self.scale)

    @cached_property
    def squares(self) -> Tensor:
        """Mean square error of each noise draw, (draws,).

        Where the sum tree decides the error they are raised to ulp^2/12 in the mean: a kernel rounds at least once.
        """
        squares = self.drawn.pow(2).mean(1)
        if self.rounded or squares.numel() == 0 or self.error.numel() == 0:
            return squares
        floor, mean = ulp(self.truth[self.plain], self.grid).pow(2).mean() / 12, squares.mean()
        if mean >= floor:
            return squares
        return squares * (floor / mean) if mean > 0 else floor.expand(squares.shape)

    @cached_property
    def predicted(self) -> float:
        """Predicted relative L2 error: root mean square over the noise draws, over the truth's."""
        return _over(math.sqrt(float(self.squares.mean())), self.scale)

    @cached_property
    def ratio(self) -> float:
        """Measured over predicted relative L2 error; 0/0 is 1."""
        measured, predicted = _rms(self.error), math.sqrt(float(self.squares.mean()))
        return 1.0 if measured == predicted else _over(measured, predicted)

    @cached_property
    def match(self) -> float:
        """rms(output - emulation) over rms(output - truth): 0 where the emulated policy is the kernel's; 0/0 is 0."""
        return _over(_rms((self.got - self.emulation)[self.plain]), _rms(self.error))

    @cached_property
    def log_error(self) -> Standing:
        """ln of the root mean square error, among the draws."""
        logs = self.squares.log() / 2
        return _standing(_log(_rms(self.error)), logs)

    @cached_property
    def leans(self) -> Tensor:
        """Sum of error * sign(truth) of each noise draw, (draws,)."""
        return self.drawn @ torch.sign(self.truth[self.plain])

    @cached_property
    def bias(self) -> Standing:
        """Sum of error * sign(truth): how far the output leans away from zero, among the draws."""
        return _standing(float((self.error * torch.sign(self.truth[self.plain])).sum()), self.leans)

    @cached_property
    def ulps(self) -> float:
        """Largest |output - emulation| in spacings of the grid at the emulation."""
        apart = ((self.got - self.emulation).abs() / ulp(self.emulation, self.grid))[self.plain]
        return float(apart.max()) if apart.numel() else 0.0

    @cached_property
    def slack(self) -> Tensor:
        """|error| / radius of every plain element, 0/0 being 0: above 1 is beyond the ceiling."""
        radius = self.radius[self.plain]
        error = self.error.abs()
        return torch.where(error == 0, torch.zeros_like(error), error / radius)


def residual(output: Output, case: Case, policy: Policy, got: Tensor, readings: Readings) -> Residual:
    """The Residual of `output` of one Run."""
    name = output.name
    rounding = policy.rounds.get(name)
    grid = rounding.dtype if rounding else output.dtype_for(case)
    accumulator = policy.sum_of(name).dtype
    return Residual(
        name=name,
        grid=grid,
        rounded=format_of(grid).precision < format_of(accumulator).precision,
        got=got.detach().to("cpu", torch.float64),
        truth=readings.truth[name],
        emulation=readings.emulation[name],
        radius=readings.radius[name],
        noise=torch.stack([draw[name] for draw in readings.noise]),
        jitters=torch.stack([draw[name] for draw in readings.jitters]),
    )


def _moved(a: Tensor, b: Tensor) -> Tensor:
    """Where two values differ; zeros of either sign are equal, and so are two NaNs."""
    return (a != b) & ~(torch.isnan(a) & torch.isnan(b))


def _rms(values: Tensor) -> float:
    return math.sqrt(float(values.pow(2).mean())) if values.numel() else 0.0


def _over(value: float, size: float) -> float:
    if size == 0:
        return 0.0 if value == 0 else math.inf
    return value / size


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _standing(value: float, draws: Tensor) -> Standing:
    return Standing(value, float(draws.mean()), float(draws.std(correction=1)), draws.numel())
