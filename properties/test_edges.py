"""Every shipped kernel is right at its edges and touches nothing else."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.edges
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_edges(judge: Judge, spec: KernelSpec) -> None:
    judge("edges", spec, "kernels")
