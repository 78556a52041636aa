"""Every error is one that the Contract's own roundings and sums explain."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.accuracy
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_accuracy(spec: KernelSpec, judge: Judge) -> None:
    judge("accuracy", spec, "kernels")
