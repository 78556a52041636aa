"""A small exact result made of large terms survives, where the Contract promises it."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.cancellation
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_cancellation(spec: KernelSpec, judge: Judge) -> None:
    judge("cancellation", spec, "kernels")
