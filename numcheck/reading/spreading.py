"""Emulation and Noise: the readings that know how far each point and each sum of a declared Policy may be disturbed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from numcheck.contract import Policy, Rounding
from numcheck.reading.addends import Scattered, begun
from numcheck.reading.draws import Draws, compact
from numcheck.reading.kinds import Declared, Dims, merged, term_count
from numcheck.reading.large import Scales, Spread, product_spread, scatter_spread
from numcheck.reading.tree import replay, replays, spread, tf32_step
from numcheck.ulp import disturbance, flushed, round_to

# A named point that does not round lower is a value held in the accumulator's dtype. Few kernels take more than
# three roundings from one named point to the next, so noise there has the variance of three: a width of so many ulps.
HELD = 3**0.5
# Sets the stream of a reading's lean apart from that of its draws.
LEAN = 1

Key = tuple[str, str, int]
Shared = dict[Key, Spread]


class Spreading(Declared):
    """Keeps how far each point and each sum may be disturbed, found once and shared by all draws."""

    def __init__(self, policy: Policy, seed: int, shared: Shared | None = None) -> None:
        super().__init__(policy)
        self.seed, self.shared = seed, shared if shared is not None else {}
        # How much of truncation's mean the sums of rounding "any" take: one share a reading, since a device rounds all
        # of its sums alike.
        self.lean = float(np.random.default_rng([seed, LEAN]).random())
        # What large sums showed of themselves, kept from slice to slice; None where there is but one.
        self.scales: Scales | None = None
        self.start()

    def start(self) -> None:
        self._draws = Draws(self.seed)
        self.begin()

    def begin(self, shared: Shared | None = None) -> None:
        """The next slice of a batch: the draws run on, the spreads are `shared` by those who read this slice."""
        self._calls: dict[tuple[str, str], int] = {}
        self._fresh: Any = None
        if shared is not None:
            self.shared = shared

    def settle(self, name: str) -> Any:
        assert self.pieces is not None
        self._fresh = self.pieces.before[name]
        return self._at(name, self._fresh)

    def _known(self, kind: str, name: str, found: Callable[[], Spread]) -> Spread:
        """What is shared under this call of this name; found by whoever comes first."""
        count = self._calls.get((kind, name), 0)
        self._calls[kind, name] = count + 1
        key = (kind, name, count)
        if key not in self.shared:
            mean, deviation = found()
            self.shared[key] = (mean, None if deviation is None else compact(deviation))
        return self.shared[key]

    def _step(self, name: str, value: Tensor, rounding: Rounding) -> Tensor | None:
        """The ulp of each element that the point `name` rounds; None where it rounds none."""
        return self._known("point", name, lambda: _some(disturbance(value, rounding.dtype, rounding.mode)))[1]

    def _holding(self, name: str, value: Tensor) -> Tensor | None:
        """HELD ulps of each element in the dtype that it is held in; None for a sum, which has its own spread."""
        sure = value is self._fresh or self.held == "fp64"

        def found() -> Spread:
            return (None, None) if sure else _some(disturbance(value, self.held).mul_(HELD))

        return self._known("held", name, found)[1]

    def _uniform(self, step: Tensor) -> Tensor:
        """Uniform within half a step of zero."""
        return self._draws.uniform(step).mul_(step)

    def _flush(self, name: str, value: Tensor) -> Tensor:
        return flushed(value, self.held) if self._flushes(name) else value

    def _hold(self, name: str, value: Tensor) -> Tensor:
        step = self._holding(name, value)
        return value if step is None else value + self._uniform(step)

    def _spread_of_total(self, name: str, terms: Tensor, dim: Dims) -> Spread:
        """Mean and standard deviation of the error of the total called `name`."""
        start = self._before(name)
        how = self.policy.sum_of(name)
        return self._known("total", name, lambda: spread(begun(start, merged(terms, dim)), how))

    def _spread_of_product(self, name: str, a: Tensor, b: Tensor, onto: Tensor | None) -> Spread:
        """The same of a matrix product; inputs that round to tf32 are not part of it."""
        start, how = self._before(name), self.policy.sum_of(name)
        first = onto if start is None else start
        return self._known("total", name, lambda: product_spread(a, b, how, first, self.scales, name))

    def _spread_of_scatter(self, name: str, terms: Scattered) -> Spread:
        start = self._before(name)
        how = self.policy.sum_of(name)
        terms = terms if start is None else replace(terms, onto=start)
        return self._known("total", name, lambda: scatter_spread(terms, how, self.scales, name))

    def _inputs(self, name: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The factors of a matrix product as it takes them: each element off by up to half a tf32 ulp, if at all.

        An input's error is one error for the whole row or column of products that it enters.
        """
        if self.policy.sum_of(name).dot != "tf32":
            return a, b
        return self._input(name + ".a", a), self._input(name + ".b", b)

    def _input(self, name: str, x: Tensor) -> Tensor:
        step = self._known("tf32", name, lambda: _some(tf32_step(x)))[1]
        return x if step is None else x + self._uniform(step)

    def _disturb(self, name: str, total: Tensor, spread: Spread) -> Tensor:
        """A sum just made, disturbed in place."""
        mean, deviation = spread
        if mean is not None:
            total += mean * self.lean if self.policy.sum_of(name).rounding == "any" else mean
        if deviation is not None:
            total += self._draws.normal(deviation).mul_(deviation)
        return total

    def _made(self, total: Tensor) -> Tensor:
        """`total`, known as a sum until the next one: a point right behind it holds what the sum held."""
        self._fresh = total
        return total

    def _drawn_total(self, name: str, terms: Tensor, dim: Dims) -> Tensor:
        return self._made(self._disturb(name, terms.sum(dim), self._spread_of_total(name, terms, dim)))

    def _drawn_product(self, name: str, a: Tensor, b: Tensor, onto: Tensor | None) -> Tensor:
        found = self._spread_of_product(name, a, b, onto)
        a, b = self._inputs(name, a, b)
        return self._made(self._disturb(name, super()._multiply(name, a, b, onto), found))

    def _drawn_scatter(self, name: str, terms: Tensor, index: Tensor, rows: int, onto: Tensor | None) -> Tensor:
        found = self._spread_of_scatter(name, Scattered(terms, index, rows, onto))
        return self._made(self._disturb(name, super()._scatter(name, terms, index, rows, onto), found))


class Emulation(Spreading):
    """Each declared point rounds; short chains in a declared order are replayed add by add; all else is FP64.

    jitter: a seed. Then noise of the accumulators' size goes in before every point, and no chain is replayed: what
    differs from the plain emulation is what a right kernel may differ in.
    shared: filled with the spread of every point and sum on the way, for the noise draws.
    """

    def __init__(self, policy: Policy, jitter: int | None = None, shared: Shared | None = None) -> None:
        super().__init__(policy, jitter or 0, shared)
        self._jittered, self._sharing = jitter is not None, shared is not None

    def _at(self, name: str, value: Any) -> Any:
        rounding = self._rounding(name)
        if self._jittered:
            value = self._hold(name, value)
        elif self._sharing:
            self._holding(name, value)
            if rounding:
                self._step(name, self._flush(name, value), rounding)
        value = self._flush(name, value)
        return value if rounding is None else round_to(value, rounding.dtype, rounding.mode)

    def _add(self, name: str, terms: Any, dim: Dims) -> Any:
        if self._jittered:
            return self._drawn_total(name, terms, dim)
        if self._sharing:
            self._spread_of_total(name, terms, dim)
        how = self.policy.sum_of(name)
        # A chain that runs on over the slices of a batch is longer than what one of them shows of it.
        partial = self.pieces is not None and name in self.pieces.names
        short = not partial and replays(how, term_count(terms, dim))
        return self._made(replay(merged(terms, dim), how) if short else terms.sum(dim))

    def _multiply(self, name: str, a: Any, b: Any, onto: Any) -> Any:
        if self._jittered:
            return self._drawn_product(name, a, b, onto)
        if self._sharing:
            self._spread_of_product(name, a, b, onto)
        return self._made(super()._multiply(name, a, b, onto))

    def _scatter(self, name: str, terms: Any, index: Tensor, rows: int, onto: Any) -> Any:
        if self._jittered:
            return self._drawn_scatter(name, terms, index, rows, onto)
        if self._sharing:
            self._spread_of_scatter(name, Scattered(terms, index, rows, onto))
        return self._made(super()._scatter(name, terms, index, rows, onto))


class Noise(Spreading):
    """Each declared point is off by up to half an ulp, uniformly; each sum by the spread of its declared tree.

    shared: the spreads, kept among the draws of one Sample; empty at first, or filled by an Emulation.
    """

    def _at(self, name: str, value: Any) -> Any:
        rounding = self._rounding(name)
        if rounding is None:
            return self._flush(name, self._hold(name, value))
        value = self._flush(name, value)
        step = self._step(name, value, rounding)
        if step is None:
            return value
        if rounding.mode == "truncate":
            return value - torch.sign(value) * (self._uniform(step) + step / 2)
        return value + self._uniform(step)

    def _add(self, name: str, terms: Any, dim: Dims) -> Any:
        return self._drawn_total(name, terms, dim)

    def _multiply(self, name: str, a: Any, b: Any, onto: Any) -> Any:
        return self._drawn_product(name, a, b, onto)

    def _scatter(self, name: str, terms: Any, index: Tensor, rows: int, onto: Any) -> Any:
        return self._drawn_scatter(name, terms, index, rows, onto)


def _some(step: Tensor) -> Spread:
    """A step as a spread; None where it is zero everywhere."""
    return None, step if bool((step != 0).any()) else None
