"""Empty and boundary Cases, poisoned and guarded memory, and bad arguments."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.edges
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_edges(spec: KernelSpec, judge: Judge) -> None:
    judge("edges", spec, "kernels")
