"""The same Case gives the same bits, for every shipped kernel, as far as each output promises."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.bitwise
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_bitwise(judge: Judge, spec: KernelSpec) -> None:
    judge("bitwise", spec, "kernels")
