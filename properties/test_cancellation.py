"""A small result made of large terms survives, in every shipped kernel that promises it."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.cancellation
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_cancellation(judge: Judge, spec: KernelSpec) -> None:
    judge("cancellation", spec, "kernels")
