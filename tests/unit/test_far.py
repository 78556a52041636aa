"""Rows 2^31 elements apart: what a tensor spans, what it takes, and that what a kernel does to it is still seen."""

from __future__ import annotations

import torch

from numcheck import Case
from numcheck.far import REACH, far_rows
from numcheck.sample import Sample
from numcheck.snapshot import Snapshot


def drawn(**tensors: torch.Tensor) -> Sample:
    return Sample(Case.of(S=3), tensors, {})


def test_rows_lie_too_far_apart_for_32_bits_and_hold_the_same_values() -> None:
    for shape, dtype in (((3, 5), torch.bfloat16), ((4, 2, 3), torch.float32), ((9, 1), torch.bool)):
        values = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
        found = far_rows(drawn(x=values))
        assert found is not None
        far = found.inputs["x"]
        assert torch.equal(far, values)
        assert (shape[0] - 1) * far.stride(0) >= REACH
        # A stride of 32 bits, so that it is the product that overflows.
        assert far.stride(0) < REACH


def test_vectors_and_two_rows_stay_where_they_are() -> None:
    vector = torch.ones(7)
    assert far_rows(drawn(x=torch.ones(2, 5), v=vector)) is None
    found = far_rows(drawn(x=torch.ones(3, 5), v=vector))
    assert found is not None
    assert found.inputs["v"] is vector


def test_a_change_of_a_far_tensor_is_found_and_put_back() -> None:
    found = far_rows(drawn(x=torch.ones(3, 5)))
    assert found is not None
    x = found.inputs["x"]
    before = Snapshot.of(found.inputs)
    x[2, 1] = 7.0
    assert before.restore() == ["input x was changed in 1 of 15 element(s), the first at (2, 1)"]
    assert bool((x == 1).all())
    assert before.restore() == []
