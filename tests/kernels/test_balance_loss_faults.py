"""Each declared fault is caught by the law that it names, on a Case that the law tries by itself, where the honest
spec holds."""

from __future__ import annotations

import pytest

from kernels.balance_loss import SPECS
from kernels.balance_loss.faults import FAULTS
from numcheck import Fault
from numcheck.draw import cost, grid
from numcheck.laws import LAWS
from numcheck.profile import QUICK
from tests.kernels.unavailable import skip_unavailable

LAW = {law.name: law for law in LAWS}
# Larger Cases take seconds, and show nothing of these faults that a smaller one does not.
LARGEST = 2**17


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.spec.name)
def test_a_fault_is_caught_by_its_law(fault: Fault) -> None:
    skip_unavailable(fault)
    law = LAW[fault.law]
    tried = (*law.cases(fault.spec), *(grid(fault.spec, QUICK) if law.drawn else ()))
    cases = sorted((case for case in tried if case.elements <= LARGEST), key=cost)
    caught = next((case for case in cases if not law.judge(fault.spec, case, QUICK).held), None)
    assert caught is not None, f"{fault.law} passed {fault.spec.name}: {fault.doc}"
    assert fault.honest is not None
    assert law.judge(fault.honest, caught, QUICK).held


def test_every_law_has_a_fault_that_only_it_is_asked_to_catch() -> None:
    assert {fault.law for fault in FAULTS} == set(LAW)


def test_names_are_faults_names_and_sources_are_given() -> None:
    names = [fault.spec.name for fault in FAULTS]
    assert len(set(names)) == len(names)
    assert not set(names) & {spec.name for spec in SPECS}
    assert all(fault.source and fault.doc for fault in FAULTS)
