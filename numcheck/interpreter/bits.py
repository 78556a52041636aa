"""16-bit floats on raw bits, as hardware rounds them: one rounding, to nearest even unless said otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_NAN = np.uint16(0x7FC0)  # what torch and PTX (up to its sign and payload) give for a NaN


def widen(bits: Array) -> Array:
    """bf16 bits (uint16) -> FP32 values, exactly."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: Array, truncate: bool = False) -> Array:
    """FP64 or FP32 values -> bf16 bits (uint16) by one rounding."""
    if values.dtype == np.float64:
        values = _to_odd(values)
    raw = np.asarray(values, dtype=np.float32).view(np.uint32)
    up = np.uint32(0) if truncate else np.uint32(0x7FFF) + ((raw >> np.uint32(16)) & np.uint32(1))
    nan = (raw & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    with np.errstate(over="ignore"):
        rounded = ((raw + up) >> np.uint32(16)).astype(np.uint16)
    return np.where(nan, _NAN, rounded)


def to_fp16(values: Array, truncate: bool = False) -> Array:
    """FP64 or FP32 values -> fp16 by one rounding."""
    with np.errstate(over="ignore"):
        half: Array = values.astype(np.float16)
    if not truncate:
        return half
    beyond = np.abs(half.astype(values.dtype)) > np.abs(values)
    return np.where(beyond & np.isfinite(values), np.nextafter(half, np.float16(0)), half).astype(np.float16)


def to_tf32(values: Array) -> Array:
    """FP32 values rounded to TF32's 10 explicit bits, to nearest even; inf and NaN stay."""
    raw = np.asarray(values, dtype=np.float32).view(np.uint32)
    special = (raw & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    with np.errstate(over="ignore"):
        rounded = (raw + np.uint32(0x0FFF) + ((raw >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    return np.where(special, raw, rounded).view(np.float32)


def fused(x: Array, y: Array, z: Array) -> Array:
    """x * y + z for FP32 or narrower, as FP64 rounded to odd, so that one more rounding to FP32 or below is exact.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums" (2008): round to odd, then to nearest.
    """
    product = x.astype(np.float64) * y.astype(np.float64)  # exact: 24 + 24 bits at most
    addend = z.astype(np.float64)
    total = np.asarray(product + addend)
    with np.errstate(invalid="ignore"):
        part = total - product
        error = np.asarray((product - (total - part)) + (addend - part))  # TwoSum: exactly what `total` lost
    inexact = np.isfinite(total) & (error != 0) & ((total.view(np.uint64) & np.uint64(1)) == 0)
    return np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def round_fp32(values: Array) -> Array:
    """FP64 -> FP32 to nearest even, overflow to inf."""
    with np.errstate(over="ignore"):
        result: Array = values.astype(np.float32)
    return result


def _to_odd(values: Array) -> Array:
    """FP64 -> FP32 rounded to odd, so that a further rounding to 8 bits is the single rounding of the FP64 value."""
    near = np.asarray(round_fp32(values))
    inexact = np.isfinite(values) & (near.astype(np.float64) != values)
    even = (near.view(np.uint32) & np.uint32(1)) == 0
    with np.errstate(over="ignore"):
        towards = np.nextafter(near, np.where(values > near, np.float32(np.inf), np.float32(-np.inf)))
    return np.where(inexact & even, towards, near)
