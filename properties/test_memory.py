"""Every shipped kernel stays within its own workspace formula."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.memory
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_memory(judge: Judge, spec: KernelSpec) -> None:
    judge("memory", spec, "kernels")
