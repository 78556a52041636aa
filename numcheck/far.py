"""Far: copies of tensors whose rows lie so far apart that an offset in 32 bits does not reach the last one.

What lies between the rows is reserved and never touched: a tensor of a few rows takes a page of memory for each of
them, and not the gigabytes that it spans.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from numcheck.sample import Sample
from numcheck.spec import KernelSpec

# Elements from the first row to the last, at least: what a signed 32-bit offset does not hold.
REACH = 2**31
# With two rows the stride itself is no 32-bit number, and then an offset made of it is none either.
FEWEST = 3
# Reserve addresses without memory behind them (Linux's MAP_NORESERVE, which Python names from 3.13 on).
NORESERVE = 0x4000


def promised(spec: KernelSpec) -> bool:
    """Whether `spec` finds rows that lie so far apart; a problem without strided layouts has no such rows."""
    return spec.contract.addresses != 32 and "strided" in spec.oracle.space.layouts


def far_rows(sample: Sample) -> Sample | None:
    """The Sample with the rows of its matrices far apart; None where it has none of three rows, or no room for them.

    Vectors stay: nobody has one of so many elements.
    """
    moved: dict[str, Tensor] = {}
    for name, tensor in sample.tensors.items():
        if tensor.dim() >= 2 and tensor.numel() and tensor.shape[0] >= FEWEST and tensor.device.type == "cpu":
            try:
                moved[name] = _far(tensor)
            except OSError:
                return None
    return sample.map(lambda name, t: moved.get(name, t)) if moved else None


def _far(tensor: Tensor) -> Tensor:
    rows, row = tensor.shape[0], tensor.numel() // tensor.shape[0]
    least = max(-(-REACH // (rows - 1)), row)
    # A power of two, so that what 32 bits keep of an offset is as wrong as it can be.
    stride = 1 << (least - 1).bit_length()
    size = ((rows - 1) * stride + row) * tensor.element_size()
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    buffer = torch.frombuffer(memory, dtype=tensor.dtype)
    inner = torch.empty(tensor.shape[1:], device="meta").stride()
    return buffer.as_strided(tuple(tensor.shape), (stride, *inner)).copy_(tensor)
