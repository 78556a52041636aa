"""The intended kernel ran, and a determinism request is honoured or refused loudly."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.plugin import Judge


@pytest.mark.evidence
@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_evidence(spec: KernelSpec, judge: Judge) -> None:
    judge("evidence", spec, "kernels")
