"""Readings of one oracle, against kernels in real FP32 and bf16 arithmetic with the policy that they declare."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.contract import Contract, Policy, Rounding, Sum
from numcheck.errors import InvalidSpec
from numcheck.oracle import CaseSpace, Input, Oracle, Output
from numcheck.oracles import mhc_post
from numcheck.reading import Emulation, Noise, Radius, Recording, Truth, read, readings
from numcheck.reading.watch import unnamed
from numcheck.sample import Sample, sample
from numcheck.ulp import round_to, ulp

CHAIN = Sum(tree="sequential")
SUMS = {"": "fp32", "out": CHAIN, "mix": CHAIN, "d_x": CHAIN, "d_residual": CHAIN}
REGIMES = ("wide", "normal", "mean4", "cancelling", "integers")


def policy(name: str, case: Case) -> Policy:
    return Contract(rounds=mhc_post.policies[name], accumulate=SUMS).policy(case)


def chain(first: Tensor, *others: Tensor) -> Tensor:
    for other in others:
        first = first + other
    return first


def kernel(s: Sample, *, low: bool) -> dict[str, Tensor]:
    """mHC post in FP32; `low`: with post, comb, post * x, the mix and the coefficient gradients rounded to bf16."""

    def cut(t: Tensor) -> Tensor:
        return t.bfloat16().float() if low else t

    x, residual, g = s.inputs["x"].float(), s.inputs["residual"].float(), s.cotangents["d_out"].float()
    post, comb, dtype = cut(s.inputs["post"]), cut(s.inputs["comb"]), s.inputs["x"].dtype
    streams = range(post.shape[1])
    px = cut(post[:, :, None] * x[:, None])
    sources = [comb[:, k, :, None] * residual[:, k, None] for k in streams]
    out = px + cut(chain(*sources)) if low else chain(px, *sources)
    return {
        "out": out.to(dtype),
        "d_x": chain(*[post[:, k, None] * g[:, k] for k in streams]).to(dtype),
        "d_residual": chain(*[comb[:, :, k, None] * g[:, None, k] for k in streams]).to(dtype),
        "d_post": cut((x[:, None] * g).sum(-1)),
        "d_comb": cut((residual[:, :, None] * g[:, None]).sum(-1)),
    }


def cases(count: int, *dtypes: str) -> list[Case]:
    """Cases over all regimes and streams, D from 1 to about 500."""
    return [
        Case.of(
            S=1 + k % 2,
            H=(1, 2, 4, 8)[k % 4],
            D=(1, 7, 31, 100, 257, 500)[k % 6],
            dtype=dtypes[k % len(dtypes)],
            regime=REGIMES[k % 5],
            seed=k,
        )
        for k in range(count)
    ]


def rms(t: Tensor) -> float:
    return t.pow(2).mean().sqrt().item()


def test_truth_is_the_formula() -> None:
    s = sample(mhc_post, Case.of(S=2, H=4, D=31, dtype="bf16"))
    e = s.exact()
    truth = read(mhc_post, Truth(), e)
    out = e["post"][:, :, None] * e["x"][:, None] + torch.einsum("tso,tsd->tod", e["comb"], e["residual"])
    assert torch.allclose(truth["out"], out, rtol=1e-14, atol=0)
    assert torch.allclose(truth["d_comb"], torch.einsum("tsd,tod->tso", e["residual"], e["d_out"]), rtol=1e-12)
    assert list(truth) == ["out", "d_x", "d_residual", "d_post", "d_comb"]


@pytest.mark.parametrize(("name", "low"), [("fp32", False), ("bf16 rounding", True)])
def test_emulation_has_the_bits_of_the_kernel_and_no_other_policy_has(name: str, low: bool) -> None:
    right, wrong = 0, 0
    for case in cases(20, "bf16"):
        s = sample(mhc_post, case)
        got = kernel(s, low=low)
        mine = read(mhc_post, Emulation(policy(name, case)), s.exact())
        other = read(mhc_post, Emulation(policy("fp32" if low else "bf16 rounding", case)), s.exact())
        for output in ("out", "d_x", "d_residual"):
            right += int((got[output].double() != mine[output]).sum())
            wrong += int((got[output].double() != other[output]).sum())
    assert right == 0
    assert wrong > 1000


def test_the_declared_order_of_a_chain_is_replayed() -> None:
    case = Case.of(S=1, H=8, D=257)
    s = sample(mhc_post, case)
    mine = read(mhc_post, Emulation(policy("fp32", case)), s.exact())
    assert torch.equal(mine["out"], kernel(s, low=False)["out"].double())
    reversed_sources = s.but(residual=s.inputs["residual"].flip(1), comb=s.inputs["comb"].flip(1))
    backwards = read(mhc_post, Emulation(policy("fp32", case)), reversed_sources.exact())
    assert not torch.equal(mine["out"], backwards["out"])


def test_a_sum_is_made_apart_only_where_it_rounds_apart() -> None:
    # 2^24 + 1 + 1: one chain loses both ones, a mix made apart keeps them.
    onto = torch.tensor([2.0**24], dtype=torch.float64)
    terms = torch.ones(2, 1, dtype=torch.float64)
    sums = {"": Sum(tree="sequential")}
    whole = Emulation(Policy({}, sums)).total("out", terms, 0, onto=onto, apart="mix")
    apart = Emulation(Policy({"mix": Rounding("bf16")}, sums)).total("out", terms, 0, onto=onto, apart="mix")
    assert whole.item() == 2.0**24
    assert apart.item() == 2.0**24 + 2


def test_terms_round_one_by_one_where_declared() -> None:
    terms = torch.tensor([1 + 2.0**-8 + 2.0**-20] * 4, dtype=torch.float64)
    policy = Policy({"d_x.terms": Rounding("bf16")}, {"": Sum()})
    assert Emulation(policy).total("d_x", terms, 0).item() == 4 * (1 + 2.0**-7)
    assert Radius(policy).total("d_x", terms, 0).radius.item() >= 4 * (2.0**-8 - 2.0**-20)


def test_a_cast_to_the_accumulators_own_dtype_is_no_rounding_point() -> None:
    value = torch.tensor([1 + 2.0**-30], dtype=torch.float64)
    same = Policy({"out": Rounding("fp32")}, {"": Sum("fp32")})
    wider = Policy({"out": Rounding("fp32")}, {"": Sum("fp64")})
    assert Emulation(same).at("out", value).item() == value.item()
    assert Emulation(wider).at("out", value).item() == 1.0
    # fp16 has more digits than bf16 and less range: it does round what a bf16 accumulator holds.
    assert Emulation(Policy({"out": Rounding("fp16")}, {"": Sum("bf16")})).at("out", value * 1e6).item() == math.inf


def test_noise_is_half_an_ulp_where_something_rounds_and_nothing_elsewhere() -> None:
    v = torch.linspace(1, 1.9, 1000, dtype=torch.float64)
    v[::2] = round_to(v[::2], "bf16")
    noise = Noise(Policy({"out": Rounding("bf16")}, {"": Sum()}), seed=0)
    error = noise.at("out", v) - v
    assert bool((error[::2] == 0).all())
    assert bool((error.abs() <= ulp(v, "bf16") / 2).all())
    assert rms(error[1::2]) == pytest.approx(2.0**-7 / 12**0.5, rel=0.1)


def test_noise_of_a_truncation_points_to_zero() -> None:
    v = torch.linspace(-1.9, 1.9, 1001, dtype=torch.float64)
    noise = Noise(Policy({"out": Rounding("bf16", "truncate")}, {"": Sum()}), seed=0)
    error = noise.at("out", v) - v
    assert bool((error * torch.sign(v) <= 0).all())
    large = v.abs() > 1
    assert (error.abs() / ulp(v, "bf16"))[large].mean().item() == pytest.approx(0.5, abs=0.05)


def test_one_rounded_coefficient_is_one_error_for_its_whole_row() -> None:
    case = Case.of(S=1, H=1, D=100, dtype="bf16", regime="normal")
    s = sample(mhc_post, case)
    shifts = []
    for seed in range(2):
        noisy = read(mhc_post, Noise(Policy({"post": Rounding("bf16")}, {"": Sum("fp64")}), seed), s.exact())
        moved = noisy["out"] - read(mhc_post, Truth(), s.exact())["out"]
        ratio = (moved / s.exact()["x"][:, None]).flatten()
        assert (ratio.max() - ratio.min()).item() < 1e-12
        shifts.append(ratio[0].item())
    assert shifts[0] != shifts[1]


def test_shared_spreads_give_the_same_spread_as_fresh_ones() -> None:
    case = Case.of(S=1, H=4, D=257, dtype="bf16")
    s, p = sample(mhc_post, case), policy("bf16 rounding", case)
    exact, truth = s.exact(), read(mhc_post, Truth(), s.exact())
    shared: dict[Any, Any] = {}
    with_cache = [read(mhc_post, Noise(p, k, shared), exact) for k in range(8)]
    without = [read(mhc_post, Noise(p, 100 + k), exact) for k in range(8)]
    for name in truth:
        spreads = [math.sqrt(sum(rms(d[name] - truth[name]) ** 2 for d in draws)) for draws in (with_cache, without)]
        assert spreads[0] == pytest.approx(spreads[1], rel=0.35)


def test_a_draw_is_a_function_of_its_seed() -> None:
    case = Case.of(S=1, H=2, D=31, dtype="bf16")
    s, p = sample(mhc_post, case), policy("fp32", case)
    noise = Noise(p, 5)
    first, again = (read(mhc_post, noise, s.exact()) for _ in range(2))
    other = read(mhc_post, Noise(p, 6), s.exact())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["out"], other["out"])


@pytest.mark.parametrize("regime", ["integers", "ones", "zeros"])
def test_nothing_is_predicted_where_nothing_rounds(regime: str) -> None:
    case = Case.of(S=2, H=4, D=257, dtype="bf16", regime=regime)
    r = readings(mhc_post, policy("fp32", case), sample(mhc_post, case), draws=2)
    for reading in (r.emulation, *r.noise, *r.jitters):
        assert all(torch.equal(reading[name], r.truth[name]) for name in r.truth)


def test_predicted_and_measured_agree_pooled_over_25_cases() -> None:
    # A Case counts with its own size: measured / predicted of 25 Cases, mean of squares. A single coefficient's
    # rounding error has a relative spread of 0.45 in the mean square, so the pooled figure one of about 0.1.
    for name, low in (("fp32", False), ("bf16 rounding", True)):
        ratios: dict[str, list[float]] = {"out": [], "d_x": [], "d_residual": []}
        for k in range(25):
            case = Case.of(S=2, H=4, D=31 + k, dtype="bf16", regime=REGIMES[k % 3], seed=k)
            s = sample(mhc_post, case)
            r = readings(mhc_post, policy(name, case), s, draws=16, jitters=0)
            got = kernel(s, low=low)
            for output, found in ratios.items():
                predicted = sum(rms(n[output] - r.truth[output]) ** 2 for n in r.noise) / 16
                found.append(rms(got[output].double() - r.truth[output]) ** 2 / predicted)
        for found in ratios.values():
            assert 0.9 < math.sqrt(sum(found) / 25) < 1.1


def test_no_element_of_a_right_kernel_leaves_its_radius() -> None:
    for case in cases(75, "bf16", "bf16", "fp32"):
        for name, low in (("fp32", False), ("bf16 rounding", True)):
            s = sample(mhc_post, case)
            radius = read(mhc_post, Radius(policy(name, case)), s.exact())
            truth = read(mhc_post, Truth(), s.exact())
            for output, got in kernel(s, low=low).items():
                assert bool(((got.double() - truth[output]).abs() <= radius[output]).all()), (case.line(), output)


def test_an_undeclared_rounding_leaves_the_radius() -> None:
    case = Case.of(S=1, H=4, D=25, dtype="bf16", regime="normal")
    s = sample(mhc_post, case)
    radius = read(mhc_post, Radius(policy("fp32", case)), s.exact())
    truth = read(mhc_post, Truth(), s.exact())
    got = kernel(s, low=True)
    for output in truth:
        assert bool(((got[output].double() - truth[output]).abs() > radius[output]).any())


def test_the_reported_cancellation() -> None:
    reported = mhc_post.cancellations[0]
    s = sample(mhc_post, reported.case, values=reported.values)
    exact = torch.tensor(reported.exact["out"], dtype=torch.float64)
    assert torch.equal(read(mhc_post, Truth(), s.exact())["out"], exact)
    new = read(mhc_post, Emulation(policy("fp32", reported.case)), s.exact())["out"].flatten()
    old = read(mhc_post, Emulation(policy("bf16 rounding", reported.case)), s.exact())["out"].flatten()
    assert new.tolist() == [0.0030059814453125, 0.0]
    assert old.tolist() == [0.0, 0.0]
    # The FP32 policy promises that the result survives: its radius is below half of it. The old one's is not.
    assert read(mhc_post, Radius(policy("fp32", reported.case)), s.exact())["out"].flatten()[0] < exact.flatten()[0] / 2
    assert read(mhc_post, Radius(policy("bf16 rounding", reported.case)), s.exact())["out"].flatten()[0] >= exact.max()


@pytest.mark.parametrize("which", range(1, 5))
def test_every_cancellation_is_exact(which: int) -> None:
    c = mhc_post.cancellations[which]
    s = sample(mhc_post, c.case, values=c.values)
    assert read(mhc_post, Truth(), s.exact())["out"].tolist() == c.exact["out"]


def test_jitter_flips_few_16_bit_results_and_most_fp32_ones() -> None:
    case = Case.of(S=1, H=4, D=4096, dtype="bf16", regime="normal")
    r = readings(mhc_post, policy("fp32", case), sample(mhc_post, case), draws=0, jitters=2)
    for jitter in r.jitters:
        # Half an FP32 ulp flips about 2^-16 of bf16 results; 16384 of them give none or a few.
        assert int((jitter["out"] != r.emulation["out"]).sum()) < 10
        assert int((jitter["d_comb"] != r.emulation["d_comb"]).sum()) == 16


def test_recording_keeps_each_totals_terms() -> None:
    s = sample(mhc_post, Case.of(S=2, H=4, D=31))
    recording = Recording()
    truth = read(mhc_post, recording, s.exact())
    assert set(recording.terms) == {"out", "d_x", "d_residual", "d_post", "d_comb"}
    for name, (terms, dim) in recording.terms.items():
        assert torch.allclose(terms.sum(dim), truth[name], rtol=1e-12, atol=1e-12)
    terms, dim = recording.terms["out"]
    assert terms.shape == (2, 4, 31, 5)
    first = s.exact()["post"][:, :, None] * s.exact()["x"][:, None]
    assert torch.equal(terms.select(dim, 0), first)


def test_autograd_stands_in_for_a_missing_vjp() -> None:
    case = Case.of(S=2, H=2, D=9, dtype="bf16")
    s, p = sample(mhc_post, case), policy("fp32", case)
    bare = replace(mhc_post, vjp=None)
    mine, theirs = readings(mhc_post, p, s, 2), readings(bare, p, s, 2)
    for name in mine.truth:
        assert torch.allclose(mine.truth[name], theirs.truth[name], rtol=1e-12)
        assert torch.allclose(mine.emulation[name], theirs.emulation[name], rtol=2.0**-8)
        got = kernel(s, low=False)[name].double()
        assert bool(((got - theirs.truth[name]).abs() <= theirs.radius[name]).all())
        wrong = kernel(s, low=True)[name].double()
        assert bool(((wrong - theirs.truth[name]).abs() > theirs.radius[name]).any())


def normed(read: Any, x: Any, w: Any) -> dict[str, Any]:
    mean = read.total("mean", x * x, -1) / x.shape[-1]
    return {"out": read.at("out", torch.tanh(x * torch.rsqrt(mean + 1e-6)[:, None] * torch.relu(w)))}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_derived_vjp_has_a_worst_case_that_holds(dtype: str) -> None:
    oracle = Oracle(
        "normed",
        inputs=(Input("x", ("N", "D")), Input("w", ("D",), fill="gain")),
        outputs=(Output("out", ("N", "D")),),
        forward=normed,
        space=CaseSpace({"N": (1, 9), "D": (1, 99)}),
    )
    case = Case.of(N=8, D=65, dtype=dtype, regime="normal")
    s = sample(oracle, case)
    r = readings(oracle, Contract(rounds=dict.fromkeys(("out", "d_x", "d_w"), "data")).policy(case), s, draws=4)
    leaves = {name: t.float().requires_grad_() for name, t in s.inputs.items()}
    out = normed(Truth(), **leaves)["out"]
    found = torch.autograd.grad(out, list(leaves.values()), s.cotangents["d_out"].float())
    for name, got in {"out": out, "d_x": found[0], "d_w": found[1]}.items():
        error = (got.detach().to(s.inputs["x"].dtype).double() - r.truth[name]).abs()
        assert bool((error <= r.radius[name]).all())
        # The worst case is a few hundred times the error at most, and the noise covers what a right kernel shows.
        assert rms(r.radius[name]) < 300 * rms(error)
        predicted = math.sqrt(sum(rms(n[name] - r.truth[name]) ** 2 for n in r.noise) / 4)
        assert rms(error) < 1.3 * predicted


def attention(read: Any, q: Any, k: Any, v: Any) -> dict[str, Any]:
    """Sums that have no name, as an author might write them first."""
    return {"out": read.at("out", torch.softmax(q @ k.mT / 8.0, -1) @ v)}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_unnamed_sums_widen_the_draws(dtype: str) -> None:
    dims = ("N", "D")
    oracle = Oracle(
        "attention",
        inputs=(Input("q", dims), Input("k", dims), Input("v", dims)),
        outputs=(Output("out", dims),),
        forward=attention,
        space=CaseSpace({"N": (1, 99), "D": (1, 99)}),
    )
    case = Case.of(N=24, D=64, dtype=dtype, regime="mean4")
    s = sample(oracle, case)
    assert unnamed(oracle, s.exact()) == ("matmul", "softmax")
    r = readings(oracle, Contract(rounds={"out": "data", "d_v": "data"}).policy(case), s, draws=4)
    out = attention(Truth(), **{name: t.float() for name, t in s.inputs.items()})["out"]
    error = out.to(s.inputs["q"].dtype).double() - r.truth["out"]
    assert bool((error.abs() <= r.radius["out"]).all())
    assert rms(error) < 1.3 * math.sqrt(sum(rms(n["out"] - r.truth["out"]) ** 2 for n in r.noise) / 4)


def test_named_sums_are_not_called_unnamed() -> None:
    assert unnamed(mhc_post, sample(mhc_post, Case.of(S=1, H=2, D=3)).exact()) == ()


def test_a_result_that_a_device_may_flush_to_zero_is_within_its_radius() -> None:
    tiny = torch.full((1,), 1e-40, dtype=torch.float64)
    reading = Radius(Policy({}, {"": Sum()}))
    assert reading.leave(reading.enter(tiny)).item() >= 1e-40
    assert reading.leave(reading.enter(tiny * 0)).item() == 0.0


def saved_oracle() -> Oracle:
    """y = x^2, with a VJP that takes y instead of x: d_x = 2 sqrt(y) d_y for positive x."""
    return Oracle(
        name="square",
        inputs=(Input("x", ("N",), fill="unit"),),
        outputs=(Output("y", ("N",), saved=True),),
        forward=lambda read, x: {"y": read.at("y", x * x)},
        vjp=lambda read, x, y, d_y: {"d_x": read.at("d_x", 2.0 * torch.sqrt(y) * d_y)},
        space=CaseSpace({"N": (1, 9)}),
    )


def test_the_vjp_takes_the_kernels_own_saved_output() -> None:
    oracle, case = saved_oracle(), Case.of(N=5, dtype="bf16")
    exact = sample(oracle, case).exact()
    own = read(oracle, Truth(), exact)
    kept = round_to(own["y"], "bf16")
    fed = read(oracle, Truth(), exact, {"y": kept})
    assert torch.equal(fed["y"], own["y"])
    assert torch.allclose(fed["d_x"], 2 * kept.sqrt() * exact["d_y"])
    assert not torch.equal(fed["d_x"], own["d_x"])
    # Given bits are certain: the radius of the gradient no longer holds the rounding of y.
    p = Contract(rounds={"y": "bf16"}).policy(case)
    assert bool((read(oracle, Radius(p), exact, {"y": kept})["d_x"] < read(oracle, Radius(p), exact)["d_x"]).all())


def test_an_oracle_that_returns_something_else_is_told_so() -> None:
    oracle = replace(saved_oracle(), forward=lambda read, x: {"z": x})
    with pytest.raises(InvalidSpec, match="returned z, it declares y"):
        read(oracle, Truth(), sample(oracle, Case.of(N=2)).exact())


def test_an_output_of_another_shape_is_told_so() -> None:
    oracle = replace(saved_oracle(), forward=lambda read, x: {"y": x.sum()})
    with pytest.raises(InvalidSpec, match="shape"):
        readings(oracle, Contract().policy(Case.of(N=2)), sample(oracle, Case.of(N=2)), 0)


def test_empty_cases_read_empty() -> None:
    case = Case.of(S=0, H=4, D=31, dtype="bf16")
    r = readings(mhc_post, policy("bf16 rounding", case), sample(mhc_post, case), 2)
    assert r.radius["out"].shape == (0, 4, 31)
    assert r.noise[0]["d_comb"].shape == (0, 4, 4)
