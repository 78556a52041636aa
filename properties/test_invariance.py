"""Exact and bounded relations hold between a Case and its transforms."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.invariance
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_invariance(spec: KernelSpec, judge: Judge) -> None:
    judge("invariance", spec, "kernels")
