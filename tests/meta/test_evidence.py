"""The evidence law: what was seen running, what was not, and what a determinism request was answered."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import kernels
from kernels.mhc_post import fused, split, tuned
from numcheck import Case, KernelSpec
from numcheck.evidence import Launch
from numcheck.execute import execute
from numcheck.laws.evidence import EVIDENCE, pattern_of, route
from numcheck.profile import QUICK
from numcheck.sample import sample
from numcheck.verdict import Status, Verdict

Outputs = dict[str, Tensor]
MHC_POST = [spec for spec in kernels.ALL if spec.oracle.name == "mhc_post"]
SPECS = {spec.name: spec for spec in MHC_POST}
EAGER, FUSED = SPECS["mhc_post.eager"], SPECS["mhc_post.triton"]
ATOMIC = SPECS["mhc_post.triton_split_atomic"]
CASE = Case.of(S=2, H=2, D=70)
EMPTY = Case.of(S=0, H=2, D=33)


def judge(spec: KernelSpec, case: Case = CASE) -> Verdict:
    return EVIDENCE.judge(spec, case, QUICK)


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
@pytest.mark.parametrize("case", [CASE, EMPTY], ids=["full", "empty"])
def test_right_kernels_are_green(spec: KernelSpec, case: Case) -> None:
    assert judge(spec, case).status is Status.PASS


def test_launches_are_counted() -> None:
    assert judge(FUSED).figures["launches"] == {"mhc_post_forward": 1, "mhc_post_backward": 1}
    assert judge(EAGER).figures["operators"] > 0


@pytest.mark.parametrize(
    ("entry", "name"),
    [
        ("mhc_*", "mhc_*"),
        (fused.mhc_post_forward, "mhc_post_forward"),
        (tuned.backward, "mhc_post_backward"),
    ],
)
def test_must_run_takes_functions_autotuners_and_patterns(entry: object, name: str) -> None:
    assert pattern_of(entry) == name
    assert judge(FUSED.but(must_run=(entry,))).status is Status.PASS


def test_what_is_said_to_launch_nothing_is_always_tried() -> None:
    assert EVIDENCE.cases(FUSED)
    assert not any(FUSED.launches(case) for case in EVIDENCE.cases(FUSED))


def test_a_pattern_that_nothing_matches_is_an_error() -> None:
    verdict = judge(FUSED.but(must_run=("mhc_post_forward", "sm90_*")))
    assert verdict.status is Status.ERROR
    assert "must run sm90_*" in verdict.outputs["out"].why


def test_one_missing_half_is_an_error() -> None:
    """The forward ran; the backward was computed in another way."""
    assert judge(FUSED.but(vjp=EAGER.vjp)).status is Status.ERROR


def test_a_launch_where_none_is_expected_fails() -> None:
    verdict = judge(FUSED.but(launches=lambda case: False))
    assert verdict.status is Status.FAIL
    assert "launches nothing, but mhc_post_forward" in verdict.outputs["out"].why


FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int)"
SCALE = FILL.replace("FillFunctor", "MulFunctor")


@pytest.mark.parametrize(
    ("kernels_seen", "status"),
    [((FILL, "Memset (Device)", "Memcpy DtoD (Device -> Device)"), Status.PASS), ((FILL, SCALE), Status.FAIL)],
    ids=["fills", "computes"],
)
def test_a_result_of_zeros_is_no_launch_on_a_device(kernels_seen: tuple[str, ...], status: Status) -> None:
    """As torch's profiler names what made the outputs of a call with nothing to do."""
    run = execute(FUSED, sample(FUSED.oracle, EMPTY), device="cpu")
    seen = replace(run, evidence=replace(run.evidence, launches=tuple(map(Launch, kernels_seen))))
    assert route(FUSED, EMPTY, seen)[0] is status


def test_a_request_is_refused_loudly() -> None:
    verdict = judge(ATOMIC)
    assert str(verdict.figures["determinism"]).startswith("refused: NotDeterministic: mhc_post.triton_split_atomic")


def test_a_request_that_is_honoured_passes() -> None:
    def switching(**given: Tensor) -> Outputs:
        ordered = torch.are_deterministic_algorithms_enabled()
        if ordered:
            return split.vjp_ordered(**given)
        return split.vjp_atomic(**given)

    verdict = judge(ATOMIC.but(vjp=switching))
    assert verdict.status is Status.PASS
    assert str(verdict.figures["determinism"]).startswith("honoured in")


def test_a_crash_under_a_request_is_no_refusal() -> None:
    def crashes(**given: Tensor) -> Outputs:
        if torch.are_deterministic_algorithms_enabled():
            raise IndexError("list index out of range")
        return split.vjp_atomic(**given)

    verdict = judge(ATOMIC.but(vjp=crashes))
    assert verdict.status is Status.ERROR
    assert "without a word of determinism" in verdict.outputs["d_post"].why


def test_the_request_is_taken_back() -> None:
    judge(ATOMIC)
    assert not torch.are_deterministic_algorithms_enabled()


def test_nobody_is_asked_who_promises_an_order() -> None:
    assert str(judge(FUSED).figures["determinism"]).startswith("not asked")
