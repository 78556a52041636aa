"""Every declared fault is caught by the law that it names."""

from __future__ import annotations

import pytest

from kernels.grouped_srelu.faults import FAULTS as GROUPED_SRELU
from kernels.mhc_post.faults import FAULTS as MHC_POST
from numcheck import Fault
from numcheck.plugin import Catch

FAULTS = (*MHC_POST, *GROUPED_SRELU)


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.spec.name)
def test_faults(fault: Fault, catch: Catch) -> None:
    catch(fault)
