"""The same Case gives the same bits, as integers, as far as each output's order promise goes."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.bitwise
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_bitwise(spec: KernelSpec, judge: Judge) -> None:
    judge("bitwise", spec, "kernels")
