"""Helpers: the verdicts of other processes are those of this one, also after one of them has died."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from numcheck.explore import explore
from numcheck.helpers import helped
from numcheck.laws import LAWS
from numcheck.load import find
from numcheck.profile import CI
from tests.run.mortal import DEADLY

LAW = next(law for law in LAWS if law.name == "accuracy")
FEW = replace(CI, examples=1, slow=0)


def test_a_case_is_judged_by_a_helper_or_after_its_death_here_and_alike() -> None:
    spec, took, told = find("tests.run.mortal", "mortal"), {}, {True: [], False: []}
    for alone in (True, False):
        ahead = {} if alone else {"ahead": partial(helped, count=1, took=took.__setitem__)}
        outcome = explore(LAW, spec, FEW, lambda *row, alone=alone: told[alone].append(row), **ahead)
        assert outcome.status.held
    named = {case["N"]: case for case, _, phase in told[True] if phase == "grid"}
    assert took[named[8]]["kernel"] > 0
    assert named[DEADLY] not in took
    assert {64, DEADLY, 8} <= set(named)
    assert [(case, v.outputs, v.gates, v.hashes) for case, v, _ in told[True]] == [
        (case, v.outputs, v.gates, v.hashes) for case, v, _ in told[False]
    ]
