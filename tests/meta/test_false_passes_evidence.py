"""The false-pass catalogue, rows about memory, routes and determinism: each seen in a real project, each red here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kernels
from kernels.mhc_post import eager, fused, split
from numcheck import Case, KernelSpec
from numcheck.laws import LAWS
from numcheck.profile import QUICK
from numcheck.verdict import Status, Verdict

Outputs = dict[str, Tensor]
LAW = {law.name: law for law in LAWS}
SPECS = {spec.name: spec for spec in kernels.ALL}
EAGER, FUSED = SPECS["mhc_post.eager"], SPECS["mhc_post.triton"]
ATOMIC = SPECS["mhc_post.triton_split_atomic"]
CASE = Case.of(S=2, H=2, D=70)


def judge(law: str, spec: KernelSpec, case: Case = CASE) -> Verdict:
    return LAW[law].judge(spec, case, QUICK)


def failing(verdict: Verdict) -> set[str]:
    return {name for name, output in verdict.outputs.items() if not output.status.held}


def remembering() -> Callable[..., Outputs]:
    """A forward that answers from the last call of the same shape: right for every repeat of the same values."""
    kept: dict[tuple[int, ...], Tensor] = {}

    def forward(**inputs: Tensor) -> Outputs:
        shape = tuple(inputs["residual"].shape)
        if shape not in kept:
            kept[shape] = eager.forward(**inputs)["out"].clone()
        return {"out": kept[shape].clone()}

    return forward


def test_row_2_stale_memory_equals_the_answer() -> None:
    """Memory of the last call holds the very answer of this one, until anything about the Case changes."""
    verdict = judge("invariance", EAGER.but(forward=remembering()))
    assert failing(verdict) == {"out"}


def test_row_2_unwritten_memory_holds_the_answer_of_the_last_call() -> None:
    """An output from `empty` that the kernel does not fill: on a warm allocator it may be right by chance."""

    def forward(**inputs: Tensor) -> Outputs:
        right = eager.forward(**inputs)["out"]
        out = torch.empty(right.shape, dtype=right.dtype)
        out[:1] = right[:1]
        return {"out": out}

    verdict = judge("edges", EAGER.but(forward=forward))
    assert "were never written" in verdict.outputs["out"].why


def test_row_3_a_kernel_that_never_launched() -> None:
    """The launch raised, the error was swallowed, and a buffer of an earlier call holds the right answer."""
    right = fused.forward

    def forward(**inputs: Tensor) -> Outputs:
        answer = eager.forward(**inputs)
        with contextlib.suppress(TypeError):
            right(**{**inputs, "comb": inputs["comb"].double()})
        return answer

    verdict = judge("evidence", FUSED.but(forward=forward))
    assert verdict.status is Status.ERROR
    assert "must run mhc_post_forward" in verdict.outputs["out"].why


def test_row_4_a_fallback_is_not_the_kernel() -> None:
    """Its outputs are right to the bit, so accuracy has nothing to say; the route has."""
    fallback = FUSED.but(forward=eager.forward, vjp=eager.vjp)
    assert judge("accuracy", fallback).held
    verdict = judge("evidence", fallback)
    assert verdict.status is Status.ERROR
    assert failing(verdict) == set(FUSED.judged)


def test_row_5_no_evidence_is_never_a_pass() -> None:
    """Nothing seen running, neither kernels nor torch operators, though the Case is not empty."""
    kept: dict[str, Outputs] = {}

    def silent(half: Callable[..., Outputs], name: str) -> Callable[..., Outputs]:
        def call(**given: Tensor) -> Outputs:
            if name not in kept:
                kept[name] = half(**given)
            return dict(kept[name])

        return call

    spec = EAGER.but(forward=silent(eager.forward, "forward"), vjp=silent(eager.vjp, "vjp"))
    assert judge("evidence", spec).status is Status.PASS
    verdict = judge("evidence", spec)
    assert verdict.status is Status.ERROR
    assert "nothing was seen running" in verdict.outputs["out"].why


def test_row_17_a_flag_that_is_accepted_and_not_forwarded() -> None:
    def deaf(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> Outputs:
        return split.atomic_gradients(x, residual, post, comb, d_out)

    verdict = judge("evidence", ATOMIC.but(vjp=deaf))
    assert failing(verdict) <= {"d_post", "d_comb"}
    assert verdict.status is Status.FAIL
    assert any("neither honoured nor refused" in output.why for output in verdict.outputs.values())
    assert judge("evidence", ATOMIC).status is Status.PASS


def test_row_19_an_output_that_changed_the_inputs_which_the_reference_then_reads() -> None:
    """With x zeroed after the call, a reference that reads it then agrees with an output computed from zeros."""

    def forward(**inputs: Tensor) -> Outputs:
        inputs["x"].zero_()
        return eager.forward(**inputs)

    broken = EAGER.but(forward=forward)
    verdict = judge("edges", broken)
    assert "input x was changed" in verdict.outputs["out"].why
    # The oracle reads the Sample as it was, so the output is wrong too, and the next run gets unchanged inputs.
    assert "out" in failing(judge("accuracy", broken))


@pytest.mark.parametrize("first", [1, 2, 4])
def test_row_20_right_for_the_first_calls_only(first: int) -> None:
    calls = [0]

    def forward(**inputs: Tensor) -> Outputs:
        calls[0] += 1
        out = eager.forward(**inputs)["out"]
        return {"out": out if calls[0] <= first else torch.zeros_like(out)}

    assert "out" in failing(judge("invariance", EAGER.but(forward=forward)))


@pytest.mark.parametrize("law", ["edges", "accuracy"])
def test_row_20_right_for_the_visible_shape_only(law: str) -> None:
    """A block that the one tested shape fills: other shapes lose their tail."""

    def forward(**inputs: Tensor) -> Outputs:
        out = eager.forward(**inputs)["out"]
        whole = out.shape[-1] // CASE["D"] * CASE["D"]
        out[..., whole:] = 0
        return {"out": out}

    broken = EAGER.but(forward=forward)
    assert judge(law, broken).held
    cases = [*LAW[law].cases(broken), CASE.but(D=71)]
    assert any("out" in failing(judge(law, broken, case)) for case in cases)
