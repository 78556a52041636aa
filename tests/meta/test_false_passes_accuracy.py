"""The false-pass catalogue, rows about accuracy: each seen in a real project, each has to turn red here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from numcheck import Case
from numcheck.errors import InvalidSpec
from numcheck.laws.accuracy import ACCURACY
from numcheck.oracles import mhc_post
from numcheck.profile import QUICK
from numcheck.reading import readings
from numcheck.sample import sample
from numcheck.verdict import Status, Verdict
from tests.meta.mhc import FP32, OLD, OLD_POINTS, hundred, mhc

Outputs = dict[str, Tensor]
JUDGED = ("out", "d_x", "d_residual", "d_post", "d_comb")


def judge(spec: object, case: Case | None = None) -> Verdict:
    return ACCURACY.judge(spec, case or hundred(), QUICK)  # type: ignore[arg-type]


def failing(verdict: Verdict) -> set[str]:
    return {name for name, output in verdict.outputs.items() if not output.status.held}


def test_the_right_kernel_is_green() -> None:
    assert judge(mhc()).status is Status.PASS


@pytest.mark.parametrize("value", [0.0, 1.0, math.pi])
@pytest.mark.parametrize("regime", ["wide", "normal", "mean4", "cancelling", "integers"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_row_1_a_constant_output(value: float, regime: str, dtype: str) -> None:
    spec = mhc("constant", change=lambda outputs: {k: torch.full_like(t, value) for k, t in outputs.items()})
    assert failing(judge(spec, hundred(regime=regime, dtype=dtype))) == set(JUDGED)


def test_row_1_zeros_where_zeros_are_right_prove_nothing() -> None:
    spec = mhc("zeros", change=lambda outputs: {k: torch.zeros_like(t) for k, t in outputs.items()})
    assert judge(spec, hundred(regime="zeros")).status is Status.VACUOUS


def test_row_1_one_step_off_on_small_integers_is_seen() -> None:
    """Where nothing rounds, no tolerance is left at all."""
    spec = mhc("off", change=lambda outputs: {k: torch.nextafter(t, t + 1) for k, t in outputs.items()})
    assert failing(judge(spec, hundred(regime="integers"))) == set(JUDGED)


def test_row_6_a_cap_is_used_and_a_loose_one_loosens_nothing() -> None:
    tight, loose = {"out": 1e-6}, dict.fromkeys(JUDGED, 1000000000.0)
    assert failing(judge(mhc(caps=tight))) == {"out"}
    assert failing(judge(mhc("old", rounds=OLD_POINTS, caps=loose))) == set(JUDGED)
    with pytest.raises(InvalidSpec, match="no output 'output'"):
        mhc(caps={"output": 1.0})


def nan_oracle(**changes: object) -> object:
    def forward(*args: object, **inputs: object) -> Mapping[str, Tensor]:
        return {name: t * math.nan for name, t in mhc_post.forward(*args, **inputs).items()}

    return replace(mhc_post, forward=forward, **changes)


@pytest.mark.parametrize("kernel", [mhc(), mhc("nan", change=lambda o: {k: t * math.nan for k, t in o.items()})])
def test_row_7_nan_in_the_reference_is_an_error_of_the_reference(kernel: object) -> None:
    """Rows 7 and 8: not even a kernel that is NaN in the same places passes."""
    verdict = judge(replace(kernel, oracle=nan_oracle()))  # type: ignore[type-var]
    assert verdict.status is Status.ERROR
    assert "NaN in out though every input is finite" in verdict.outputs["out"].why


def test_row_8_a_nan_output_fails() -> None:
    def one_nan(outputs: Outputs) -> Outputs:
        for t in outputs.values():
            t.view(-1)[-1] = math.nan
        return outputs

    verdict = judge(mhc("one NaN", change=one_nan))
    assert failing(verdict) == set(JUDGED)
    assert "out got=nan" in verdict.outputs["out"].where
    assert failing(judge(mhc("NaN", change=lambda o: {k: t * math.nan for k, t in o.items()}))) == set(JUDGED)


def test_row_10_the_reference_does_not_share_the_kernels_rounding() -> None:
    """An FP64 copy of the old policy would agree with the old policy; the truth rounds nothing under any Contract."""
    made = sample(mhc_post, hundred())
    new, old = (readings(mhc_post, c.policy(made.case), made, 2).truth for c in (FP32, OLD))
    assert all(torch.equal(new[name], old[name]) for name in JUDGED)
    assert failing(judge(mhc("old", rounds=OLD_POINTS))) == set(JUDGED)


@pytest.mark.parametrize("D", [25, 400, 4096])
def test_row_13_the_tolerance_does_not_grow_with_the_size(D: int) -> None:
    """Two bf16 spacings too many in 16-bit outputs, 2^-12 too much in FP32 sums: red at every size.

    The FP32 ceiling does grow with the terms of a sum of unknown tree; the one-sided band does not.
    """

    def off(outputs: Outputs) -> Outputs:
        return {k: t * (1 + 2.0**-6) if t.dtype == torch.bfloat16 else t * (1 + 2.0**-12) for k, t in outputs.items()}

    assert failing(judge(mhc("off", change=off), Case.of(S=1, H=4, D=D, dtype="bf16", regime="normal"))) == set(JUDGED)


@pytest.mark.parametrize("missing", JUDGED)
def test_row_21_a_missing_output(missing: str) -> None:
    spec = mhc("fewer", change=lambda outputs: {k: t for k, t in outputs.items() if k != missing})
    verdict = judge(spec)
    assert not verdict.held
    assert missing in verdict.outputs[missing].why


def test_row_21_an_output_of_another_dtype_or_shape() -> None:
    for change in (lambda t: t.double(), lambda t: t[..., :-1], lambda t: t.unsqueeze(0)):
        verdict = judge(mhc("other", change=lambda o, c=change: {k: c(t) for k, t in o.items()}))
        assert set(failing(verdict)) == set(JUDGED)


def test_row_22_a_contiguous_bad_block_among_right_elements() -> None:
    """98.9 % of the elements match and the rest are one block: a percentage would pass it."""
    old = mhc("old", rounds=("mix",))

    def forward(**inputs: Tensor) -> Outputs:
        right, wrong = mhc().forward(**inputs), old.forward(**inputs)  # type: ignore[misc]
        out = right["out"].clone()
        out[0, 3, 1024:1200] = wrong["out"][0, 3, 1024:1200]
        return {"out": out}

    case = Case.of(S=2, H=4, D=2048, dtype="bf16", regime="normal")
    verdict = judge(mhc("block", forward=forward), case)
    assert failing(verdict) == {"out"}
    assert "at [0, 3, 1" in verdict.outputs["out"].where
