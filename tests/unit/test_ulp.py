"""Formats by hand: one rounding, right at ties, subnormals and overflow; distances that let no NaN pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from numcheck.errors import InvalidSpec
from numcheck.ulp import (
    FAR,
    FORMATS,
    bits,
    cast,
    digest,
    disturbance,
    representable,
    round_to,
    torch_dtype,
    ulp,
    ulp_distance,
    unit_roundoff,
)


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def spread(count: int) -> Tensor:
    """Numbers of every binade of FP32 and beyond it, subnormals and overflow included."""
    generator = np.random.default_rng(0)
    return torch.from_numpy(generator.standard_normal(count) * 2.0 ** generator.integers(-160, 140, count))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_fp32_numbers_round_as_torch_rounds_them(dtype: str) -> None:
    x = spread(50_000).float()
    assert torch.equal(round_to(x.double(), dtype), x.to(torch_dtype(dtype)).double())


def test_fp64_numbers_round_to_fp32_as_numpy_rounds_them() -> None:
    x = spread(50_000)
    with np.errstate(over="ignore"):
        assert np.array_equal(round_to(x, "fp32").numpy(), x.numpy().astype(np.float32).astype(np.float64))


def test_bf16_is_rounded_once_where_torch_rounds_twice() -> None:
    # Just above the tie of 1 and 1 + 2^-7; FP32 drops the excess and leaves the tie, which goes to even.
    x = f64(1 + 2.0**-8 + 2.0**-40)
    assert round_to(x, "bf16").item() == 1 + 2.0**-7
    assert x.to(torch.bfloat16).item() == 1.0
    assert cast(x, "bf16").item() == 1 + 2.0**-7


@pytest.mark.parametrize("dtype", list(FORMATS))
def test_rounding_is_idempotent_and_within_half_an_ulp(dtype: str) -> None:
    x = spread(20_000)
    rounded = round_to(x, dtype)
    finite = torch.isfinite(rounded)
    assert torch.equal(round_to(rounded, dtype), rounded)
    assert bool(((rounded - x).abs() <= ulp(x, dtype) / 2)[finite].all())
    assert bool(representable(rounded, dtype).all())


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_truncation_never_grows_and_never_overflows(dtype: str) -> None:
    x = spread(20_000)
    cut = round_to(x, dtype, "truncate")
    assert bool((cut.abs() <= x.abs()).all())
    assert bool(torch.isfinite(cut).all())
    assert bool(((x - cut).abs() < ulp(x, dtype))[x.abs() <= FORMATS[dtype].huge].all())


def test_overflow_ties_and_what_is_not_finite() -> None:
    huge = FORMATS["bf16"].huge
    half = ulp(f64(huge), "bf16").item() / 2
    edge = round_to(f64(huge + half, np.nextafter(huge + half, 0), -1e300, np.inf, np.nan), "bf16")
    assert edge[:4].tolist() == [np.inf, huge, -np.inf, np.inf]
    assert np.isnan(edge[4].item())
    assert round_to(f64(1e300, -np.inf), "bf16", "truncate").tolist() == [huge, -np.inf]


def test_the_sign_of_zero_survives() -> None:
    assert torch.signbit(round_to(f64(-0.0, -1e-300), "bf16")).all()


def test_subnormals_lie_on_their_own_grid() -> None:
    tiny = FORMATS["bf16"].tiny
    assert ulp(f64(0.0, tiny, 2.0**-126), "bf16").tolist() == [tiny] * 3
    # Three halves is a tie of one and two, and goes to the even one; a half goes to zero.
    assert round_to(f64(1.5 * tiny, 0.5 * tiny), "bf16").tolist() == [2 * tiny, 0.0]


def test_disturbance_is_zero_exactly_where_nothing_rounds() -> None:
    assert disturbance(f64(1.0, 1.003, 0.0, 256.0), "bf16").tolist() == [0.0, 2.0**-7, 0.0, 0.0]
    # At a tie the error is half an ulp for certain, which is the variance of a uniform of sqrt(3) ulps.
    assert (disturbance(f64(1 + 2.0**-8), "bf16") ** 2 / 12).item() == pytest.approx(2.0**-14 / 4)


def test_unit_roundoffs() -> None:
    assert [unit_roundoff(d) for d in ("bf16", "fp16", "fp32", "fp64")] == [2.0**-8, 2.0**-11, 2.0**-24, 2.0**-53]


def test_spacing_of_another_dtype_is_refused() -> None:
    with pytest.raises(TypeError, match="upcast"):
        ulp(torch.ones(1), "bf16")
    with pytest.raises(InvalidSpec, match="fp8"):
        ulp(f64(1.0), "fp8")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_distance_counts_numbers_between(dtype: torch.dtype) -> None:
    one = torch.ones(1, dtype=dtype)
    above = torch.nextafter(one, one * 2) if dtype != torch.bfloat16 else (one.view(torch.int16) + 1).view(dtype)
    assert ulp_distance(one, above).tolist() == [1]
    tiny = torch.full((1,), torch.finfo(dtype).smallest_normal, dtype=dtype)
    assert ulp_distance(tiny, -tiny).tolist() == [2 * ulp_distance(tiny, tiny * 0).item()]
    assert ulp_distance(-one * 0, one * 0).tolist() == [0]


def test_no_nan_is_near_anything() -> None:
    nan, one = torch.full((1,), torch.nan), torch.ones(1)
    assert ulp_distance(nan, nan).tolist() == [FAR]
    assert ulp_distance(nan, one).tolist() == [FAR]


def test_distance_between_the_ends_of_fp64_saturates() -> None:
    end = torch.full((1,), torch.inf, dtype=torch.float64)
    assert 0 < ulp_distance(end, -end).item() <= FAR


def test_bits_and_digest_tell_what_equality_does_not() -> None:
    zero = torch.zeros(2)
    assert torch.equal(zero, -zero)
    assert not torch.equal(bits(zero), bits(-zero))
    nan = bits(torch.full((2,), torch.nan)).clone()
    other = nan.clone()
    other[0] += 1
    seen = [digest(t) for t in (zero, -zero, zero.reshape(1, 2), zero.double(), nan.view(torch.float32))]
    assert len({*seen, digest(other.view(torch.float32))}) == 6


def test_digest_ignores_strides() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    assert digest(x) == digest(x.t().contiguous().t())
