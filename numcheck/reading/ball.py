"""Ball: a value and a radius that encloses it, the number on which an oracle's unchanged code gives its worst case.

The value is the exact result's FP64 evaluation; the radius bounds how far a kernel may be from it that computes
with unit roundoff `unit` and rounds where the radius has been told so. Every operation encloses: whatever two
numbers lie in the operands' balls, their result, computed with that unit roundoff, lies in the result's ball.
(Rump, "Fast and parallel interval arithmetic", BIT 39, 1999, for products of midpoint-radius matrices.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from numcheck.contract import Rounding
from numcheck.errors import Refused
from numcheck.ulp import round_to

FP64_UNIT = 2.0**-53
# A radius is enlarged by more than the FP64 errors of the few operations that make it.
OUTWARD = 1 + 4 * FP64_UNIT


@dataclass(frozen=True, eq=False)
class Ball:
    """value +- radius, both FP64 tensors of one shape, in arithmetic of unit roundoff `unit`.

    Takes operators, indexing and the torch functions of the table below; another one raises Refused.
    """

    value: Tensor
    radius: Tensor
    unit: float = FP64_UNIT
    # Known to have radius 0 everywhere, which saves most of the work of a product.
    sure: bool = False

    @classmethod
    def exact(cls, value: Tensor, unit: float = FP64_UNIT) -> Ball:
        """The ball of radius 0 around `value`."""
        return cls(value, value.new_zeros(()).expand(value.shape), unit, sure=True)

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def device(self) -> torch.device:
        return self.value.device

    @property
    def bound(self) -> Tensor:
        """The largest magnitude in the ball."""
        return self.value.abs() if self.sure else self.value.abs().add_(self.radius)

    @property
    def T(self) -> Ball:
        return Ball(self.value.T, self.radius.T, self.unit, self.sure)

    @property
    def mT(self) -> Ball:
        return Ball(self.value.mT, self.radius.mT, self.unit, self.sure)

    def rounded(self, to: Rounding) -> Ball:
        """Every number of the ball rounded: rounding is monotone, so the ends bound it and nothing is lost.

        The truth that errors are taken from is FP64's, whose own error is to this radius as its unit roundoff is to
        `unit`; it stays when the ends round to one number.
        """
        low, high = self.value - self.radius, self.value + self.radius
        low = torch.where(self.radius > 0, torch.nextafter(low, torch.full_like(low, -math.inf)), low)
        high = torch.where(self.radius > 0, torch.nextafter(high, torch.full_like(high, math.inf)), high)
        low, high = round_to(low, to.dtype, to.mode), round_to(high, to.dtype, to.mode)
        radius = torch.maximum(self.value - low, high - self.value) + self.radius * min(1.0, 4 * FP64_UNIT / self.unit)
        return Ball(self.value, outward(radius), self.unit)

    def flushed(self, normal: float) -> Ball:
        """The ball where every number below `normal` becomes zero: if there is one, zero has to be in it."""
        size = self.value.abs()
        below = size - self.radius < normal
        return Ball(self.value, torch.where(below, torch.maximum(self.radius, size), self.radius), self.unit)

    def widened(self, by: Tensor | float) -> Ball:
        """The ball with `by` more radius."""
        return Ball(self.value, self.radius + by, self.unit)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Ball:
        if self.sure:
            return Ball.exact(self.value[index], self.unit)
        return Ball(self.value[index], self.radius[index], self.unit)

    def __neg__(self) -> Ball:
        return Ball(-self.value, self.radius, self.unit, self.sure)

    def __add__(self, other: Any) -> Any:
        return _function("add")(self, other)

    def __radd__(self, other: Any) -> Any:
        return _function("add")(other, self)

    def __sub__(self, other: Any) -> Any:
        return _function("sub")(self, other)

    def __rsub__(self, other: Any) -> Any:
        return _function("sub")(other, self)

    def __mul__(self, other: Any) -> Any:
        return _function("mul")(self, other)

    def __rmul__(self, other: Any) -> Any:
        return _function("mul")(other, self)

    def __truediv__(self, other: Any) -> Any:
        return _function("div")(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _function("div")(other, self)

    def __pow__(self, exponent: Any) -> Any:
        return _function("pow")(self, exponent)

    def __matmul__(self, other: Any) -> Any:
        return _function("matmul")(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _function("matmul")(other, self)

    def __abs__(self) -> Any:
        return _function("abs")(self)

    def __lt__(self, other: Any) -> Any:
        return _function("lt")(self, other)

    def __le__(self, other: Any) -> Any:
        return _function("le")(self, other)

    def __gt__(self, other: Any) -> Any:
        return _function("gt")(self, other)

    def __ge__(self, other: Any) -> Any:
        return _function("ge")(self, other)

    def __eq__(self, other: object) -> Any:
        return _function("eq")(self, other)

    def __ne__(self, other: object) -> Any:
        return _function("ne")(self, other)

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> Any:
        """A tensor method that the table knows: `ball.sum(-1)` is `torch.sum(ball, -1)`."""
        if name.startswith("_"):
            raise AttributeError(name)
        function = _function(name)
        return lambda *args, **kwargs: function(self, *args, **kwargs)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return _function(func.__name__)(*args, **(kwargs or {}))


def outward(radius: Tensor) -> Tensor:
    """`radius` enlarged by more than the FP64 error of the subtraction that made it."""
    return radius * OUTWARD


def _function(name: str) -> Callable[..., Any]:
    from numcheck.reading.elementary import structural
    from numcheck.reading.enclosure import FUNCTIONS, STRUCTURAL

    plain = name.strip("_")
    plain = plain.removeprefix("r") if name in ("__radd__", "__rmul__") else plain
    if plain in FUNCTIONS:
        return FUNCTIONS[plain]
    if plain in STRUCTURAL:
        return lambda x, *args, **kwargs: structural(lambda t: getattr(t, plain)(*args, **kwargs), x)
    raise Refused(
        f"Ball has no enclosure for {name!r}, so the worst case of this oracle is unknown; write it with "
        f"{', '.join(sorted((*FUNCTIONS, *STRUCTURAL)))} or operators, or name a sum by read.total"
    )
