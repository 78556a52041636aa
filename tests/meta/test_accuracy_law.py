"""The accuracy law as a whole: what it does with a kernel that cannot run, that raises, or that touches too much."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck import Case, KernelSpec, Unavailable
from numcheck.laws.accuracy import ACCURACY
from numcheck.profile import QUICK
from numcheck.verdict import Status, Verdict
from tests.meta.mhc import hundred, mhc


def statuses(verdict: Verdict) -> set[Status]:
    return {o.status for o in verdict.outputs.values()}


def test_a_verdict_is_plain_json_and_pure() -> None:
    first, second = (ACCURACY.judge(mhc(), hundred(), QUICK).to_json() for _ in range(2))
    assert json.loads(json.dumps(first)) == first == second


def test_a_kernel_that_raises_is_an_error_on_every_output() -> None:
    def forward(**inputs: Tensor) -> dict[str, Tensor]:
        raise ValueError("no such tile")

    verdict = ACCURACY.judge(mhc("raises", forward=forward), hundred(), QUICK)
    assert statuses(verdict) == {Status.ERROR}
    assert "ValueError: no such tile" in verdict.outputs["out"].why


def test_an_unavailable_spec_is_not_judged() -> None:
    spec = mhc("absent", capability=lambda device: Unavailable("no GPU here", "sm90"))
    verdict = ACCURACY.judge(spec, hundred(), QUICK)
    assert statuses(verdict) == {Status.UNAVAILABLE}
    assert verdict.outputs["out"].why == "no GPU here; needs sm90"


def test_a_case_outside_the_promise_is_not_judged() -> None:
    verdict = ACCURACY.judge(mhc(), hundred(dtype="fp16"), QUICK)
    assert statuses(verdict) == {Status.VACUOUS}
    assert "outside the promise" in verdict.outputs["out"].why


def test_a_kernel_that_overwrites_its_input_fails() -> None:
    right = mhc()

    def forward(**inputs: Tensor) -> dict[str, Tensor]:
        outputs = right.forward(**inputs)  # type: ignore[misc]
        inputs["x"].zero_()
        return outputs

    verdict = ACCURACY.judge(mhc("scribbles", forward=forward), hundred(), QUICK)
    assert verdict.status is Status.FAIL


def test_no_elements_prove_nothing() -> None:
    assert ACCURACY.judge(mhc(), Case.of(S=0, H=2, D=5), QUICK).status is Status.VACUOUS


@pytest.mark.parametrize("change", [lambda t: t * 1.004, lambda t: t + 0.004 * t.abs()])
def test_a_pool_sees_what_each_small_case_lets_pass(change: Any) -> None:
    """Errors inside every ceiling, but larger or leaning: a quarter of the outputs moved one step."""

    def nudge(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return {k: change(t.float()).to(t.dtype) if t.dtype == torch.bfloat16 else t for k, t in outputs.items()}

    judged = _judged(mhc("nudged", change=nudge))
    pooled = ACCURACY.pool(mhc(), judged)
    assert pooled is not None
    assert pooled.pooled
    assert pooled.status is Status.FAIL
    assert {g.kind for g in pooled.gates if not g.held} >= {"match"}


def test_the_pool_of_a_right_kernel_passes_and_says_over_how_much() -> None:
    pooled = ACCURACY.pool(mhc(), _judged(mhc()))
    assert pooled is not None
    # At D = 5 the FP32 sums of bf16 products hardly ever round, so there is too little to pool.
    assert {n: o.status for n, o in pooled.outputs.items() if n not in ("d_post", "d_comb")} == dict.fromkeys(
        ("out", "d_x", "d_residual"), Status.PASS
    )
    assert pooled.figures["cases"] == 24
    assert 0.8 < pooled.figures["ratio"]["out"] < 1.25


def test_nothing_that_ran_is_no_pool() -> None:
    spec = mhc("absent", capability=lambda device: Unavailable("no GPU here"))
    assert ACCURACY.pool(spec, [(hundred(), ACCURACY.judge(spec, hundred(), QUICK))]) is None


def _judged(spec: KernelSpec) -> list[tuple[Case, Verdict]]:
    cases = [Case.of(S=1, H=2, D=5, dtype="bf16", regime="normal", seed=k) for k in range(24)]
    return [(case, ACCURACY.judge(spec, case, QUICK)) for case in cases]
