"""xtuner pull request 2260: post 1.003 against two halves leaves 0.003, which the old rounding policy loses."""

from __future__ import annotations

import pytest
import torch

from kernels import ALL
from numcheck import KernelSpec
from numcheck.execute import execute
from numcheck.laws.accuracy import ACCURACY
from numcheck.laws.cancellation import CANCELLATION
from numcheck.oracles import mhc_post
from numcheck.profile import QUICK
from numcheck.sample import sample
from numcheck.verdict import Status

SPECS = {spec.name: spec for spec in ALL if spec.oracle is mhc_post}
REPORTED = next(c for c in mhc_post.cancellations if c.name == "reported")
# The bf16 number next to 25166 * 2^-23, which is 1.003 in FP32 less 1.
SURVIVES = 0.0030059814453125
FP32_POLICY = [name for name in SPECS if name != "mhc_post.eager_bf16_rounding"]


def out(spec: KernelSpec) -> list[float]:
    """The two streams' outputs for the reported values."""
    run = execute(spec, sample(mhc_post, REPORTED.case, values=REPORTED.values))
    assert not run.error
    return run.outputs["out"].to(torch.float64).flatten().tolist()


@pytest.mark.parametrize("name", FP32_POLICY)
def test_fp32_coefficients_keep_the_small_result_to_the_bit(name: str) -> None:
    assert out(SPECS[name]) == [SURVIVES, 0.0]


@pytest.mark.parametrize("name", FP32_POLICY)
def test_both_laws_pass_it(name: str) -> None:
    for law in (ACCURACY, CANCELLATION):
        assert law.judge(SPECS[name], REPORTED.case, QUICK).outputs["out"].status is Status.PASS


def test_the_old_policy_loses_it_and_fails_under_the_fp32_contract() -> None:
    old = SPECS["mhc_post.eager_bf16_rounding"]
    assert out(old) == [0.0, 0.0]
    claimed = old.but(contract=SPECS["mhc_post.eager"].contract)
    for law in (ACCURACY, CANCELLATION):
        assert law.judge(claimed, REPORTED.case, QUICK).outputs["out"].status is Status.FAIL


def test_the_old_policy_holds_what_it_promises_itself_and_does_not_promise_survival() -> None:
    old = SPECS["mhc_post.eager_bf16_rounding"]
    assert ACCURACY.judge(old, REPORTED.case, QUICK).outputs["out"].status is Status.PASS
    verdict = CANCELLATION.judge(old, REPORTED.case, QUICK).outputs["out"]
    assert verdict.status is Status.VACUOUS
    assert "does not promise survival" in verdict.why
