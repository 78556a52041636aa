"""Each gate on readings made by hand: one broken output that it catches, one right output that it passes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck import judge
from numcheck.gate import Gate
from numcheck.judge import FEWEST, MODEL, output_gates
from numcheck.residual import Residual
from numcheck.ulp import round_to, ulp
from numcheck.verdict import Status, accuracy_status

DRAWS, JITTERS = 16, 8
SUM_NOISE = 2.0**-24


def readings(truth: Tensor, grid: str = "bf16", seed: int = 0) -> Residual:
    """A right output of one final cast after an FP32 sum, with its readings."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, *truth.shape, generator=generator, dtype=torch.float64) - 0.5

    rounded = grid != "fp32"
    step = ulp(truth, grid).masked_fill(round_to(truth, grid) == truth, 0.0)
    acc = SUM_NOISE * truth.abs() if rounded else torch.zeros_like(truth)
    emulation = round_to(truth, grid) if rounded else truth
    jittered = truth + acc * uniform(JITTERS)
    got = round_to(truth + acc * uniform(1)[0], grid)
    return Residual(
        name="out",
        grid=grid,
        rounded=rounded,
        got=got,
        truth=truth,
        emulation=emulation,
        radius=step / 2 + acc,
        noise=truth + step * uniform(DRAWS),
        jitters=round_to(jittered, grid) if rounded else jittered,
    )


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gate(gates: list[Gate], kind: str) -> Gate:
    return next(g for g in gates if g.kind == kind)


def failed(r: Residual, **kwargs: Any) -> set[str]:
    return {g.kind for g in output_gates(r, **kwargs) if not g.held}


@pytest.mark.parametrize("shape", [(1,), (7, 5), (20, 20), (4, 8, 64)])
@pytest.mark.parametrize("grid", ["bf16", "fp16", "fp32"])
def test_a_right_output_passes_every_gate(shape: tuple[int, ...], grid: str) -> None:
    gates = output_gates(readings(normal(*shape), grid), cap=0.1)
    assert accuracy_status(gates).status is Status.PASS
    assert all(g.reason for g in gates)


def test_truncation_is_caught_by_ceiling_match_band_and_bias() -> None:
    r = readings(normal(20, 20))
    assert failed(replace(r, got=round_to(r.truth, "bf16", "truncate"))) == {"ceiling", "match", "band", "bias"}


def test_a_lean_that_the_emulation_shares_is_no_bias_of_a_large_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that lie some 0.7 of a spacing above the grid all round up: nearest, and as biased as a truncation."""
    grid = round_to(normal(20, 20).abs() + 1, "bf16")
    truth = grid + (0.7 + 0.05 * normal(20, 20, seed=2).tanh()) * ulp(grid, "bf16")
    r = readings(truth)
    assert failed(r) == {"bias"}
    monkeypatch.setattr(judge, "LEANING", 400)
    assert failed(r) == set()
    assert "bias" in failed(replace(r, got=round_to(truth, "bf16", "truncate")))


def test_one_element_beyond_its_radius_fails_the_ceiling_alone() -> None:
    r = readings(normal(400))
    got = r.got.clone()
    got[17] += 2 * float(ulp(got[17:18], "bf16"))
    bad = replace(r, got=got)
    assert failed(bad) == {"ceiling"}
    assert gate(output_gates(bad), "ceiling").value > 2


def test_a_missing_rounding_is_below_the_band() -> None:
    """An FP64 result in place of the promised cast: too good is a finding too."""
    r = readings(normal(400))
    assert "band" in failed(replace(r, got=r.truth + 0.1 * (r.got - r.truth)))


def test_band_and_bias_need_independent_errors() -> None:
    few, repeated = readings(normal(FEWEST - 1)), readings(torch.full((4, 400), 1.0001, dtype=torch.float64))
    for r, why in ((few, "pooled over Cases"), (repeated, "fewer than half")):
        for kind in ("band", "bias"):
            assert why in gate(output_gates(r), kind).vacuous
        assert accuracy_status(output_gates(r)).status is Status.PASS


def test_a_few_large_values_among_many_are_few() -> None:
    """A row 2^20 times the others makes every norm by itself, and in it one value that comes back again and again."""
    values = normal(1600).reshape(40, 40)
    values[0] *= 2.0**20
    for repeats in (0, 18):
        values[0, :repeats] = float(values[0, 0])
        for kind in ("band", "bias"):
            assert gate(output_gates(readings(values)), kind).vacuous
    even = normal(1600).reshape(40, 40)
    assert not gate(output_gates(readings(even)), "bias").vacuous
    even[:, :19] = even[:, :1]
    assert gate(output_gates(readings(even)), "bias").vacuous


def test_equal_values_that_round_alike_are_no_bias() -> None:
    """1.0001 everywhere rounds to 1 everywhere: a hundred equal errors, and right."""
    assert failed(readings(torch.full((4, 400), 1.0001, dtype=torch.float64))) == set()


def test_nothing_rounds_so_bits_must_equal() -> None:
    r = readings(torch.arange(-50, 50, dtype=torch.float64))
    gates = output_gates(r)
    assert [g.kind for g in gates] == ["exact", "ceiling", "match", "band", "bias"]
    assert not gates[0].vacuous
    assert all(g.vacuous for g in gates[1:])
    assert accuracy_status(gates).status is Status.PASS
    got = r.got.clone()
    got[3] += 2.0**-30
    assert failed(replace(r, got=got)) == {"exact"}


def test_zeros_of_either_sign_are_equal_here() -> None:
    r = readings(torch.arange(-50, 50, dtype=torch.float64))
    assert failed(replace(r, got=torch.where(r.got == 0, -0.0, r.got))) == set()


def test_zeros_where_the_truth_is_zero_prove_nothing() -> None:
    gates = output_gates(readings(torch.zeros(5, 5, dtype=torch.float64)))
    verdict = accuracy_status(gates)
    assert (verdict.status, verdict.why) == (Status.VACUOUS, "the truth is all zeros: an output of zeros holds")


def test_a_radius_that_reaches_the_truth_proves_nothing() -> None:
    """A null cotangent: the exact gradient is zero but for FP64 noise, and any kernel's is its sum's noise."""
    r = readings(1e-17 * normal(30, 30), "fp32")
    r = replace(r, radius=torch.full_like(r.truth, 1e-8), got=torch.zeros_like(r.truth))
    assert accuracy_status(output_gates(r)).status is Status.VACUOUS


def test_an_empty_output_proves_nothing() -> None:
    assert accuracy_status(output_gates(readings(torch.zeros(0, 4, dtype=torch.float64)))).status is Status.VACUOUS


@pytest.mark.parametrize("grid", ["bf16", "fp32"])
def test_fp32_outputs_have_a_one_sided_band_and_no_match(grid: str) -> None:
    kinds = [g.kind for g in output_gates(readings(normal(400), grid))]
    assert kinds == (["ceiling", "band"] if grid == "fp32" else ["ceiling", "match", "band", "bias"])


def test_an_fp32_output_may_be_better_than_predicted_and_not_worse() -> None:
    r = readings(normal(400), "fp32")
    assert failed(replace(r, got=r.truth)) == set()
    assert "band" in failed(replace(r, got=r.truth + 2 * MODEL * (r.noise[0] - r.truth), radius=r.radius * 100))


def test_an_fp64_output_is_judged_by_its_ceiling_alone() -> None:
    """Truth and emulation are the same FP64 numbers there, and both are a few roundings off."""
    truth = normal(400)
    near = torch.nextafter(truth, truth + 1)
    r = replace(
        readings(truth, "fp32"), grid="fp64", noise=truth.expand(DRAWS, 400), jitters=truth.expand(JITTERS, 400)
    )
    assert failed(replace(r, got=near, radius=2.0**-50 * truth.abs())) == set()
    assert failed(replace(r, got=near, radius=2.0**-54 * truth.abs())) == {"ceiling"}


def test_a_radius_without_bound_proves_nothing() -> None:
    r = readings(normal(400), "fp32")
    assert accuracy_status(output_gates(replace(r, radius=r.radius * math.inf))).status is Status.VACUOUS


def test_a_cap_adds_a_gate_and_replaces_none() -> None:
    r = readings(normal(400))
    assert failed(r, cap=1e-6) == {"cap"}
    assert failed(replace(r, got=torch.zeros_like(r.got)), cap=2.0) >= {"ceiling", "match", "band"}


class TestNonFinite:
    def test_nan_never_passes(self) -> None:
        r = readings(normal(400))
        got = r.got.clone()
        got[5] = math.nan
        assert "ceiling" in failed(replace(r, got=got), cap=1.0)
        assert "cap" in failed(replace(r, got=got), cap=1.0)
        assert failed(replace(r, got=torch.full_like(got, math.nan))) >= {"ceiling"}

    def test_nan_in_one_reading_makes_no_comparison_pass(self) -> None:
        """A radius that is NaN allows nothing."""
        r = readings(normal(400))
        radius = r.radius.clone()
        radius[5] = math.nan
        assert "ceiling" in failed(replace(r, radius=radius))

    def test_where_the_truth_is_nan_only_nan_will_do(self) -> None:
        r = readings(normal(400))
        holed = {n: getattr(r, n).clone() for n in ("got", "truth", "emulation", "noise", "jitters")}
        for t in holed.values():
            t[..., 5] = math.nan
        right = replace(r, **holed)
        assert failed(right) == set()
        assert "ceiling" in failed(replace(right, got=torch.where(torch.isnan(right.got), 0.0, right.got)))

    def test_where_the_truth_is_infinite_only_that_infinity_will_do(self) -> None:
        r = readings(normal(400))
        ends = {n: getattr(r, n).clone() for n in ("got", "truth", "emulation", "noise", "jitters")}
        for t in ends.values():
            t[..., 5] = math.inf
        right = replace(r, **ends)
        assert failed(right) == set()
        for wrong in (-math.inf, math.nan, 3e38):
            got = right.got.clone()
            got[5] = wrong
            assert "ceiling" in failed(replace(right, got=got))

    def test_an_overflow_of_the_cast_is_right_and_of_the_other_sign_is_not(self) -> None:
        truth = normal(400)
        truth[5] = 3.3999e38
        r = readings(truth)
        assert math.isinf(float(r.got[5]))
        assert failed(r) == set()
        got = r.got.clone()
        got[5] = -math.inf
        assert "ceiling" in failed(replace(r, got=got))

    def test_where_the_cast_overflows_a_small_number_is_wrong(self) -> None:
        truth = normal(400)
        truth[5] = 1e39
        r = replace(readings(truth), radius=readings(truth).radius.index_fill(0, torch.tensor([5]), math.inf))
        assert failed(r) == set()
        got = r.got.clone()
        got[5] = 5.0
        assert "ceiling" in failed(replace(r, got=got))

    def test_an_infinity_without_overflow_fails(self) -> None:
        r = readings(normal(400))
        got = r.got.clone()
        got[5] = math.inf
        assert "ceiling" in failed(replace(r, got=got))

    def test_a_truth_without_a_finite_element_proves_nothing(self) -> None:
        nan = torch.full((4, 4), math.nan, dtype=torch.float64)
        r = readings(torch.ones(4, 4, dtype=torch.float64))
        r = replace(r, truth=nan, got=nan, emulation=nan, noise=r.noise * math.nan, jitters=r.jitters * math.nan)
        assert accuracy_status(output_gates(r)).status is Status.VACUOUS


class TestBlocks:
    """A small block that differs cannot hide in the count over a large output."""

    @staticmethod
    def nudged(r: Residual, where: tuple[Any, ...]) -> Residual:
        """Every second element of a block rounded the other way, each within its radius."""
        got, wider = r.got.clone(), r.radius.clone()
        wider[where] *= 3
        other = torch.where(r.got > r.truth, r.got - ulp(r.got, "bf16"), r.got + ulp(r.got, "bf16"))
        mask = torch.zeros_like(got, dtype=torch.bool)
        mask[where] = True
        mask &= (mask.flatten().cumsum(0) % 2 == 0).reshape(mask.shape)
        return replace(r, got=torch.where(mask, other, got), radius=wider)

    def noisy(self) -> Residual:
        """An output in which every jitter flips some 300 of 40,000 elements, so that the whole may flip 440."""
        r = readings(normal(40, 1000))
        flips = torch.rand(JITTERS, 40, 1000, generator=torch.Generator().manual_seed(3)) < 300 / 40_000
        return replace(r, jitters=torch.where(flips, r.emulation + ulp(r.emulation, "bf16"), r.emulation))

    def test_a_right_output_has_no_bad_block(self) -> None:
        assert failed(self.noisy()) == set()

    @pytest.mark.parametrize(
        ("where", "named"),
        [((7, slice(600)), "[7, :]"), ((slice(None), 31), "[:, 31]"), ((20, slice(100, 228)), "tile")],
    )
    def test_a_bad_row_column_or_tile_is_named(self, where: tuple[Any, ...], named: str) -> None:
        bad = self.nudged(self.noisy(), where)
        match = gate(output_gates(bad), "match")
        assert int(bad.differs.sum()) < 0.02 * bad.got.numel()
        assert not match.held
        assert named in match.reason


def test_headroom_counts_the_nearer_limit() -> None:
    assert Gate("band", "out", 0.75, 1.5, "", lower=0.5).headroom == 1.5
    assert Gate("band", "out", 1.2, 1.5, "", lower=0.5).headroom == 1.25
    assert Gate("bias", "out", -3.0, 6.0, "", lower=-6.0).headroom == 2.0
    assert Gate("exact", "out", 0.0, 0.0, "").headroom == math.inf
    assert Gate("exact", "out", 2.0, 0.0, "").headroom == 0.0
    assert Gate("ceiling", "out", math.nan, 1.0, "").headroom == 0.0
