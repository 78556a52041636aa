"""The kinds of reading: truth, a recording of it, emulation, noise and radius of a declared Policy.

A kind decides what a named point does to its value and how a named total adds its terms; the oracle's code is the
same for all of them. `enter` and `leave` turn tensors into the kind's numbers and back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from numcheck.contract import Policy, Rounding
from numcheck.reading.ball import Ball
from numcheck.reading.enclosure import ball_of
from numcheck.reading.tree import growth, last, replay, replays, spread
from numcheck.ulp import disturbance, format_of, round_to, unit_roundoff

# A named point that does not round lower is a value held in the accumulator's dtype. Few kernels take more than
# three roundings from one named point to the next, so noise there has the variance of three.
HELD_ROUNDINGS = 3
# Point name of a total's single terms.
TERMS = ".terms"

Key = tuple[str, str, int]
Spread = tuple[Tensor | None, Tensor | None]


class Truth:
    """No point rounds, every sum is FP64's."""

    def start(self) -> None:
        """Called once before each walk through the oracle."""

    def enter(self, value: Tensor) -> Any:
        """An input as this reading's number."""
        return value

    def leave(self, value: Any) -> Tensor:
        """A result as a tensor."""
        return value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=torch.float64)

    def at(self, name: str, value: Any) -> Any:
        """The value at the point `name`."""
        return value

    def total(self, name: str, terms: Any, dim: int | tuple[int, ...], *, onto: Any = None, apart: str = "") -> Any:
        """The sum of `terms` over `dim`; see `numcheck.oracle.Reading.total`."""
        if onto is None:
            return self._add(name, self._each(name, terms), dim)
        if apart and self._rounding(apart):
            inside = self.at(apart, self._add(apart, self._each(apart, terms), dim))
            return self._add(name, torch.stack([onto, inside]), 0)
        chain = [onto.unsqueeze(-1), self._each(name, _last(terms, dim))]
        return self._add(name, torch.cat(chain, -1), -1)

    def _rounding(self, name: str) -> Rounding | None:
        return None

    def _each(self, name: str, terms: Any) -> Any:
        return self.at(name + TERMS, terms) if self._rounding(name + TERMS) else terms

    def _add(self, name: str, terms: Any, dim: int | tuple[int, ...]) -> Any:
        return terms.sum(dim)


class Recording(Truth):
    """Truth that keeps each total's terms: `terms[name] = (terms, dim)`, the first addend of a chain included."""

    def __init__(self) -> None:
        self.terms: dict[str, tuple[Tensor, int | tuple[int, ...]]] = {}

    def start(self) -> None:
        self.terms.clear()

    def _add(self, name: str, terms: Any, dim: int | tuple[int, ...]) -> Any:
        self.terms[name] = (terms, dim)
        return super()._add(name, terms, dim)


class _Declared(Truth):
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


class _Spreading(_Declared):
    """Keeps how far each point and each sum may be disturbed, found once and shared by all draws."""

    def __init__(self, policy: Policy, seed: int, shared: dict[Key, Spread] | None = None) -> None:
        super().__init__(policy)
        self.seed, self.shared = seed, shared if shared is not None else {}
        self.start()

    def start(self) -> None:
        self._generator: np.random.Generator | None = None
        self._calls: dict[tuple[str, str], int] = {}
        self._fresh: Any = None

    @property
    def _random(self) -> np.random.Generator:
        """PCG64: its stream and numpy's methods on it are stable across versions, unlike a device's generator."""
        if self._generator is None:
            self._generator = np.random.Generator(np.random.PCG64(self.seed))
        return self._generator

    def _shared(self, kind: str, name: str) -> tuple[Key, bool]:
        count = self._calls.get((kind, name), 0)
        self._calls[kind, name] = count + 1
        key = (kind, name, count)
        return key, key in self.shared

    def _step(self, name: str, value: Tensor, rounding: Rounding) -> Tensor | None:
        """The ulp of each element that the point `name` rounds; None where it rounds none."""
        key, known = self._shared("point", name)
        if not known:
            step = disturbance(value, rounding.dtype, rounding.mode)
            self.shared[key] = (None, step if bool((step != 0).any()) else None)
        return self.shared[key][1]

    def _holding(self, name: str, value: Tensor) -> Tensor | None:
        """The ulp of each element in the dtype that it is held in; None for a sum, which has its own spread."""
        key, known = self._shared("held", name)
        if not known:
            step = None if value is self._fresh or self.held == "fp64" else disturbance(value, self.held)
            self.shared[key] = (None, step if step is not None and bool((step != 0).any()) else None)
        return self.shared[key][1]

    def _spread(self, name: str, terms: Tensor, dim: int | tuple[int, ...]) -> Spread:
        """Mean and standard deviation of the error of the sum called `name`."""
        key, known = self._shared("total", name)
        if not known:
            self.shared[key] = spread(_last(terms, dim), self.policy.sum_of(name))
        return self.shared[key]

    def _uniform(self, step: Tensor) -> Tensor:
        """Uniform within half a step of zero."""
        return torch.from_numpy(self._random.random(step.shape, np.float32)).to(torch.float64).sub_(0.5).mul_(step)

    def _hold(self, name: str, value: Tensor) -> Tensor:
        step = self._holding(name, value)
        return value if step is None else value + self._uniform(step) * HELD_ROUNDINGS**0.5

    def _disturb(self, total: Tensor, spread: Spread) -> Tensor:
        mean, deviation = spread
        if mean is not None:
            total = total + mean
        if deviation is not None:
            normal = torch.from_numpy(self._random.standard_normal(deviation.shape, np.float32))
            total = total + normal.to(torch.float64) * deviation
        return total


class Emulation(_Spreading):
    """Each declared point rounds; short chains in a declared order are replayed add by add; all else is FP64.

    jitter: a seed. Then noise of the accumulators' size goes in before every point, and no chain is replayed: what
    differs from the plain emulation is what a right kernel may differ in.
    shared: filled with the spread of every point and sum on the way, for the noise draws.
    """

    def __init__(self, policy: Policy, jitter: int | None = None, shared: dict[Key, Spread] | None = None) -> None:
        super().__init__(policy, jitter or 0, shared)
        self._jittered, self._sharing = jitter is not None, shared is not None

    def at(self, name: str, value: Any) -> Any:
        rounding = self._rounding(name)
        if self._jittered:
            value = self._hold(name, value)
        elif self._sharing:
            self._holding(name, value)
            if rounding:
                self._step(name, value, rounding)
        return value if rounding is None else round_to(value, rounding.dtype, rounding.mode)

    def _add(self, name: str, terms: Any, dim: int | tuple[int, ...]) -> Any:
        how, count = self.policy.sum_of(name), _count(terms, dim)
        if self._jittered:
            self._fresh = self._disturb(terms.sum(dim), self._spread(name, terms, dim))
            return self._fresh
        if self._sharing:
            self._spread(name, terms, dim)
        self._fresh = replay(_last(terms, dim), how) if replays(how, count) else terms.sum(dim)
        return self._fresh


class Noise(_Spreading):
    """Each declared point is off by up to half an ulp, uniformly; each sum by the spread of its declared tree.

    shared: the spreads, kept among the draws of one Sample; empty at first, or filled by an Emulation.
    """

    def at(self, name: str, value: Any) -> Any:
        rounding = self._rounding(name)
        if rounding is None:
            return self._hold(name, value)
        step = self._step(name, value, rounding)
        if step is None:
            return value
        if rounding.mode == "truncate":
            return value - torch.sign(value) * (self._uniform(step) + step / 2)
        return value + self._uniform(step)

    def _add(self, name: str, terms: Any, dim: int | tuple[int, ...]) -> Any:
        self._fresh = self._disturb(terms.sum(dim), self._spread(name, terms, dim))
        return self._fresh


class Radius(_Declared):
    """The worst case of every element: (value, radius) numbers through the unchanged code."""

    def enter(self, value: Tensor) -> Any:
        return Ball.exact(value, unit_roundoff(self.held)) if value.is_floating_point() else value

    def leave(self, value: Any) -> Tensor:
        """The radius; a result below the held dtype's normal range may be flushed to zero on the way."""
        ball, normal = ball_of(value), format_of(self.held).normal
        below = (ball.value != 0) & (ball.value.abs() < normal)
        return ball.radius + below * normal

    def at(self, name: str, value: Any) -> Any:
        rounding = self._rounding(name)
        if rounding is None:
            return value
        return ball_of(value).rounded(rounding)

    def _add(self, name: str, terms: Any, dim: int | tuple[int, ...]) -> Any:
        ball, how = ball_of(terms), self.policy.sum_of(name)
        grown = growth(how, _count(ball, dim))
        size = ball.bound.sum(dim)
        radius = ball.radius.sum(dim) + torch.where(size > 0, grown * size, 0.0)
        return Ball(ball.value.sum(dim), radius, ball.unit)


def _last(terms: Any, dim: int | tuple[int, ...]) -> Any:
    if isinstance(terms, Ball):
        return Ball(last(terms.value, dim), last(terms.radius, dim), terms.unit, terms.sure)
    return last(terms, dim)


def _count(terms: Any, dim: int | tuple[int, ...]) -> int:
    count = 1
    for axis in (dim,) if isinstance(dim, int) else dim:
        count *= terms.shape[axis]
    return count
