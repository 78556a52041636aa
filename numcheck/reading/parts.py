"""All readings of one Sample, whole or in parts: what a kernel is judged by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.clock import timed
from numcheck.contract import Policy
from numcheck.errors import InvalidSpec
from numcheck.oracle import Oracle
from numcheck.reading.kinds import Radius, Truth
from numcheck.reading.pieces import Pieces
from numcheck.reading.slices import Given, rows_that_fit, sliced, upcast, whole_because
from numcheck.reading.spreading import HELD, Emulation, Noise, Shared, Spreading
from numcheck.reading.walk import walk
from numcheck.reading.watch import unnamed

# Jittered emulations behind a flip rate. Flips are rare (2^-16 of 16-bit results), so four suffice to tell none
# from some; the match gate adds the Poisson quantile.
JITTERS = 4
# Seeds of one Sample's noise and jitter draws start this far apart, so that no two draws share one.
STRIDE = 2**20

Results = dict[str, Tensor]


@dataclass(frozen=True)
class Readings:
    """truth, emulation, noise draws, jittered emulations and worst case, each a dict output -> FP64 tensor."""

    truth: Results
    emulation: Results
    noise: tuple[Results, ...]
    jitters: tuple[Results, ...]
    radius: Results


@dataclass(frozen=True)
class Part:
    """Some outputs of a Sample as every reading gives them: rows of the batch from `start` on, or what is summed.

    noise, jitters: one after the other, each read when it is asked for; read them before the next part.
    radius: None where the worst case was not asked for.
    """

    start: int
    truth: Results
    emulation: Results
    radius: Results | None
    noise: Iterator[Results]
    jitters: Iterator[Results]


@timed("oracle")
def readings(
    oracle: Oracle,
    policy: Policy,
    sample: Given,
    draws: int,
    saved: Mapping[str, Tensor] | None = None,
    jitters: int = JITTERS,
    rows: int | None = None,
) -> Readings:
    """All readings of `sample` under `policy`, with `draws` noise draws; the seeds come from the Case's hash.

    rows: of the batch, read at a time; None: as many as memory allows, which is all but for large Cases.
    An oracle that sums without a name is read all the same, with wider draws: name sums for sharper gates.
    """
    held: list[Readings] = []
    for part in parts(oracle, policy, sample, draws, saved, jitters, rows):
        noise, jittered = tuple(part.noise), tuple(part.jitters)
        held.append(Readings(part.truth, part.emulation, noise, jittered, part.radius or {}))
    return Readings(
        truth=_joined([h.truth for h in held]),
        emulation=_joined([h.emulation for h in held]),
        noise=tuple(_joined([h.noise[k] for h in held]) for k in range(draws)),
        jitters=tuple(_joined([h.jitters[k] for h in held]) for k in range(jitters)),
        radius=_joined([h.radius for h in held]),
    )


def parts(
    oracle: Oracle,
    policy: Policy,
    sample: Given,
    draws: int,
    saved: Mapping[str, Tensor] | None = None,
    jitters: int = JITTERS,
    rows: int | None = None,
    device: str = "cpu",
    radius: bool = True,
    forward: bool = True,
) -> Iterator[Part]:
    """The readings of `sample` in parts: stretches of `rows` rows, then the outputs that are sums over all of them.

    saved: the kernel's saved outputs, as they are. forward: False where only gradients are wanted; then the forward is
    left out as long as it saves nothing that `saved` lacks.
    Raises InvalidSpec where rows are asked for of a problem that has to be read whole, or where a partial output is no
    named sum.
    """
    needed = set(oracle.saved_for(sample.case)) - set(saved or ())
    given = _Readers(oracle, policy, sample, draws, jitters, radius, saved, device, forward or bool(needed))
    batch = sample.case[oracle.batch] if oracle.batch else 0
    reason = whole_because(oracle, sample.case)
    if rows is None:
        rows = _fitting(oracle, sample, device)
    elif rows < batch and reason:
        raise InvalidSpec(f"cannot read {sample.case.line()} {rows} rows at a time: {reason}")
    if rows >= batch or reason:
        yield given.slice(0, batch)
        return
    given.divide()
    for start in range(0, batch, rows):
        yield given.slice(start, min(start + rows, batch))
    if oracle.partial:
        yield given.settled()


def _fitting(oracle: Oracle, sample: Given, device: str) -> int:
    if not oracle.batch:
        return 0
    try:
        return rows_that_fit(oracle, sample, device)
    except torch.OutOfMemoryError:
        return 1


class _Readers:
    """Every reading of one Sample, side by side."""

    def __init__(
        self,
        oracle: Oracle,
        policy: Policy,
        sample: Given,
        draws: int,
        jitters: int,
        radius: bool,
        saved: Mapping[str, Tensor] | None,
        device: str,
        forward: bool,
    ) -> None:
        self.oracle, self.sample, self.saved, self.device = oracle, sample, saved, device
        self.forward = forward
        seed = int(sample.case.key, 16)
        self.truth, self.emulation = Truth(), Emulation(policy, shared={})
        self.noise = [Noise(policy, seed + k) for k in range(draws)]
        self.jitters = [Emulation(policy, seed + STRIDE + k) for k in range(jitters)]
        self.radius = Radius(policy) if radius else None
        self.bare = Radius(policy.with_rounds({}))
        self.divided = False
        self.unnamed: bool | None = None

    def divide(self) -> None:
        """From here on slices leave the partial outputs' shares to `settled`."""
        self.divided = True
        every = (self.truth, self.emulation, *self.noise, *self.jitters, self.bare)
        for reading in (*every, *([self.radius] if self.radius else [])):
            reading.pieces = Pieces(frozenset(self.oracle.partial))
        self.emulation.scales = {}

    def slice(self, start: int, stop: int) -> Part:
        """The readings of some rows, all of them where the Sample is not divided."""
        for reading in (self.emulation, *self.noise, *self.jitters):
            # What the slice before shared is as large as its largest tensors.
            reading.begin({})
        exact = self._exact(start, stop)
        saved = self._saved(start, stop)

        def read(reading: Truth, shared: Shared | None = None) -> Results:
            if isinstance(reading, Spreading):
                reading.begin(shared)
            return self._kept(reading, walk(self.oracle, reading, exact, saved, self.forward))

        truth = read(self.truth)
        self._check(truth, stop - start)
        if self.unnamed is None:
            self.unnamed = bool(unnamed(self.oracle, exact))
        shared = _held(read(self.bare)) if self.unnamed else {}
        return self._part(start, truth, read, shared)

    def settled(self) -> Part:
        """The partial outputs, when all slices are in."""

        def read(reading: Truth, shared: Shared | None = None) -> Results:
            if isinstance(reading, Spreading):
                reading.begin(shared)
            names = reading.pieces.before if reading.pieces else ()
            return {name: reading.leave(reading.settle(name)) for name in names}

        truth = read(self.truth)
        self._check(truth, 0)
        return self._part(0, truth, read, _held(read(self.bare)) if self.unnamed else {})

    def _part(self, start: int, truth: Results, read: Any, shared: Shared) -> Part:
        # The worst case first, which needs the most memory, while nothing is shared yet.
        worst = read(self.radius) if self.radius else None
        return Part(
            start,
            truth,
            read(self.emulation, shared),
            worst,
            (read(reading, shared) for reading in self.noise),
            (read(reading, shared) for reading in self.jitters),
        )

    def _kept(self, reading: Truth, results: dict[str, Any]) -> Results:
        """The results of a slice, without those that are kept for `settled`."""
        found = {}
        for name, value in results.items():
            if self.divided and name in self.oracle.partial:
                reading.keep(name, value)
            else:
                found[name] = reading.leave(value)
        return found

    def _exact(self, start: int, stop: int) -> dict[str, Any]:
        if self.divided:
            return sliced(self.oracle, self.sample, start, stop, self.device)
        tensors = {name: upcast(t, self.device) for name, t in self.sample.tensors.items()}
        return {**tensors, **self.sample.scalars}

    def _saved(self, start: int, stop: int) -> Results | None:
        if not self.saved:
            return None
        cut = {n: t[start:stop] if self.divided else t for n, t in self.saved.items()}
        return {name: upcast(t, self.device) for name, t in cut.items()}

    def _check(self, truth: Results, rows: int) -> None:
        """The shapes of a slice's truth, or of what is settled."""
        oracle, case = self.oracle, self.sample.case
        results = oracle.results_for(case) if self.forward else oracle.gradients_for(case)
        wanted = {o.name: o.shape(case) for o in results}
        if self.divided:
            partial = set(oracle.partial)
            kept = self.truth.pieces.before if self.truth.pieces else {}
            missing = [n for n in wanted if n in partial and n not in kept]
            if missing:
                raise InvalidSpec(f"oracle {oracle.name}: it returned no {', '.join(missing)} for {case.line()}")
            wanted = {
                n: s if n in partial else (rows, *s[1:]) for n, s in wanted.items() if (n in partial) == (rows == 0)
            }
        _shaped(oracle, case, truth, wanted)


def _held(bare: Results) -> Shared:
    """Spreads for sums without a name: what the accumulators do to a result is drawn from its worst case."""
    return {("held", name, 0): (None, 2 * HELD * radius) for name, radius in bare.items()}


def _joined(results: list[Results]) -> Results:
    """Rows of the same output one after the other."""
    if len(results) == 1:
        return results[0]
    names = list(dict.fromkeys(name for found in results for name in found))
    rows = {name: [found[name] for found in results if name in found] for name in names}
    return {name: torch.cat(stretches) if len(stretches) > 1 else stretches[0] for name, stretches in rows.items()}


def _shaped(oracle: Oracle, case: Case, truth: Results, wanted: Mapping[str, tuple[int, ...]]) -> None:
    extra = set(truth) - set(wanted)
    if extra:
        raise InvalidSpec(f"oracle {oracle.name}: it returned {', '.join(sorted(extra))}, which {case.line()} lacks")
    for name, shape in wanted.items():
        if name not in truth:
            raise InvalidSpec(f"oracle {oracle.name}: it returned no {name} for {case.line()}")
        got = tuple(truth[name].shape)
        if got != shape:
            raise InvalidSpec(f"oracle {oracle.name}: {name} has shape {got}, it declares {shape}")
