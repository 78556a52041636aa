"""Bits decide: what `==` or a tolerance would let pass is a difference, and equal bits never are."""

from __future__ import annotations

import pytest
import torch

from numcheck.difference import difference


def _from_bits(*patterns: int) -> torch.Tensor:
    return torch.tensor(patterns, dtype=torch.int64).to(torch.int32).view(torch.float32)


def test_equal_bits_are_no_difference_even_where_values_are_nan() -> None:
    tensor = torch.tensor([1.0, float("nan"), -0.0])
    assert difference(tensor.clone(), tensor, "repeat 1") is None


def test_negative_zero_differs_from_zero() -> None:
    found = difference(torch.tensor([0.0, -0.0]), torch.tensor([0.0, 0.0]), "repeat 1")
    assert found is not None
    assert (found.count, found.total, found.index) == (1, 2, (1,))
    assert found.where("out") == "out got=-0.0 (0x80000000) expected=0.0 (0x00000000) at (1,)"


def test_nan_payloads_differ() -> None:
    found = difference(_from_bits(0x7FC00001), _from_bits(0x7FC00000), "order reversed")
    assert found is not None
    assert "0x7fc00001" in found.got
    assert "0x7fc00000" in found.expected
    assert str(found) == "1 of 1 differ in order reversed"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int64])
def test_the_last_bit_counts_in_every_dtype(dtype: torch.dtype) -> None:
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    tensor = torch.ones(3, 4).to(dtype)
    other = tensor.clone()
    other.view(width)[1, 2] += 1
    found = difference(other, tensor, "repeat 1")
    assert found is not None
    assert found.index == (1, 2)


def test_strided_tensors_compare_by_element() -> None:
    tensor = torch.arange(12.0).reshape(3, 4).t()
    assert difference(tensor, tensor.contiguous(), "repeat 1") is None


@pytest.mark.parametrize(
    "got", [None, torch.zeros(3), torch.zeros(2, dtype=torch.float64)], ids=["missing", "shape", "dtype"]
)
def test_another_form_differs_everywhere(got: torch.Tensor | None) -> None:
    found = difference(got, torch.zeros(2), "repeat 1")
    assert found is not None
    assert found.count == found.total == 2
