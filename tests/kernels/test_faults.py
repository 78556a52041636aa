"""Each declared fault is caught by the law that it names, on a Case where its honest spec holds."""

from __future__ import annotations

import pytest

from kernels.mhc_post.faults import FAULTS
from numcheck import Case, Fault
from numcheck.laws import LAWS
from numcheck.profile import QUICK

LAW = {law.name: law for law in LAWS}
# Three blocks and no mixing; then everything at once, with two rows.
NAMED = (
    Case.of(S=1, H=1, D=33),
    Case.of(S=2, H=4, D=49, dtype="bf16", layout="strided", offset=1),
    Case.of(S=2, H=8, D=40, regime="normal", offset=2),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.spec.name)
def test_a_fault_is_caught_by_its_law(fault: Fault) -> None:
    law = LAW[fault.law]
    cases = (*NAMED, *law.cases(fault.spec)) if law.drawn else law.cases(fault.spec)
    caught = next((case for case in cases if not law.judge(fault.spec, case, QUICK).held), None)
    assert caught is not None, f"{fault.law} passed {fault.spec.name}: {fault.doc}"
    assert fault.honest is not None
    assert law.judge(fault.honest, caught, QUICK).held


def test_every_law_has_a_fault_that_only_it_is_asked_to_catch() -> None:
    assert {fault.law for fault in FAULTS} == set(LAW)


def test_users_never_import_a_fault() -> None:
    import kernels

    assert not {fault.spec.name for fault in FAULTS} & {spec.name for spec in kernels.ALL}
