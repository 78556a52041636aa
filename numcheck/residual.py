"""A Residual: one output beside its readings, all of them whole. Its Figures are what its gates judge."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from numcheck.figures import Figures, differing, wrong
from numcheck.ulp import format_of

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.case import Case
    from numcheck.contract import Policy
    from numcheck.oracle import Output
    from numcheck.reading import Readings


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
    def figures(self) -> Figures:
        """The figures of the whole output."""
        shape = tuple(self.got.shape)
        figures = Figures(self.name, self.grid, self.rounded, shape, self.noise.shape[0], self.jitters.shape[0])
        part = figures.part(self.got, self.truth, self.emulation, self.radius)
        for k, draw in enumerate(self.noise):
            part.draw(k, draw)
        for k, jitter in enumerate(self.jitters):
            part.jitter(k, jitter)
        part.close()
        return figures

    @cached_property
    def wrong(self) -> Tensor:
        """Elements that break the rule for non-finite values."""
        return wrong(self.got, self.truth, self.emulation, self.radius, self.grid)

    @cached_property
    def plain(self) -> Tensor:
        """Elements whose truth, emulation and output are finite: those that the statistics are taken over."""
        return torch.isfinite(self.truth) & torch.isfinite(self.emulation) & torch.isfinite(self.got)

    @cached_property
    def differs(self) -> Tensor:
        """Elements whose value is not the emulation's; zeros of either sign are equal, and so are two NaNs."""
        return differing(self.got, self.emulation)


def ends(output: Output, case: Case, policy: Policy) -> tuple[str, bool]:
    """The grid on which `output` ends, and whether that is narrower than its accumulator."""
    rounding = policy.rounds.get(output.name)
    grid = rounding.dtype if rounding else output.dtype_for(case)
    accumulator = policy.sum_of(output.name).dtype
    return grid, format_of(grid).precision < format_of(accumulator).precision


def residual(output: Output, case: Case, policy: Policy, got: Tensor, readings: Readings) -> Residual:
    """The Residual of `output` of one Run."""
    name = output.name
    grid, rounded = ends(output, case, policy)
    return Residual(
        name=name,
        grid=grid,
        rounded=rounded,
        got=got.detach().to("cpu", torch.float64),
        truth=readings.truth[name],
        emulation=readings.emulation[name],
        radius=readings.radius[name],
        noise=_stacked([draw[name] for draw in readings.noise], got),
        jitters=_stacked([draw[name] for draw in readings.jitters], got),
    )


def _stacked(draws: list[Tensor], got: Tensor) -> Tensor:
    """FP64 (draws, ...); empty where there are none, which is where nothing asks for a spread."""
    return torch.stack(draws) if draws else torch.empty((0, *got.shape), dtype=torch.float64)
