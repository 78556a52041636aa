"""Subject: one Case that ran, and what a relation needs to run it again in a changed form."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

from numcheck.capability import Device
from numcheck.execute import Run, execute
from numcheck.laws.measured import saved_alone
from numcheck.laws.relation import Held
from numcheck.reading import Radius, nearest, read
from numcheck.sample import Sample, exact
from numcheck.spec import KernelSpec
from numcheck.ulp import FORMATS
from numcheck.unspecified import blank, unspecified

# What a relation yields: an output's name, and how it fared.
Relations = Iterator[tuple[str, Held]]


class Broken(Exception):
    """The kernel raised for a changed Case although it had run for the Case itself."""


@dataclass
class Subject:
    """One Case that ran, with what its relations need."""

    spec: KernelSpec
    sample: Sample
    device: Device
    run: Run
    radii: dict[str, Tensor] = field(default_factory=dict)

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of the outputs that the spec computes for this Case."""
        return self.spec.judged_for(self.sample.case)

    @cached_property
    def outputs(self) -> dict[str, Tensor]:
        """The Run's outputs, zero where the problem leaves an element open, as in whatever they are set against."""
        return self.blanked(self.run.outputs, self.sample)

    def blanked(self, tensors: Mapping[str, Tensor], changed: Sample) -> dict[str, Tensor]:
        """Results for a changed Sample, zero where the problem leaves an element open."""
        return blank(tensors, unspecified(self.spec.oracle, changed))

    def rerun(self, changed: Sample, what: str, *, saved: bool = False) -> Mapping[str, Tensor]:
        """Outputs for a changed Sample; `saved`: the backward alone, on this run's saved outputs."""
        spec = replace(self.spec, forward=None) if saved else self.spec
        kept = dict(self.run.saved) if saved else saved_alone(spec, changed)
        run = execute(spec, changed, device=self.device, guard=False, saved=kept)
        if run.error:
            raise Broken(f"{what}: {run.error}")
        return self.blanked(run.outputs, changed)

    def radius(self, changed: Sample, *, saved: bool = False) -> dict[str, Tensor]:
        """Worst-case error of each output for a changed Sample of the same sizes; `saved` as in `rerun`."""
        policy = self.spec.contract.policy(changed.case)
        given = self.run.saved if saved else saved_alone(self.spec, changed) or {}
        kept = {name: exact(t) for name, t in given.items()}
        worst = read(self.spec.oracle, Radius(policy), changed.exact(), kept or None, nearest(changed))
        return self.blanked(worst, changed)

    def whole(self, output: str) -> bool:
        """Whether an output holds integers or bools, which are exact or wrong."""
        return self.spec.oracle.result(output).whole

    def huge(self, output: str) -> float:
        """The largest number of an output's format; what is beyond it is infinite there."""
        dtype = self.spec.oracle.result(output).dtype_for(self.sample.case)
        return math.inf if self.whole(output) else FORMATS[dtype].huge

    def exactly(self, output: str) -> bool:
        """Whether the same launch has to give the same bits: not where atomics may arrive in any order."""
        return self.whole(output) or self.spec.contract.order_of(output, self.sample.case) != "any"

    def same_tree(self, output: str) -> bool:
        """Whether another layout or another number of rows has to give the same bits.

        A compiler specialises on strides and alignment, and a reduction on its shape; where the Contract leaves the
        tree of a sum open, each specialisation may take its own.
        """
        tree = self.spec.contract.policy(self.sample.case).sum_of(output).tree
        return self.whole(output) or (self.exactly(output) and tree != "any")

    @property
    def own(self) -> dict[str, Tensor]:
        """Worst-case error of each output of the Case itself."""
        if not self.radii:
            self.radii.update(self.radius(self.sample))
        return self.radii
