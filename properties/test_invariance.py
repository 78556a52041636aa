"""Every shipped kernel follows when its Case is changed in a known way."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.invariance
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_invariance(judge: Judge, spec: KernelSpec) -> None:
    judge("invariance", spec, "kernels")
