"""The oracle of every shipped family agrees with its mpmath twin at 50 digits."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import Oracle
from numcheck.certify import certify

ORACLES = {spec.oracle.name: spec.oracle for spec in ALL}


@pytest.mark.parametrize("oracle", ORACLES.values(), ids=ORACLES)
def test_oracle_is_certified(oracle: Oracle) -> None:
    certificate = certify(oracle)
    assert certificate.status == "CERTIFIED", str(certificate)
