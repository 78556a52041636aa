"""No source mutant of a shipped kernel survives without a written reason.

These are the kernels of which every change is asked; `numcheck faults` asks it of all (docs/howto/grade-the-checks.md).
"""

from __future__ import annotations

import pytest

import kernels
from numcheck import KernelSpec
from numcheck.mutate import functions
from numcheck.plugin import Kill

# One kernel a family: two launches, slots, a sum in order, strides, masks, both dtypes.
NAMED = ("mhc_post.triton_split_ordered",)
SPECS = {spec.name: spec for spec in kernels.ALL if spec.name in NAMED and callable(spec.must_run[0])}
PARTS = [(spec, name) for spec in SPECS.values() for name in functions(spec)]


@pytest.mark.faults
@pytest.mark.parametrize(("spec", "function"), PARTS, ids=lambda part: getattr(part, "name", part))
def test_mutants(spec: KernelSpec, function: str, kill: Kill) -> None:
    kill(spec, function)
