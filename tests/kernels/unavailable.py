"""What the tests of every family's faults do with one that only a device shows."""

from __future__ import annotations

import pytest

from numcheck import Fault
from numcheck.capability import Unavailable


def skip_unavailable(fault: Fault) -> None:
    """Skip a fault that cannot be wrong on a CPU, with the reason that its spec gives."""
    found = fault.spec.available("cpu")
    if isinstance(found, Unavailable):
        pytest.skip(f"UNAVAILABLE: {found.reason}")
