"""Every declared fault is caught by the law that it names."""

from __future__ import annotations

import pytest

from kernels.mhc_post.faults import FAULTS
from numcheck import Fault
from numcheck.plugin import Catch


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.spec.name)
def test_faults(fault: Fault, catch: Catch) -> None:
    catch(fault)
