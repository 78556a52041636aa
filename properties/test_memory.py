"""Peak bytes stay within the Contract's formula."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.memory
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_memory(spec: KernelSpec, judge: Judge) -> None:
    judge("memory", spec, "kernels")
