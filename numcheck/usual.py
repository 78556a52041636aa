"""The usual test, which most kernels have, to measure what the laws add.

One shape, values from a normal distribution, every output close to the exact result by
`allclose(rtol=1e-2, atol=1e-2)`. No repeats, no layouts, no guards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from numcheck.capability import Device
from numcheck.case import Case, Fact
from numcheck.execute import execute
from numcheck.laws.measured import saved_alone
from numcheck.oracle import CaseSpace
from numcheck.reading import Truth, read
from numcheck.sample import Sample, sample
from numcheck.spec import KernelSpec
from numcheck.unspecified import blank, unspecified

# What hand-picked tolerances of bf16 kernels look like; the issue names them.
RTOL = ATOL = 1e-2
# A product of sizes that a test runs in a moment, in the interpreter too.
LARGEST = 2**16
DTYPES = ("bf16", "fp16", "fp32", "fp64")


@dataclass(frozen=True, eq=False)
class Usual:
    """The usual test of one problem: its Case, and what every output should be close to."""

    drawn: Sample
    expected: dict[str, Tensor]
    device: Device

    @classmethod
    def of(cls, spec: KernelSpec, device: Device) -> Usual | None:
        """The test of `spec`, in the narrowest dtype in which the kernel itself passes it; None where it passes none.

        Who writes such a test keeps what is green: where cancellation in bf16 is beyond the tolerance, he tests FP32.
        """
        for dtype in (d for d in DTYPES if d in spec.dtypes and d in spec.oracle.space.dtypes):
            case = usual_case(spec, dtype)
            if case is None:
                continue
            drawn = sample(spec.oracle, case, device=device)
            truth = read(spec.oracle, Truth(), drawn.exact())
            usual = cls(drawn, blank(truth, unspecified(spec.oracle, drawn)), device)
            if not usual.catches(spec):
                return usual
        return None

    def catches(self, spec: KernelSpec) -> bool:
        """Whether the test fails: the kernel raises, or an output is not close."""
        run = execute(spec, self.drawn, device=self.device, guard=False, saved=saved_alone(spec, self.drawn))
        if run.error:
            return True
        got = blank(run.outputs, unspecified(spec.oracle, self.drawn))
        return any(not _close(got.get(name), self.expected[name]) for name in spec.judged_for(self.drawn.case))


def usual_case(spec: KernelSpec, dtype: str) -> Case | None:
    """The largest sizes that the problem names together within LARGEST, plain in every other way."""
    space = spec.oracle.space
    if "normal" not in space.regimes:
        return None
    facts = {name: values[0] for name, values in space.facts.items()}
    sizes = _sizes(space)
    while math.prod(sizes.values()) > LARGEST:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] = max(1, sizes[largest] // 2)
    case = Case.from_json({"sizes": sizes, "dtype": dtype, "regime": "normal", "facts": facts})
    if spec.illegal(case) is None:
        return case
    named = sorted(space.edges, key=lambda c: -c.elements)
    plain = (c.but(dtype=dtype, regime="normal", layout="contiguous", offset=0) for c in named)
    return next((c for c in plain if spec.illegal(c) is None and spec.launches(c)), None)


def _sizes(space: CaseSpace) -> dict[str, int]:
    names = dict.fromkeys((*space.sizes, *space.choices))
    return {name: int(max(_named(space, name))) for name in names}


def _named(space: CaseSpace, name: str) -> tuple[Fact, ...]:
    return space.grid.get(name) or space.choices.get(name) or (space.sizes[name][1],)


def _close(got: Tensor | None, expected: Tensor) -> bool:
    if got is None or got.shape != expected.shape:
        return False
    # The truth is read on the CPU, wherever the kernel runs.
    return torch.allclose(got.cpu().to(torch.float64), expected.cpu().to(torch.float64), rtol=RTOL, atol=ATOL)
