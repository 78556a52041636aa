"""The edges law: boundaries, memory that must not matter, and arguments that must be refused, each turned red once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kernels
from numcheck import Case, Contract, KernelSpec
from numcheck.laws.edges import EDGES
from numcheck.oracles import mhc_post
from numcheck.profile import QUICK
from numcheck.verdict import Status, Verdict
from tests.meta.mhc import FP32, mhc

Outputs = dict[str, Tensor]
SPECS = {spec.name: spec for spec in kernels.ALL}
EAGER = SPECS["mhc_post.eager"]
CASE = Case.of(S=2, H=4, D=25)
EMPTY = Case.of(S=0, H=4, D=31)


def judge(spec: KernelSpec, case: Case = CASE) -> Verdict:
    return EDGES.judge(spec, case, QUICK)


def failing(verdict: Verdict) -> set[str]:
    return {name for name, output in verdict.outputs.items() if not output.status.held}


def eager(change: Callable[..., Outputs]) -> KernelSpec:
    """The eager spec, whose forward is `change(right forward, **inputs)`."""
    right = EAGER.forward
    assert right is not None
    return EAGER.but(name="broken", forward=lambda **inputs: change(right, **inputs))


@pytest.mark.parametrize("case", EDGES.cases(EAGER), ids=lambda c: c.key)
def test_the_eager_kernel_is_green_at_every_edge(case: Case) -> None:
    assert judge(EAGER, case).status is Status.PASS


@pytest.mark.parametrize("name", ["mhc_post.triton", "mhc_post.triton_split_atomic", "mhc_post.triton_split_ordered"])
@pytest.mark.parametrize("case", [EMPTY, Case.of(S=1, H=1, D=1), CASE.but(layout="strided", offset=3)], ids=str)
def test_triton_kernels_are_green_at_edges(name: str, case: Case) -> None:
    assert judge(SPECS[name], case).status is Status.PASS


def test_an_unwritten_cell_is_named() -> None:
    def lazy(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        out = torch.empty(inputs["residual"].shape, dtype=inputs["residual"].dtype)
        out[..., :-1] = right(**inputs)["out"][..., :-1]
        return {"out": out}

    verdict = judge(eager(lazy))
    assert "8 of 200 cell(s) of output out were never written" in verdict.outputs["out"].why


def test_a_changed_input_is_named_though_the_output_is_right() -> None:
    def careless(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        outputs = right(**inputs)
        inputs["post"].mul_(2.0)
        return outputs

    verdict = judge(eager(careless))
    assert verdict.status is Status.FAIL
    assert "input post was changed" in verdict.outputs["out"].why


def test_memory_between_the_elements_of_an_input_is_an_input_too() -> None:
    def spills(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        x = inputs["x"]
        x.as_strided((1,), (1,), x.storage_offset() + 1).fill_(0.0)
        return right(**inputs)

    verdict = judge(eager(spills), CASE.but(layout="strided"))
    assert "memory around input x was changed" in verdict.outputs["out"].why


def test_poison_that_shows_only_as_a_number_is_seen() -> None:
    """NaN in a gap is masked away by a maximum that ignores NaN; a huge number there is not."""

    def peeks(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        x = inputs["x"]
        beyond = x.as_strided((1,), (1,), x.storage_offset() - 1)
        out = right(**inputs)["out"]
        return {"out": out + torch.nan_to_num(beyond, nan=0.0).clamp(-1, 1)}

    verdict = judge(eager(peeks))
    assert failing(verdict) == {"out"}
    assert "huge numbers there change nothing" in verdict.outputs["out"].why


def test_a_wrong_value_at_an_edge_is_beyond_its_radius() -> None:
    def off(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        outputs = right(**inputs)
        outputs["out"][-1, -1, -1] += 1.0
        return outputs

    verdict = judge(eager(off), Case.of(S=1, H=1, D=1))
    assert failing(verdict) == {"out"}
    assert verdict.outputs["out"].where.startswith("out got=")


def test_an_empty_case_that_raises_is_an_error() -> None:
    def needs_a_row(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        inputs["x"].max()
        return right(**inputs)

    assert judge(eager(needs_a_row)).status is Status.PASS
    assert judge(eager(needs_a_row), EMPTY).status is Status.ERROR


def test_a_wrong_shape_of_an_empty_output_is_seen() -> None:
    def flat(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        outputs = right(**inputs)
        return outputs if outputs["out"].numel() else {"out": outputs["out"].flatten()}

    assert not judge(eager(flat), EMPTY).held


def test_arguments_that_nobody_checks_are_named() -> None:
    verdict = judge(mhc())
    assert verdict.status is Status.FAIL
    why = verdict.outputs["out"].why
    # torch itself refuses most wrong shapes; it takes FP64 for FP32 without a word.
    assert "forward with post in torch.float64 instead of torch.float32: it was accepted without a word" in why
    assert verdict.figures["accepted"] > 0


def test_an_error_that_says_nothing_is_not_clear() -> None:
    def silent(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        try:
            return right(**inputs)
        except (TypeError, ValueError):
            raise ValueError("bad call") from None

    verdict = judge(eager(silent))
    assert "the error does not say what is wrong: ValueError: bad call" in verdict.outputs["out"].why


def test_a_launch_before_the_check_is_too_late() -> None:
    from kernels.mhc_post import fused

    def late(**inputs: Tensor) -> Outputs:
        post = inputs["post"]
        if post.dtype == torch.float64:
            rest = {name: t.float() if t.dtype == torch.float64 else t for name, t in inputs.items()}
            fused.forward(**rest)
            raise TypeError("post is FP64")
        return fused.forward(**inputs)

    verdict = judge(SPECS["mhc_post.triton"].but(name="late", forward=late))
    assert "it raised only after mhc_post_forward had been launched" in verdict.outputs["out"].why


def test_a_case_outside_the_promise_is_refused_or_left_alone() -> None:
    three = CASE.but(H=3)
    assert three.but(S=1, D=1) in EDGES.cases(EAGER)
    assert judge(EAGER, three).status is Status.PASS
    assert "H=3" in judge(EAGER, three).outputs["out"].why
    takes_three = mhc(contract=EAGER.contract)
    assert judge(takes_three, three).status is Status.FAIL
    silent = Contract(rounds=FP32.rounds, dtypes=FP32.dtypes, legal=EAGER.contract.legal)
    assert judge(mhc(contract=silent), three).status is Status.VACUOUS


def test_a_dtype_outside_the_promise_is_refused_too() -> None:
    """All data in it alike: nothing contradicts it but the promise, so that only a check of its own can refuse it."""
    (half,) = (case for case in EDGES.cases(EAGER) if case.dtype not in EAGER.dtypes)
    assert judge(EAGER, half).status is Status.PASS
    assert "float16" in judge(EAGER, half).outputs["out"].why
    takes_any = mhc(contract=EAGER.contract)
    assert judge(takes_any, half).status is Status.FAIL
    silent = Contract(rounds=FP32.rounds, dtypes=FP32.dtypes, legal=EAGER.contract.legal)
    assert all(case.dtype in silent.dtypes for case in EDGES.cases(mhc(contract=silent)))


def test_the_edges_of_the_problem_are_always_tried() -> None:
    assert set(mhc_post.space.edges) <= set(EDGES.cases(EAGER))
    assert EDGES.drawn
