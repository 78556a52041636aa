"""Stream: a kernel's outputs judged part by part against their readings, never holding a reading whole.

For Cases whose readings no memory holds, production geometry above all, on the device where the outputs are: FP64
truth, emulation, worst case and draws of a stretch of the batch at a time, each beside the same rows of the outputs.
Gates, limits and reasons are those of `numcheck.judge`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from numcheck.clock import timed
from numcheck.errors import InvalidSpec
from numcheck.figures import Figures
from numcheck.figures import Part as Stretch
from numcheck.gate import Gate
from numcheck.judge import malformed, output_gates
from numcheck.reading import JITTERS, Part, parts
from numcheck.reading.slices import upcast
from numcheck.residual import ends
from numcheck.unspecified import blank

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.sample import Sample
    from numcheck.spec import KernelSpec

# Elements of all outputs together, up to which their truth is kept.
KEPT = 2**20
# Noise draws behind a spread: at 16, Student's t puts 2.4e-5 of right figures beyond the limit.
DRAWS = 16


@dataclass(frozen=True)
class Streamed:
    """figures: output -> its figures, but for outputs of whole numbers. truth: output -> FP64 truth on the CPU.

    The truth of outputs of whole numbers, and that of all where they have at most KEPT elements together.
    """

    figures: dict[str, Figures]
    truth: dict[str, Tensor]


def gates(
    spec: KernelSpec,
    sample: Sample,
    outputs: Mapping[str, Tensor],
    *,
    saved: Mapping[str, Tensor] | None = None,
    rows: int | None = None,
    draws: int = DRAWS,
    jitters: int = JITTERS,
    device: str = "cuda",
    radius: bool = True,
    left_open: Mapping[str, Tensor] | None = None,
) -> tuple[Gate, ...]:
    """The gates of every output that `spec` computes, as `numcheck.judge.gates` makes them of whole readings.

    sample, outputs: in the kernel's dtypes, on any device. saved: the forward outputs that the VJP was given, where
    they are not among the outputs (a backward alone). rows: of the batch, read at a time on `device`; None: as many as
    its memory allows. radius: False leaves the worst case out, a fifth of the time, and with it every ceiling.
    left_open: output -> bool mask of the elements that the problem leaves open (numcheck.unspecified).
    Raises InvalidSpec where the problem cannot be read in parts and rows are asked for, ValueError below two draws.
    """
    (made,) = side_by_side(
        [(spec, outputs)],
        sample,
        saved=saved,
        rows=rows,
        draws=draws,
        jitters=jitters,
        device=device,
        radius=radius,
        left_open=left_open,
    )
    return made


def side_by_side(
    claims: Sequence[tuple[KernelSpec, Mapping[str, Tensor]]],
    sample: Sample,
    *,
    saved: Mapping[str, Tensor] | None = None,
    rows: int | None = None,
    draws: int = DRAWS,
    jitters: int = JITTERS,
    device: str = "cuda",
    radius: bool = True,
    left_open: Mapping[str, Tensor] | None = None,
) -> list[tuple[Gate, ...]]:
    """As `gates`, of several specs' outputs of one Sample, beside one set of readings.

    claims: each spec with its outputs. saved: what every VJP was given; None: what the first claim has of it.
    Raises InvalidSpec too where the specs promise different roundings or sums, or compute different problems.
    """
    specs, case = [spec for spec, _ in claims], sample.case
    policies = [spec.contract.policy(case) for spec in specs]
    if any(spec.oracle is not specs[0].oracle for spec in specs) or any(p != policies[0] for p in policies):
        raise InvalidSpec(
            f"{', '.join(spec.name for spec in specs)} differ in problem or policy, so that no one reading "
            "judges them all; give each group that agrees by itself"
        )
    figures = [_empty(spec, sample, outputs, draws, jitters, radius) for spec, outputs in claims]
    kept = _saved(specs[0], sample, claims[0][1]) if saved is None else saved
    forward = any(spec.forward is not None for spec in specs)
    for part in parts(
        specs[0].oracle, policies[0], sample, draws, kept, jitters, rows, device, radius, forward=forward
    ):
        _add([(f, outputs) for f, (_, outputs) in zip(figures, claims, strict=True)], part, left_open or {}, device)
    return [_gates(spec, sample, outputs, f) for f, (spec, outputs) in zip(figures, claims, strict=True)]


def _gates(
    spec: KernelSpec, sample: Sample, outputs: Mapping[str, Tensor], found: Mapping[str, Figures]
) -> tuple[Gate, ...]:
    made: list[Gate] = []
    for name in spec.judged_for(sample.case):
        complaint = malformed(spec, sample.case, outputs, name)
        if complaint:
            made.append(Gate("exact", name, math.inf, 0.0, complaint))
        elif name in found:
            made += output_gates(found[name], spec.caps.get(name))
    return tuple(made)


@timed("oracle")
def streamed(
    spec: KernelSpec,
    sample: Sample,
    outputs: Mapping[str, Tensor],
    *,
    saved: Mapping[str, Tensor] | None = None,
    rows: int | None = None,
    draws: int = DRAWS,
    jitters: int = JITTERS,
    device: str = "cuda",
    radius: bool = True,
    left_open: Mapping[str, Tensor] | None = None,
) -> Streamed:
    """What `gates` judges of every well-formed output that `spec` computes."""
    if draws < 2 or jitters < 2:
        raise ValueError(
            f"{draws} draws and {jitters} jitters; a spread takes two of each, a limit in spreads about 16"
        )
    found = _empty(spec, sample, outputs, draws, jitters, radius)
    kept = _saved(spec, sample, outputs) if saved is None else saved
    policy = spec.contract.policy(sample.case)
    stretches: dict[str, list[Tensor]] = {}
    few = sum(f.elements for f in found.values()) <= KEPT
    for part in parts(
        spec.oracle, policy, sample, draws, kept, jitters, rows, device, radius, spec.forward is not None
    ):
        _add([(found, outputs)], part, left_open or {}, device)
        for name, truth in part.truth.items():
            if few or spec.oracle.result(name).whole:
                stretches.setdefault(name, []).append(truth.cpu())
    joined = {name: torch.cat(rows) if len(rows) > 1 else rows[0] for name, rows in stretches.items()}
    return Streamed(found, blank(joined, left_open or {}))


def _empty(
    spec: KernelSpec, sample: Sample, outputs: Mapping[str, Tensor], draws: int, jitters: int, radius: bool
) -> dict[str, Figures]:
    case, policy = sample.case, spec.contract.policy(sample.case)
    found = {}
    for name in spec.judged_for(case):
        declared = spec.oracle.result(name)
        if not declared.whole and not malformed(spec, case, outputs, name):
            grid, rounded = ends(declared, case, policy)
            found[name] = Figures(name, grid, rounded, declared.shape(case), draws, jitters, bound=radius)
    return found


def _saved(spec: KernelSpec, sample: Sample, outputs: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    if spec.saved == "recomputed":
        return None
    return {name: outputs[name] for name in spec.oracle.saved_for(sample.case) if name in outputs} or None


def _add(
    claims: Sequence[tuple[Mapping[str, Figures], Mapping[str, Tensor]]],
    part: Part,
    left_open: Mapping[str, Tensor],
    device: str,
) -> None:
    """Add one part of the readings, and the same rows of each claim's outputs, to the claim's figures."""
    masks = {name: _rows(left_open[name], part, name).to(device) for name in part.truth if name in left_open}

    def shown(name: str, result: Tensor) -> Tensor:
        # An element that the problem leaves open is zero everywhere, so exact.
        return result.masked_fill(masks[name], 0.0) if name in masks else result

    stretches: list[tuple[str, Stretch]] = []
    for found, outputs in claims:
        for name in part.truth:
            if name in found:
                got = shown(name, upcast(_rows(outputs[name], part, name), device))
                worst = None if part.radius is None else shown(name, part.radius[name])
                truth, emulation = shown(name, part.truth[name]), shown(name, part.emulation[name])
                stretches.append((name, found[name].part(got, truth, emulation, worst, part.start)))
    for number, draw in enumerate(part.noise):
        for name, stretch in stretches:
            stretch.draw(number, shown(name, draw[name]))
    for number, jittered in enumerate(part.jitters):
        for name, stretch in stretches:
            stretch.jitter(number, shown(name, jittered[name]))
    for _, stretch in stretches:
        stretch.close()


def _rows(tensor: Tensor, part: Part, name: str) -> Tensor:
    """The rows of an output that a part has; an output without axes has but one."""
    return tensor[part.start : part.start + part.truth[name].shape[0]] if tensor.ndim else tensor
