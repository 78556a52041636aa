"""Each declared fault of the grouped backwards is caught by the law that it names, where its honest spec holds."""

from __future__ import annotations

import itertools

import pytest

import kernels
from kernels.grouped_srelu.faults import FAULTS
from numcheck import Fault
from numcheck.draw import grid
from numcheck.laws import LAWS
from numcheck.profile import QUICK
from tests.kernels.unavailable import skip_unavailable

LAW = {law.name: law for law in LAWS}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.spec.name)
def test_a_fault_is_caught_on_a_case_where_the_honest_spec_holds(fault: Fault) -> None:
    """On the law's own Cases and the named grid; none of them is there for one fault."""
    skip_unavailable(fault)
    law = LAW[fault.law]
    cases = itertools.chain(law.cases(fault.spec), grid(fault.spec, QUICK) if law.drawn else ())
    caught = next((case for case in cases if not law.judge(fault.spec, case, QUICK).held), None)
    assert caught is not None, f"{fault.law} passed {fault.spec.name}: {fault.doc}"
    assert fault.honest is not None
    assert law.judge(fault.honest, caught, QUICK).held


def test_every_law_has_a_fault_to_catch() -> None:
    assert {fault.law for fault in FAULTS} == set(LAW)


def test_each_fault_says_what_is_wrong_and_where_it_comes_from() -> None:
    assert len({fault.spec.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert fault.doc.endswith(".")
        assert fault.source


def test_users_never_import_a_fault() -> None:
    assert not {fault.spec.name for fault in FAULTS} & {spec.name for spec in kernels.ALL}
