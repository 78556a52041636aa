"""post=[1.003, 1], comb=.5, x=1, residual=-1: 0.003 is left of terms that add up to 2, and must be left."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from numcheck import Case, KernelSpec
from numcheck.errors import InvalidSpec
from numcheck.execute import execute
from numcheck.laws.accuracy import ACCURACY
from numcheck.laws.cancellation import CANCELLATION
from numcheck.oracles import mhc_post
from numcheck.profile import QUICK
from numcheck.sample import sample
from numcheck.verdict import Status
from tests.meta.mhc import OLD, OLD_POINTS, mhc

REPORTED = next(c for c in mhc_post.cancellations if c.name == "reported")
OLD_KERNEL = mhc("old", rounds=OLD_POINTS)


def out(spec: KernelSpec) -> list[float]:
    run = execute(spec, sample(mhc_post, REPORTED.case, values=REPORTED.values))
    return run.outputs["out"].flatten().tolist()


def test_fp32_coefficients_keep_what_the_old_policy_loses() -> None:
    assert out(mhc()) == [0.0030059814453125, 0.0]
    assert out(OLD_KERNEL) == [0.0, 0.0]


def test_the_right_kernel_survives() -> None:
    assert CANCELLATION.judge(mhc(), REPORTED.case, QUICK).outputs["out"].status is Status.PASS


def test_the_old_policy_under_the_fp32_contract_fails_cancellation() -> None:
    verdict = CANCELLATION.judge(OLD_KERNEL, REPORTED.case, QUICK)
    assert verdict.status is Status.FAIL
    worst = next(g for g in verdict.gates if not g.held)
    assert worst.value == 1.0
    assert "got=0.0 expected=0.0030059814453125 at [0, 0, 0]" in verdict.outputs["out"].where


def test_the_old_policy_under_its_own_contract_promises_no_survival() -> None:
    verdict = CANCELLATION.judge(OLD_KERNEL.but(contract=OLD), REPORTED.case, QUICK)
    assert verdict.status is Status.VACUOUS
    assert "does not promise survival" in verdict.outputs["out"].why


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_drawn_cancelling_cases_hold_and_say_something(dtype: str) -> None:
    verdicts = [CANCELLATION.judge(mhc(), case, QUICK) for case in CANCELLATION.cases(mhc()) if case.dtype == dtype]
    assert verdicts
    assert all(v.held for v in verdicts)
    assert any(v.status is Status.PASS for v in verdicts)


def test_a_drawn_cancelling_case_fails_the_old_policy() -> None:
    case = Case.of(S=1, H=4, D=64, dtype="bf16", regime="cancelling")
    assert CANCELLATION.judge(OLD_KERNEL, case, QUICK).status is Status.FAIL


def test_the_old_policy_fails_accuracy_under_the_fp32_contract_and_passes_under_its_own() -> None:
    assert REPORTED.case in ACCURACY.cases(OLD_KERNEL)
    verdict = ACCURACY.judge(OLD_KERNEL, REPORTED.case, QUICK)
    assert verdict.outputs["out"].status is Status.FAIL
    assert ACCURACY.judge(OLD_KERNEL.but(contract=OLD), REPORTED.case, QUICK).status is Status.PASS
    assert ACCURACY.judge(mhc(), REPORTED.case, QUICK).status is Status.PASS


def test_an_oracle_that_misses_the_stated_result_is_an_error() -> None:
    wrong = replace(REPORTED, exact={"out": [[[0.003], [0.0]]]})
    spec = mhc().but(oracle=replace(mhc_post, cancellations=(wrong,)))
    verdict = CANCELLATION.judge(spec, REPORTED.case, QUICK)
    assert verdict.status is Status.ERROR
    assert "but the exact result is stated as [0.003, 0.0]" in verdict.outputs["out"].why


def test_two_cancellations_need_two_cases() -> None:
    with pytest.raises(InvalidSpec, match="share one Case"):
        replace(mhc_post, cancellations=(REPORTED, replace(REPORTED, name="twin")))


def test_a_result_that_nothing_cancels_is_left_out() -> None:
    """post, comb and data of one sign: sums as large as their terms."""
    case = Case.of(S=1, H=2, D=8, dtype="bf16", regime="ones")
    assert CANCELLATION.judge(mhc(), case, QUICK).outputs["out"].status is Status.VACUOUS


def test_a_nan_does_not_survive() -> None:
    spec = mhc("nan", change=lambda outputs: {name: t * torch.nan for name, t in outputs.items()})
    assert CANCELLATION.judge(spec, REPORTED.case, QUICK).outputs["out"].status is Status.FAIL
