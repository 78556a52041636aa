"""Every shipped kernel stays within the limits that its Contract implies."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.accuracy
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_accuracy(judge: Judge, spec: KernelSpec) -> None:
    judge("accuracy", spec, "kernels")
