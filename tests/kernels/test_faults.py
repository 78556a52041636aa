"""Each declared fault is caught by the law that it names, on a Case where its honest spec holds."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import kernels
from kernels.mhc_post.faults import FAULTS
from numcheck import Case, Fault
from numcheck.laws import LAWS
from numcheck.load import all_faults
from numcheck.profile import QUICK
from tests.kernels.unavailable import skip_unavailable

LAW = {law.name: law for law in LAWS}
# Three blocks and no mixing; then everything at once, with two rows.
NAMED = (
    Case.of(S=1, H=1, D=33),
    Case.of(S=2, H=4, D=49, dtype="bf16", layout="strided", offset=1),
    Case.of(S=2, H=8, D=40, regime="normal", offset=2),
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.spec.name)
def test_a_fault_is_caught_by_its_law(fault: Fault) -> None:
    skip_unavailable(fault)
    law = LAW[fault.law]
    cases = (*NAMED, *law.cases(fault.spec)) if law.drawn else law.cases(fault.spec)
    caught = next((case for case in cases if not law.judge(fault.spec, case, QUICK).held), None)
    assert caught is not None, f"{fault.law} passed {fault.spec.name}: {fault.doc}"
    assert fault.honest is not None
    assert law.judge(fault.honest, caught, QUICK).held


def test_every_law_has_a_fault_that_only_it_is_asked_to_catch() -> None:
    assert {fault.law for fault in FAULTS} == set(LAW)


def test_each_family_declares_ten_and_each_says_what_it_stands_for() -> None:
    faults = all_faults("kernels")
    families = Counter(fault.spec.name.partition("_")[0] for fault in faults)
    assert set(families) == {spec.name.partition("_")[0] for spec in kernels.ALL}
    assert min(families.values()) >= 10
    assert all(fault.doc and fault.source and fault.honest for fault in faults)


def test_users_never_import_a_fault() -> None:
    """Of any family: what is broken on purpose has names of its own, and no other module of the kernels imports it."""
    broken = {fault.spec.name for fault in all_faults("kernels")}
    assert len(broken) > len(FAULTS)
    assert not broken & {spec.name for spec in kernels.ALL}
    for file in Path(kernels.__file__).parent.rglob("*.py"):
        if file.stem not in ("faults", "faulty_kernels"):
            named = (_imported(node) for node in ast.walk(ast.parse(file.read_text())))
            assert not [name for names in named for name in names if "fault" in name], file


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []
