"""Wrong arguments: calls that no implementation may take, and whether one was refused as it should be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from numcheck.execute import Run
from numcheck.oracle import Dims, Oracle
from numcheck.sample import Sample, in_layout, move, place


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
    """Calls with one argument of a wrong shape, dtype or device each, the others as they were.

    A shape is wrong where a size that another tensor shares is one larger; a dtype where FP64 comes in place of a
    narrower float; a device (on a GPU alone) where one tensor stays on the CPU.
    """
    dims: dict[str, Dims] = {i.name: i.dims for i in oracle.inputs}
    if half == "vjp":
        dims |= {c.name: c.dims for c in oracle.cotangents}
    for name, declared in dims.items():
        tensor = good.inputs[name] if name in good.inputs else good.cotangents[name]
        axis = _shared_axis(name, declared, dims)
        if axis is not None:
            shape = [n + 1 if k == axis else n for k, n in enumerate(tensor.shape)]
            yield Wrong(
                half,
                name,
                f"of shape {shape} instead of {list(tensor.shape)}",
                _with(good, name, _grown(tensor, shape)),
            )
        if tensor.dtype.is_floating_point and tensor.dtype is not torch.float64:
            wide = in_layout(tensor.to(torch.float64), good.case, str(tensor.device))
            yield Wrong(half, name, f"in torch.float64 instead of {tensor.dtype}", _with(good, name, wide))
        if tensor.device.type != "cpu" and len(dims) > 1:
            yield Wrong(half, name, f"on the CPU instead of {tensor.device}", _with(good, name, tensor.cpu()))


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
    return wrong.name.lower() in words or bool(words & facts) or "double" in words


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
    def changed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n: tensor if n == name else t for n, t in tensors.items()}

    return Sample(good.case, changed(dict(good.inputs)), changed(dict(good.cotangents)))
