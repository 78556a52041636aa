"""Difference: where two tensors disagree as integers, so that -0.0, NaN payloads and signs count."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from numcheck.ulp import bits

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Difference:
    """How one output of a later run differs from the first run's.

    count: elements whose bits differ, of `total`. index: the first of them. got, expected: its value and raw bits in
    the later and the first run. under: what the later run did differently ("order reversed", "repeat 2").
    """

    count: int
    total: int
    index: tuple[int, ...]
    got: str
    expected: str
    under: str

    def __str__(self) -> str:
        return f"{self.count} of {self.total} differ in {self.under}"

    def where(self, output: str) -> str:
        """The first differing element in the error grammar: `tensor got= expected= at index`."""
        return f"{output} got={self.got} expected={self.expected} at {self.index}"


def difference(got: Tensor | None, expected: Tensor, under: str) -> Difference | None:
    """The Difference of two tensors of any dtype, or None where every bit agrees.

    Tensors of different shape or dtype differ in every element, and so does a missing one.
    """
    if got is None:
        return Difference(expected.numel(), expected.numel(), (), "nothing", _form(expected), under)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        total = expected.numel()
        return Difference(total, total, (), _form(got), _form(expected), under)
    ours, theirs = bits(got), bits(expected)
    wrong = ours != theirs
    count = int(wrong.sum())
    if count == 0:
        return None
    index = tuple(int(i) for i in wrong.nonzero()[0])
    return Difference(count, got.numel(), index, _element(got, ours, index), _element(expected, theirs, index), under)


def _form(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _element(tensor: Tensor, raw: Tensor, index: tuple[int, ...]) -> str:
    width = 8 * tensor.element_size()
    pattern = int(raw[index]) % 2**width
    return f"{tensor[index].item()!r} (0x{pattern:0{width // 4}x})"
