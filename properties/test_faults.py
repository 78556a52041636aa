"""Every declared fault is caught by the law that it names."""

from __future__ import annotations

import pytest

from numcheck import Fault
from numcheck.load import all_faults
from numcheck.plugin import Catch

# Those of every family: the modules called `faults` in kernels/.
FAULTS = all_faults("kernels")


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.spec.name)
def test_faults(fault: Fault, catch: Catch) -> None:
    catch(fault)
