"""The invariance law: each relation turns a kernel red that breaks it alone, and leaves right kernels green."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan

import pytest
import torch
from torch import Tensor

import kernels
from numcheck import Case, CaseSpace, Contract, Input, KernelSpec, Oracle, Output, Relation
from numcheck.capability import Unavailable
from numcheck.errors import InvalidSpec
from numcheck.execute import execute
from numcheck.laws.invariance import INVARIANCE
from numcheck.laws.relation import added
from numcheck.laws.scaling import scaled_inputs
from numcheck.laws.subject import Subject
from numcheck.oracles import mhc_post
from numcheck.profile import QUICK
from numcheck.sample import sample
from numcheck.ulp import FORMATS
from numcheck.verdict import Status, Verdict
from tests.meta.mhc import mhc

Outputs = dict[str, Tensor]
CASE = Case.of(S=2, H=4, D=25, regime="normal")
GRADIENTS = {"d_x", "d_residual", "d_post", "d_comb"}


def judge(spec: KernelSpec, case: Case = CASE) -> Verdict:
    return INVARIANCE.judge(spec, case, QUICK)


def failing(verdict: Verdict) -> set[str]:
    return {name for name, output in verdict.outputs.items() if not output.status.held}


def gradients(change: Callable[[Outputs, Tensor], Outputs], **fields: object) -> KernelSpec:
    """mHC post whose gradients go through `change`, which also sees the cotangent."""
    right = mhc().vjp
    assert right is not None

    def vjp(**given: Tensor) -> Outputs:
        return change(right(**given), given["d_out"])

    return mhc("broken", vjp=vjp, **fields)


def outputs(change: Callable[..., Outputs]) -> KernelSpec:
    """mHC post whose forward is `change(right forward, **inputs)`."""
    right = mhc().forward
    assert right is not None
    return mhc("broken", forward=lambda **inputs: change(right, **inputs))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("layout", ["contiguous", "strided"])
@pytest.mark.parametrize("regime", ["wide", "mean4", "cancelling", "integers"])
def test_a_right_kernel_is_green(dtype: str, layout: str, regime: str) -> None:
    verdict = judge(mhc(), CASE.but(dtype=dtype, layout=layout, regime=regime, offset=1))
    assert verdict.status is Status.PASS


@pytest.mark.parametrize("name", ["mhc_post.triton", "mhc_post.triton_split_atomic", "mhc_post.triton_split_ordered"])
def test_triton_kernels_are_green(name: str) -> None:
    spec = next(s for s in kernels.ALL if s.name == name)
    assert judge(spec, Case.of(S=2, H=2, D=33)).status is Status.PASS


def test_a_vjp_that_clips_its_cotangent_is_not_linear() -> None:
    def clipped(**given: Tensor) -> Outputs:
        return mhc().vjp(**{**given, "d_out": given["d_out"].clamp(-1, 1)})  # type: ignore[misc]

    verdict = judge(mhc("clipped", vjp=clipped))
    assert failing(verdict) == GRADIENTS
    assert "times -4" in verdict.outputs["d_x"].why


def test_a_constant_in_a_gradient_is_not_linear() -> None:
    """Two halves have it twice."""
    verdict = judge(gradients(lambda grads, _: grads | {"d_post": grads["d_post"] + 1e-3}))
    assert failing(verdict) == {"d_post"}
    assert "two halves add up" in verdict.outputs["d_post"].why
    assert verdict.outputs["d_post"].where.startswith("d_post got=")


def test_a_lost_sign_is_not_linear() -> None:
    verdict = judge(gradients(lambda grads, _: grads | {"d_comb": grads["d_comb"].abs()}))
    assert failing(verdict) == {"d_comb"}


def test_a_bias_in_the_output_breaks_powers_of_two() -> None:
    verdict = judge(outputs(lambda right, **inputs: {"out": right(**inputs)["out"] + 2.0**-10}))
    assert failing(verdict) == {"out"}
    assert "x and residual times 4 gives out times 4, exact in binary" in verdict.outputs["out"].why


def test_a_gradient_that_depends_on_what_it_must_not_breaks_powers_of_two() -> None:
    """d_x does not depend on x: one unit in the last place of it, taken from x, is too much."""

    def leaking(**given: Tensor) -> Outputs:
        grads = mhc().vjp(**given)  # type: ignore[misc]
        return grads | {"d_x": grads["d_x"] + given["x"] * 2.0**-22}

    verdict = judge(mhc("leaking", vjp=leaking))
    assert failing(verdict) == {"d_x"}
    assert "x and residual times 4 gives d_x times 1" in verdict.outputs["d_x"].why


def test_reading_past_a_stride_is_seen() -> None:
    def dense(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        x = inputs["x"]
        return right(**{**inputs, "x": x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())})

    verdict = judge(outputs(dense))
    assert failing(verdict) == {"out"}
    assert "strided" in verdict.outputs["out"].why


def test_taking_the_storage_offset_for_aligned_is_seen() -> None:
    def aligned(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        post = inputs["post"]
        offset = post.storage_offset() // 4 * 4
        return right(**{**inputs, "post": post.as_strided(post.shape, post.stride(), offset)})

    verdict = judge(outputs(aligned))
    assert failing(verdict) == {"out"}
    assert "storage offset" in verdict.outputs["out"].why


def test_a_row_that_depends_on_its_neighbours_is_seen() -> None:
    """Right to within FP32 rounding, so that only bits tell: the whole batch's largest value scales and unscales."""

    def scaled(right: Callable[..., Outputs], **inputs: Tensor) -> Outputs:
        top = inputs["x"].abs().max() * 1.1
        return {"out": right(**{**inputs, "x": inputs["x"] / top, "residual": inputs["residual"] / top})["out"] * top}

    verdict = judge(outputs(scaled))
    assert failing(verdict) == {"out"}
    assert "rows" in verdict.outputs["out"].why


def test_one_row_cannot_be_sliced() -> None:
    assert not any("rows" in gate.reason for gate in judge(mhc(), CASE.but(S=1)).gates)


def test_an_any_output_is_bounded_and_not_bitwise() -> None:
    """Other bits in each call are within the promise; a thousandth is not."""
    calls = [0]

    def drifting(step: float) -> KernelSpec:
        def change(grads: Outputs, _: Tensor) -> Outputs:
            calls[0] += 1
            return grads | {"d_post": grads["d_post"] * (1 + step * (calls[0] % 2))}

        return gradients(change).claiming(d_post="any")

    assert judge(drifting(2.0**-22)).status is Status.PASS
    assert failing(judge(drifting(2.0**-10))) == {"d_post"}
    assert failing(judge(drifting(2.0**-22).claiming(d_post="fixed"))) == {"d_post"}


def permuted_outputs(_: Case, tensors: Outputs) -> Outputs:
    """Output streams in reverse order."""
    return {
        "post": tensors["post"].flip(1),
        "comb": tensors["comb"].flip(2),
        "d_out": tensors["d_out"].flip(1),
    }


def unpermuted_outputs(_: Case, results: Outputs) -> Outputs:
    axes = {"out": (1,), "d_post": (1,), "d_comb": (2,)}
    return {name: t.flip(axes[name]) if name in axes else t for name, t in results.items()}


STREAMS = Relation("output streams in reverse order", permuted_outputs, unpermuted_outputs, exact=False)


def test_a_relation_that_the_oracle_declares_is_judged() -> None:
    def first_stream_favoured(outputs: Outputs) -> Outputs:
        if "out" in outputs:
            outputs["out"][:, 0] *= 1 + 2.0**-10
        return outputs

    oracle = replace(mhc_post, relations=(STREAMS,))
    assert judge(mhc().but(oracle=oracle)).status is Status.PASS
    verdict = judge(mhc("favours", change=first_stream_favoured).but(oracle=oracle))
    assert failing(verdict) == {"out"}
    assert "output streams in reverse order" in verdict.outputs["out"].why


def test_a_relation_that_does_not_apply_is_left_out() -> None:
    oracle = replace(mhc_post, relations=(replace(STREAMS, transform=lambda case, tensors: None),))
    assert not any("reverse order" in gate.reason for gate in judge(mhc().but(oracle=oracle)).gates)


def test_zeros_prove_nothing_by_scaling() -> None:
    verdict = judge(mhc(), CASE.but(regime="zeros"))
    scaled = [gate for gate in verdict.gates if gate.output == "out" and "times 4" in gate.reason]
    assert all(gate.vacuous for gate in scaled)


def test_values_that_would_leave_the_normal_range_are_not_scaled() -> None:
    huge = mhc("huge", change=lambda outputs: {name: t * 2.0**100 for name, t in outputs.items()})
    scaled = [gate for gate in judge(huge).gates if "exact in binary" in gate.reason]
    assert scaled
    assert all(gate.vacuous and gate.held for gate in scaled)
    far = Case.of(S=2, H=4, D=25, seed=1)
    values = {"x": torch.full((2, 25), 2.0**40, dtype=torch.float64)}
    subject = sample(mhc_post, far, values=values)
    run = execute(mhc(), subject)
    assert list(scaled_inputs(Subject(mhc(), subject, "cpu", run))) == []


def test_a_kernel_that_raises_later_is_an_error() -> None:
    calls = [0]

    def tired(outputs: Outputs) -> Outputs:
        calls[0] += 1
        if calls[0] > 3:
            raise RuntimeError("out of luck")
        return outputs

    verdict = judge(mhc("tired", change=tired))
    assert verdict.status is Status.ERROR
    assert "out of luck" in verdict.outputs["out"].why


def test_vjp_alone_and_forward_alone() -> None:
    assert judge(mhc(forward=None)).status is Status.PASS
    assert judge(mhc(vjp=None)).status is Status.PASS


def test_outputs_that_are_not_finite_never_agree() -> None:
    verdict = judge(mhc("nan", change=lambda outputs: {n: torch.full_like(t, torch.nan) for n, t in outputs.items()}))
    assert failing(verdict) >= GRADIENTS


def test_what_overflows_when_scaled_is_infinite_there_and_no_sooner() -> None:
    """FP16 ends at 65504, so that four times a gradient near 2^15 is infinite; by way of twice it is early."""
    assert judge(steep(lambda d_x: d_x.half()), STEEP).status is Status.PASS
    assert failing(judge(steep(lambda d_x: (2 * d_x).half() / 2), STEEP)) == {"d_x"}


STEEP = Case.of(S=2, D=40, dtype="fp16", regime="normal")


def steep(cast: Callable[[Tensor], Tensor]) -> KernelSpec:
    """out = x, and d_x = 2^14 d_out, whose bits are promised in no order."""
    oracle = Oracle(
        "steep",
        inputs=(Input("x", ("S", "D")),),
        outputs=(Output("out", ("S", "D")),),
        forward=lambda read, x: {"out": read.at("out", x)},
        vjp=lambda read, x, d_out: {"d_x": read.at("d_x", d_out * 2.0**14)},
        space=CaseSpace(sizes={"S": (1, 4), "D": (1, 40)}, dtypes=("fp16",)),
    )
    contract = Contract(rounds={"out": "fp16", "d_x": "fp16"}, order={"d_x": "any"}, dtypes=("fp16",))
    vjp = lambda x, *, d_out: {"d_x": cast(d_out.float() * 2.0**14)}  # noqa: E731
    return KernelSpec("steep", oracle, forward=lambda x: {"out": x.clone()}, vjp=vjp, contract=contract)


@pytest.mark.parametrize(
    ("parts", "whole", "held"),
    [
        ((inf, -1e4), 6e4, True),
        ((inf, -1e4), 5e4, False),
        ((-inf, -1e4), 6e4, False),
        ((inf, -inf), 1.0, True),
        ((4e4, 4e4), inf, True),
        ((3e4, 3e4), inf, False),
        ((nan, 0.0), 6e4, False),
    ],
)
def test_a_part_may_overflow_where_the_rest_says_so(parts: tuple[float, float], whole: float, held: bool) -> None:
    one, two, total = (torch.tensor([value], dtype=torch.float64) for value in (*parts, whole))
    allowed = torch.full_like(total, 40.0)
    assert added("x", (one, two), total, allowed, "two parts", huge=FORMATS["fp16"].huge).gate.held is held


def test_a_gradient_that_all_rows_share_adds_up_over_them() -> None:
    """d_weight averaged instead of summed is right for no batch but one of one row."""
    shared = weighted(lambda products: products.sum(0))
    assert judge(shared, SHARED).status is Status.PASS
    assert failing(judge(weighted(lambda products: products.mean(0)), SHARED)) == {"d_weight"}


SHARED = Case.of(S=4, D=9, regime="normal")


def weighted(reduce: Callable[[Tensor], Tensor]) -> KernelSpec:
    """out = x * weight, with one weight for all rows."""
    oracle = Oracle(
        "weighted",
        inputs=(Input("x", ("S", "D")), Input("weight", ("D",), dtype="fp32")),
        outputs=(Output("out", ("S", "D")),),
        forward=lambda read, x, weight: {"out": read.at("out", x * weight)},
        vjp=lambda read, x, weight, d_out: {
            "d_x": read.at("d_x", d_out * weight),
            "d_weight": read.total("d_weight", d_out * x, 0),
        },
        space=CaseSpace(sizes={"S": (1, 4), "D": (1, 9)}),
        batch="S",
    )
    return KernelSpec(
        "weighted",
        oracle,
        forward=lambda x, weight: {"out": x * weight},
        vjp=lambda x, weight, *, d_out: {"d_x": d_out * weight, "d_weight": reduce(d_out * x)},
        contract=Contract(rounds={"out": "fp32", "d_x": "fp32"}, dtypes=("fp32",)),
    )


def test_an_output_that_is_another_spec_s_has_its_bits() -> None:
    def nudged(grads: Outputs, _: Tensor) -> Outputs:
        return grads | {"d_x": grads["d_x"] * (1 + 2.0**-22)}

    agrees = {"d_x": mhc("stock"), "d_post": mhc("stock")}
    held = judge(mhc("variant", agrees=agrees))
    assert held.status is Status.PASS
    assert sum(gate.reason == "the same bits as stock gives" for gate in held.gates) == 2
    found = judge(gradients(nudged, agrees=agrees))
    assert failing(found) == {"d_x"}
    assert "the same bits as stock gives" in found.outputs["d_x"].why
    absent = mhc("absent", capability=lambda _: Unavailable("not here"))
    assert judge(gradients(nudged, agrees={"d_x": absent})).status is Status.PASS, "nothing to be held against"


def test_agreement_is_with_a_spec_of_the_same_problem_that_computes_the_output() -> None:
    for other in (mhc("forward alone", vjp=None), "stock"):
        with pytest.raises(InvalidSpec, match="d_x agrees with"):
            mhc("variant", agrees={"d_x": other})
