"""Every shipped kernel ran, and was seen to."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.evidence
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_evidence(judge: Judge, spec: KernelSpec) -> None:
    judge("evidence", spec, "kernels")
