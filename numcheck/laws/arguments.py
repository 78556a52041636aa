"""Wrong arguments: calls that no implementation may take, and whether one was refused as it should be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from numcheck.execute import Run
from numcheck.oracle import Dims, Oracle
from numcheck.sample import Sample, in_layout, move, place

# What comes in place of an integer or bool dtype: the other width that index tensors have, or a mask of bytes.
_OTHER = {torch.int64: torch.int32, torch.bool: torch.uint8}
# How torch's own messages call a dtype.
_CALLED = {"float64": "double", "int64": "long", "int32": "int", "uint8": "byte"}


@dataclass(frozen=True)
class Wrong:
    """One wrong argument of a call: which half of the spec, which argument, what is wrong with it."""

    half: str
    name: str
    what: str
    sample: Sample = field(compare=False)

    def __str__(self) -> str:
        return f"{self.half} with {self.name} {self.what}"


def wrong_arguments(oracle: Oracle, good: Sample, half: str) -> Iterator[Wrong]:
    """Calls with one argument of a wrong shape, rank, dtype or device each, the others as they were.

    A shape is wrong where a size that another tensor shares is one larger, and where there is an axis more; a dtype
    where FP64 comes in place of a narrower float, an integer of another width in place of an integer, bytes in place
    of bools; a device (on a GPU alone) where one tensor stays on the CPU. What the Case does not have is not tried.
    """
    dims: dict[str, Dims] = {i.name: i.dims for i in oracle.inputs_for(good.case)}
    if half == "vjp":
        dims |= {c.name: c.dims for c in oracle.cotangents_for(good.case)}
    for name, declared in dims.items():
        tensor = good.tensors[name]
        axis = _shared_axis(name, declared, dims)
        if axis is not None:
            shape = [n + 1 if k == axis else n for k, n in enumerate(tensor.shape)]
            yield Wrong(
                half,
                name,
                f"of shape {shape} instead of {list(tensor.shape)}",
                _with(good, name, _grown(tensor, shape)),
            )
        deeper = in_layout(tensor.cpu()[..., None], good.case, str(tensor.device))
        yield Wrong(
            half, name, f"of shape {list(deeper.shape)} instead of {list(tensor.shape)}", _with(good, name, deeper)
        )
        other = _other(tensor.dtype)
        if other is not None:
            retyped = in_layout(tensor.to(other), good.case, str(tensor.device))
            yield Wrong(half, name, f"in {other} instead of {tensor.dtype}", _with(good, name, retyped))
        if tensor.device.type != "cpu" and len(dims) > 1:
            yield Wrong(half, name, f"on the CPU instead of {tensor.device}", _with(good, name, tensor.cpu()))


def wrong_scalars(oracle: Oracle, good: Sample, half: str) -> Iterator[Wrong]:
    """Calls with one scalar that no implementation may take, as the oracle lists them, for kernels that refuse."""
    for name, values in oracle.wrong(good.case).items():
        for value in values:
            usual = f" instead of {good.scalars[name]!r}" if name in good.scalars else ""
            yield Wrong(half, name, f"{value!r}{usual}", replace(good, scalars={**good.scalars, name: value}))


def _other(dtype: torch.dtype) -> torch.dtype | None:
    """A wrong dtype that holds the same values; None for FP64, of which there is no wider one."""
    if dtype.is_floating_point:
        return None if dtype is torch.float64 else torch.float64
    return _OTHER.get(dtype, torch.int64)


def complaint(wrong: Wrong, run: Run) -> str:
    """What was wrong with how a wrong argument was taken, or "" where it was refused clearly and in time."""
    if not run.error:
        return "it was accepted without a word; raise a ValueError or TypeError that names the argument"
    if run.evidence.launches:
        return f"it raised only after {run.evidence.launches[0].kernel} had been launched"
    message = message_of(run.error)
    if not _clear(message, wrong):
        return f"the error does not say what is wrong: {message}"
    return ""


def message_of(error: str) -> str:
    """A Run's error without the place that raised it, whose path and names are no part of what it says."""
    return error.rsplit(" (at ", 1)[0]


def _clear(message: str, wrong: Wrong) -> bool:
    """Whether a message names the argument, or the number or dtype that is wrong."""
    words = set(re.findall(r"\w+", message.lower()))
    facts = set(re.findall(r"\w+", wrong.what.lower())) - {"of", "shape", "instead", "in", "on", "the", "torch"}
    return wrong.name.lower() in words or bool(words & facts) or any(_CALLED[f] in words for f in facts & set(_CALLED))


def _shared_axis(name: str, declared: Dims, dims: dict[str, Dims]) -> int | None:
    """The last axis whose size another axis of the call repeats, so that one larger contradicts it."""
    if callable(declared):
        return None
    everywhere = [d for other in dims.values() if not callable(other) for d in other]
    for axis in reversed(range(len(declared))):
        if isinstance(declared[axis], int) or everywhere.count(declared[axis]) > 1:
            return axis
    return None


def _grown(tensor: Tensor, shape: list[int]) -> Tensor:
    grown = torch.zeros(shape, dtype=tensor.dtype)
    grown[tuple(slice(n) for n in tensor.shape)] = tensor.cpu()
    return move(place(grown, "contiguous", 0), str(tensor.device))


def _with(good: Sample, name: str, tensor: Tensor) -> Sample:
    return good.map(lambda n, old: tensor if n == name else old)
