"""Integer, bool and optional inputs, scalars, ignored and open elements: what is right passes, each slip turns red."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck import Case, Contract, Input, KernelSpec, Oracle, Output
from numcheck.certify import certify
from numcheck.errors import InvalidSpec
from numcheck.laws import LAWS
from numcheck.laws.law import Law
from numcheck.profile import QUICK
from numcheck.sample import sample
from numcheck.verdict import Status, Verdict
from tests.meta import gather as g
from tests.meta.gather import BACKWARD, GATHER, gather

LAW = {law.name: law for law in LAWS}
BIASED, PLAIN, DEAD, EMPTY = gather.space.edges
CASES = (*gather.space.edges, BIASED.but(K=1, seed=3), PLAIN.but(T=2, R=1, regime="normal"))
# Some slots are holes, for which a kernel may read row 0, and no live slot lists row 0.
HOLED = BIASED.but(T=2, R=6)


def judge(law: str, spec: KernelSpec, case: Case = BIASED) -> Verdict:
    return LAW[law].judge(spec, case, QUICK)


def failing(verdict: Verdict) -> set[str]:
    return {name for name, output in verdict.outputs.items() if not output.status.held}


def why(verdict: Verdict) -> str:
    return " | ".join(o.why for o in verdict.outputs.values())


def broken(**changes: Any) -> KernelSpec:
    return GATHER.but(name="broken", **changes)


def after(half: str, change: Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]) -> KernelSpec:
    """The kernel, one half of whose outputs are `change(right outputs, arguments)`."""
    right = getattr(GATHER, half)
    return broken(**{half: lambda **given: change(right(**given), given)})


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
@pytest.mark.parametrize("spec", g.SPECS, ids=lambda spec: spec.name)
def test_the_right_kernel_holds_under_every_law(law: Law, spec: KernelSpec) -> None:
    judged = [(case, law.judge(spec, case, QUICK)) for case in CASES]
    assert [(case.line(), why(v)) for case, v in judged if not v.held] == []
    pooled = law.pool(spec, judged)
    assert pooled is None or pooled.held, why(pooled)
    assert all(set(v.outputs) == set(spec.judged_for(case)) for case, v in judged if law.name not in ("cancellation",))


def test_the_oracle_is_certified_with_its_optional_input_and_without() -> None:
    assert certify(gather).status == "CERTIFIED"
    with pytest.raises(InvalidSpec, match="no tiny Case has d_bias"):
        certify(replace(gather, space=replace(gather.space, tiny=(PLAIN.but(T=2, D=1),))))


def test_a_hole_is_selected_away_and_not_multiplied_by_zero() -> None:
    def multiplies(table: Tensor, idx: Tensor, w: Tensor, keep: Tensor, **rest: Any) -> dict[str, Tensor]:
        g.check(table, idx, w, keep, rest["bias"])
        live = (idx >= 0) & keep
        picked = table[torch.where(live, idx, 0)].float()
        weight = torch.where(live, rest["scale"] * w, 0.0)
        right = g.forward(table, idx, w, keep, **rest)
        start = 0.0 if rest["bias"] is None else rest["bias"]
        return {**right, "out": ((weight[..., None] * picked).sum(1) + start).to(table.dtype)}

    spec = broken(forward=multiplies)
    assert judge("accuracy", spec, HOLED).held
    verdict = judge("edges", spec, HOLED)
    assert failing(verdict) == {"out"}
    assert "elements that must not matter do not: table, w, idx" in why(verdict)


def test_a_cotangent_of_a_dead_row_must_not_matter() -> None:
    spec = after("vjp", lambda right, given: {**right, "d_bias": given["d_out"].float().sum(0)})
    case = BIASED.but(kept=0.3, seed=4)
    assert failing(judge("edges", spec, case)) == {"d_bias"}


def test_an_index_of_a_slot_that_is_not_kept_must_not_matter() -> None:
    def reads(right: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        return {**right, "level": right["level"] + (given["idx"] > 2**30).sum(1)}

    assert judge("accuracy", after("forward", reads)).held
    assert failing(judge("edges", after("forward", reads))) == {"level"}


def test_memory_between_indices_does_not_matter_either() -> None:
    def peeks(right: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        idx = given["idx"]
        beyond = idx.as_strided((1,), (1,), idx.storage_offset() - 1)
        return {**right, "out": right["out"] + beyond - 1}

    verdict = judge("edges", after("forward", peeks))
    assert failing(verdict) == {"out"}
    assert "memory between and around the inputs' elements" in why(verdict)


def test_a_scalar_that_is_not_read_is_an_accuracy_failure() -> None:
    spec = broken(forward=lambda **given: g.forward(**{**given, "scale": 1.0}))
    assert failing(judge("accuracy", spec)) == {"out"}
    half = broken(vjp=lambda **given: g.vjp(**{**given, "scale": 1.0}))
    assert failing(judge("accuracy", half)) == {"d_table", "d_w"}


@pytest.mark.parametrize(("name", "wrong"), [("idx", "torch.int64"), ("keep", "torch.uint8"), ("w", "torch.float64")])
def test_a_wrong_dtype_has_to_be_refused(name: str, wrong: str) -> None:
    right = sample(gather, BIASED).inputs[name].dtype

    def lenient(**given: Any) -> dict[str, Tensor]:
        return g.forward(**{**given, name: given[name].to(right)})

    told = why(judge("edges", broken(forward=lenient)))
    assert f"forward with {name} in {wrong} instead of {right}: it was accepted without a word" in told


def test_an_index_tensor_of_another_shape_has_to_be_refused() -> None:
    def crops(**given: Any) -> dict[str, Tensor]:
        w, keep = (given[name][: len(given["idx"]), : given["idx"].shape[1]] for name in ("w", "keep"))
        return g.forward(**{**given, "idx": given["idx"][: len(w), : w.shape[1]], "w": w, "keep": keep})

    assert "forward with keep of shape [6, 4] instead of [6, 3]" in why(judge("edges", broken(forward=crops)))


def test_an_absent_input_comes_as_none_and_its_gradient_is_not_asked_for() -> None:
    assert set(sample(gather, PLAIN).inputs) == {"table", "idx", "w", "keep"}
    assert "d_bias" not in judge("accuracy", GATHER, PLAIN).outputs
    needs_one = broken(forward=lambda **given: g.forward(**{**given, "bias": given["bias"] + 0.0}))
    assert judge("accuracy", needs_one).held
    assert judge("accuracy", needs_one, PLAIN).status is Status.ERROR
    unasked = after("vjp", lambda right, given: {**right, "d_bias": torch.zeros(given["table"].shape[1])})
    assert "returned 'd_bias'" in why(judge("accuracy", unasked, PLAIN))
    missing = after("vjp", lambda right, given: {name: t for name, t in right.items() if name != "d_bias"})
    assert judge("accuracy", missing, PLAIN).held
    assert "did not return d_bias" in why(judge("accuracy", missing))


def test_a_gradient_that_no_case_asks_for_is_not_in_the_pooled_verdict() -> None:
    judged = [(case, judge("bitwise", GATHER, case)) for case in (PLAIN, PLAIN.but(seed=1))]
    pooled = LAW["bitwise"].pool(GATHER, judged)
    assert pooled is not None
    assert set(pooled.outputs) == {"out", "level", "count", "d_table", "d_w"}


def test_an_integer_output_is_exact_or_wrong() -> None:
    spec = after("forward", lambda right, _: {**right, "count": right["count"] + (right["count"] > 2)})
    case = BIASED.but(K=4)
    for law in ("accuracy", "edges"):
        verdict = judge(law, spec, case)
        assert "count" in failing(verdict)
        assert verdict.outputs["count"].where == "count got=5.0 expected=4.0 at (4,)"


def test_an_infinite_truth_is_reached_or_missed() -> None:
    for wrong in (1e30, -float("inf"), float("nan")):
        spec = after("forward", lambda right, _, x=wrong: {**right, "level": right["level"].nan_to_num(posinf=x)})
        for law in ("accuracy", "edges"):
            assert failing(judge(law, spec, DEAD)) == {"level"}
    gates = [gate for case in CASES for gate in judge("accuracy", GATHER, case).gates]
    assert gates
    assert all(gate.value == gate.value and gate.limit == gate.limit for gate in gates)


def test_an_open_element_may_be_anything_that_comes_back_again() -> None:
    def filler(value: Callable[[], float]) -> KernelSpec:
        def fills(right: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
            live = ((given["idx"] >= 0) & given["keep"]).any(1)
            return {**right, "out": torch.where(live[:, None], right["out"], value())}

        return after("forward", fills)

    assert judge("accuracy", filler(lambda: 7.0), DEAD).held
    assert all(judge(law, filler(lambda: 7.0), BIASED.but(seed=4)).held for law in LAW)
    drift = iter(range(10**6))
    assert failing(judge("bitwise", filler(lambda: float(next(drift))), DEAD)) == {"out"}
    named = after("forward", lambda right, _: {**right, "out": torch.full_like(right["out"], 7.0)})
    assert failing(judge("accuracy", named)) == {"out"}


def test_a_sum_over_the_batch_is_added_up_from_its_halves() -> None:
    assert gather.partial == ("d_table", "d_bias")

    def mean(right: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        return {**right, "d_table": right["d_table"] / len(given["idx"])}

    verdict = judge("invariance", after("vjp", mean))
    assert failing(verdict) == {"d_table"}
    assert "a sum over the batch" in why(verdict)


def test_an_oracle_that_multiplies_by_a_mask_is_found_out() -> None:
    def careless(read: Any, **given: Any) -> dict[str, Any]:
        live = ((given["idx"] >= 0) & given["keep"]).to(torch.float64)
        right = gather.forward(read, **given)
        picked = given["table"][given["idx"].clamp(0, given["table"].shape[0] - 1)]
        start = 0.0 if given["bias"] is None else given["bias"]
        return {**right, "out": ((given["scale"] * given["w"] * live)[..., None] * picked).sum(1) + start}

    verdict = judge("edges", GATHER.but(oracle=replace(gather, forward=careless)), HOLED)
    assert verdict.status is Status.ERROR
    assert "select them away, since 0 * NaN is NaN" in why(verdict)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("scalars", lambda case: {"scale": [1.0]}, "scalar scale="),
        ("scalars", lambda case: {"scale": 1.0, "w": 2.0}, "'w' is a tensor and a scalar"),
        ("ignored", lambda case, t: {"tabel": torch.tensor(True)}, "ignored names 'tabel'"),
        ("ignored", lambda case, t: {"table": torch.ones(3)}, "give a bool mask"),
        ("unspecified", lambda case, t: {"out": torch.ones(5, 5, dtype=torch.bool)}, r"of shape \(5, 5\)"),
    ],
)
def test_what_an_oracle_declares_wrongly_is_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        judge("edges", GATHER.but(oracle=replace(gather, **{field: value})))


def test_an_integer_that_does_not_fit_its_dtype_is_refused() -> None:
    wide = tuple(replace(i, dtype="int8", fill=lambda c, n: torch.full((c["T"], c["K"]), 200)) if i.name == "idx" else i
                 for i in gather.inputs)  # fmt: skip
    with pytest.raises(InvalidSpec, match="values of idx do not fit int8"):
        sample(replace(gather, inputs=wide), BIASED)


def test_a_partial_output_needs_a_batch() -> None:
    with pytest.raises(InvalidSpec, match="say which size is the batch"):
        replace(gather, batch="", partial=("d_table",))


def _softmax(read: Any, x: Any, v: Any) -> dict[str, Any]:
    p = torch.exp(x - x.amax(1, keepdim=True))
    return {"out": read.at("out", read.total("out", p * v, 1) / read.total("l", p, 1))}


pooling = Oracle(
    "pooling",
    inputs=(Input("x", ("S", "D"), grad=False), Input("v", ("S", "D"), grad=False)),
    outputs=(Output("out", ("S",), "fp32", cotangent=False),),
    forward=_softmax,
    space=replace(gather.space, sizes={"S": (1, 4), "D": (1, 9)}, facts={}, grid={}, edges=(), tiny=()),
)


def _exp2_of_a_difference(x: Tensor, v: Tensor) -> dict[str, Tensor]:
    # As a kernel with a fused multiply-add does it: the product of the maximum is rounded, that of the element is not.
    scale, top = 1.4426950408889634, x.amax(1, keepdim=True)
    p = torch.exp2((x.double() * scale - (top * scale).double()).float())
    return {"out": (p * v).sum(1) / p.sum(1)}


def test_what_goes_through_an_exponential_is_not_scaled_and_what_does_not_is() -> None:
    """One slot has the softmax 1, whatever its score: the truth does not move, though a right kernel's bits do."""
    spec = KernelSpec("pooling", pooling, forward=_exp2_of_a_difference, contract=Contract(dtypes=("fp32",)))
    for case in (Case.of(S=3, D=1, regime="normal"), Case.of(S=3, D=5, regime="normal")):
        verdict = judge("invariance", spec, case)
        assert verdict.held, why(verdict)
        told = [gate.reason for gate in verdict.gates if "times 4" in gate.reason]
        assert told == ["v times 4 gives out times 4, exact in binary"]
    coarse = spec.but(forward=lambda x, v: _exp2_of_a_difference(x, (v * 8).round() / 8))
    assert failing(judge("invariance", coarse, Case.of(S=3, D=5, regime="normal"))) == {"out"}


def test_a_backward_alone_gets_integer_saved_outputs() -> None:
    seen = []

    def watches(**given: Any) -> dict[str, Any]:
        seen.append(given["count"])
        return g.vjp(**given)

    assert judge("accuracy", BACKWARD.but(vjp=watches)).held
    assert seen[0].dtype == torch.int32
    assert seen[0].tolist() == g.forward(**gather.for_forward(sample(gather, BIASED).given))["count"].tolist()


def test_an_optional_saved_output_comes_as_none_where_the_case_has_none() -> None:
    def forward(read: Any, x: Any) -> dict[str, Any]:
        return {"out": read.at("out", 2.0 * x), "twice": read.at("twice", 2.0 * x) if x.shape[0] > 1 else None}

    def vjp(read: Any, x: Any, twice: Any, d_out: Any) -> dict[str, Any]:
        assert (twice is None) == (x.shape[0] == 1)
        return {"d_x": read.at("d_x", 2.0 * d_out)}

    oracle = Oracle(
        "twice",
        inputs=(Input("x", ("N",)),),
        outputs=(
            Output("out", ("N",)),
            Output("twice", ("N",), saved=True, cotangent=False, given=lambda case: case["N"] > 1),
        ),
        forward=forward,
        vjp=vjp,
        space=replace(gather.space, sizes={"N": (1, 9)}, facts={}, grid={}, edges=(), tiny=()),
    )

    def kernel(x: Tensor, twice: Tensor | None, d_out: Tensor) -> dict[str, Tensor]:
        assert (twice is None) == (len(x) == 1)
        return {"d_x": 2 * d_out}

    spec = KernelSpec("twice", oracle, vjp=kernel, contract=Contract(dtypes=("fp32",)))
    assert judge("accuracy", spec, Case.of(N=1)).held
    assert judge("accuracy", spec, Case.of(N=4)).held
    whole = spec.but(forward=lambda x: {"out": 2 * x, "twice": 2 * x if len(x) > 1 else None})
    assert judge("accuracy", whole, Case.of(N=1)).held
    assert set(judge("accuracy", whole, Case.of(N=4)).outputs) == {"out", "twice", "d_x"}
