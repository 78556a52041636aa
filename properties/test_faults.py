"""Every declared fault of a shipped family is caught by the law that it names."""

from __future__ import annotations

import pytest

from kernels import ALL
from kernels.mhc_post.faults import FAULTS
from numcheck import Fault
from numcheck.plugin import Catch


def test_no_fault_is_among_what_users_import() -> None:
    assert not {spec.name for spec in ALL} & {fault.spec.name for fault in FAULTS}


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.spec.name)
def test_faults(catch: Catch, fault: Fault) -> None:
    catch(fault)
