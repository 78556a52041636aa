"""Floating-point formats by hand: spacing, one rounding from FP64, raw bits and distances between them.

`Tensor.to(torch.bfloat16)` of an FP64 tensor goes through FP32 and so rounds twice; `round_to` rounds once.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from numcheck.errors import InvalidSpec

Mode = Literal["nearest", "truncate"]

_EXPONENT_BITS = 0x7FF0_0000_0000_0000  # of an IEEE binary64
# No finite distance is as large; a NaN is as far as that from everything, itself included.
FAR = torch.iinfo(torch.int64).max


@dataclass(frozen=True)
class Format:
    """A binary format: `precision` significant bits (the hidden one counted), smallest and largest exponent."""

    precision: int
    smallest: int
    largest: int

    @property
    def unit_roundoff(self) -> float:
        """Largest relative error of rounding to nearest in the normal range."""
        return 2.0**-self.precision

    @property
    def tiny(self) -> float:
        """The smallest subnormal, which is the spacing at zero."""
        return 2.0 ** (self.smallest - self.precision + 1)

    @property
    def normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.smallest

    @property
    def huge(self) -> float:
        """The largest finite number."""
        return (2.0 - 2.0 ** (1 - self.precision)) * 2.0**self.largest


FORMATS = {
    "bf16": Format(8, -126, 127),
    "fp16": Format(11, -14, 15),
    "fp32": Format(24, -126, 127),
    "fp64": Format(53, -1022, 1023),
}
_TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TORCH.items()}
# The integer dtype that shows the raw bits of an element of so many bytes.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def format_of(dtype: str) -> Format:
    """The Format called `dtype`; raises InvalidSpec where numcheck has none."""
    if dtype not in FORMATS:
        raise InvalidSpec(f"{dtype!r} is no floating-point format; known: {', '.join(FORMATS)}")
    return FORMATS[dtype]


def unit_roundoff(dtype: str) -> float:
    """Unit roundoff of `dtype`: bf16 2^-8, fp16 2^-11, fp32 2^-24, fp64 2^-53."""
    return format_of(dtype).unit_roundoff


def torch_dtype(name: str) -> torch.dtype:
    """torch's dtype for one of numcheck's names ("bf16", ..., and the integer types of index tensors)."""
    if name not in _TORCH:
        raise InvalidSpec(f"dtype {name!r}; known: {', '.join(_TORCH)}")
    return _TORCH[name]


def dtype_name(dtype: torch.dtype) -> str:
    """numcheck's name for torch's `dtype`; the inverse of `torch_dtype`."""
    if dtype not in _NAMES:
        raise InvalidSpec(f"{dtype} has no name in numcheck; known: {', '.join(_TORCH)}")
    return _NAMES[dtype]


def ulp(x: Tensor, dtype: str) -> Tensor:
    """Spacing of `dtype` at |x|: the gap from |x| to the next larger number of its binade. FP64, of x's shape.

    At zero it is the smallest subnormal. Beyond the largest finite number the exponent just runs on; at an
    infinity or a NaN it is infinite.
    """
    form = format_of(dtype)
    return (_binade(x) * 2.0 ** (1 - form.precision)).clamp_(min=form.tiny)


def round_to(x: Tensor, dtype: str, mode: Mode = "nearest") -> Tensor:
    """The FP64 tensor `x` rounded once to `dtype`'s grid, still FP64; the cast of it to `dtype` is then exact.

    nearest: ties to even, beyond the largest finite number to infinity. truncate: towards zero, which never
    overflows. Subnormals lie on their own grid; NaN, infinities and the sign of zero are kept.
    """
    if dtype == "fp64":
        return x
    if dtype == "fp32" and mode == "nearest":
        # torch's own cast is one rounding here, and several times faster than the way below.
        return x.to(torch.float32).to(torch.float64)
    form, step = format_of(dtype), _finite_step(x, dtype)
    rounded = (torch.trunc(x / step) if mode == "truncate" else torch.round(x / step)) * step
    over = rounded.abs() > form.huge
    if not bool(over.any()):
        return rounded
    edge = form.huge if mode == "truncate" else torch.inf
    return torch.where(over & torch.isfinite(x), torch.copysign(torch.full_like(x, edge), x), rounded)


def flushed(x: Tensor, dtype: str) -> Tensor:
    """`x` with zeros, of the same sign, where it is below `dtype`'s normal range; NaN stays."""
    return torch.where(x.abs() < format_of(dtype).normal, torch.copysign(torch.zeros_like(x), x), x)


def representable(x: Tensor, dtype: str) -> Tensor:
    """Where the FP64 tensor `x` lies on `dtype`'s grid; true at infinities, false at NaN."""
    if dtype == "fp64":
        return ~torch.isnan(x)
    if dtype == "fp32":
        return round_to(x, dtype) == x
    whole = x / _finite_step(x, dtype)
    return (whole == torch.trunc(whole)) & ((x.abs() <= format_of(dtype).huge) | torch.isinf(x))


def disturbance(x: Tensor, dtype: str, mode: Mode = "nearest") -> Tensor:
    """Width of the uniform error that rounding `x` stands for: its variance is width^2 / 12.

    An ulp where rounding would change `x`; 0 where `x` is representable; sqrt(3) ulps at a tie, where the error is
    half an ulp for certain (sums of numbers on one grid are so often ties that leaving them out is 15 % too little).
    truncate: an ulp where rounding would change `x`, counted from `x` towards zero.
    """
    step = _finite_step(x, dtype)
    if mode == "truncate":
        return step.masked_fill_(representable(x, dtype), 0.0)
    error = (x - round_to(x, dtype)).abs_()
    width = torch.where(error + error == step, step * 3**0.5, step)
    return width.masked_fill_(error == 0, 0.0)


def cast(x: Tensor, dtype: str) -> Tensor:
    """The FP64 tensor `x` as a tensor of `dtype`, rounded once; integer types take integral values only."""
    if dtype in FORMATS:
        return round_to(x, dtype).to(torch_dtype(dtype))
    return x.to(torch_dtype(dtype))


def bits(t: Tensor) -> Tensor:
    """The raw bits of `t` as integers: -0.0, NaN payloads and signs all tell."""
    if t.dtype == torch.bool:
        return t.to(torch.uint8)
    return t.view(INTEGERS[t.element_size()])


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """Count of representable numbers from `a` to `b` (int64), both of one floating dtype and shape.

    -0.0 and 0.0 are 0 apart. A NaN is FAR from everything, another NaN included, so no limit lets one pass.
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        raise ValueError(f"distance between {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}; they must agree")
    high, low = _magnitude(a), _magnitude(b)
    opposite = torch.signbit(a) != torch.signbit(b)
    # FP64 magnitudes of opposite sign may add up to more than an int64 holds.
    apart = torch.where(opposite, torch.minimum(high, FAR - low) + low, (high - low).abs())
    return torch.where(torch.isnan(a) | torch.isnan(b), torch.full_like(apart, FAR), apart)


def digest(t: Tensor) -> str:
    """Sixteen hex digits that name a tensor's raw bits, shape and dtype; strides and device do not enter."""
    raw = bits(t.detach().cpu().contiguous())
    head = f"{t.dtype}{list(t.shape)}".encode()
    return hashlib.sha256(head + raw.numpy().tobytes()).hexdigest()[:16]


def _finite_step(x: Tensor, dtype: str) -> Tensor:
    """ulp, but a finite power of two at infinities and NaN, so that dividing by it keeps them what they are."""
    return ulp(x, dtype).clamp_(max=2.0**1023)


def _binade(x: Tensor) -> Tensor:
    """2^floor(log2 |x|): 0 below FP64's normal range, infinite at infinities and NaN."""
    if x.dtype != torch.float64:
        raise TypeError(f"spacing of a {x.dtype} tensor; upcast it to FP64 first, which is exact")
    return (x.view(torch.int64) & _EXPONENT_BITS).view(torch.float64)


def _magnitude(t: Tensor) -> Tensor:
    raw = bits(t).to(torch.int64)
    width = 8 * t.element_size()
    return raw & ((1 << (width - 1)) - 1)
