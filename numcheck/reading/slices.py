"""Slices: which problems can be read a stretch of their batch at a time, and how long a stretch memory allows.

Rows of a batch do not depend on each other (Oracle.batch says so), and what is summed over them says so too
(Oracle.partial). Whatever else a problem has is given to every slice whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from numcheck.case import Case
from numcheck.errors import InvalidSpec
from numcheck.oracle import Input, Oracle, Output
from numcheck.reading.kinds import Truth
from numcheck.reading.pieces import Pieces
from numcheck.reading.walk import walk

# Elements of the largest tensor that one slice may make: a worst case keeps about a dozen of that size alive, which is
# some 200 MB on the CPU and 5 GB on a GPU.
ELEMENTS = {"cpu": 2**21, "cuda": 3 * 2**24}
# Below so many elements, were all sizes in one tensor, a slice is not worth weighing: no tensor has each size twice.
WEIGHED = 2**25


# A Case whose sizes have a larger product is read where its tensors are. Below it a walk takes a CPU core less time
# than a GPU's thousand launches of some microseconds, and an oracle of small Cases need not know of devices.
LARGE = 2**28


class Given(Protocol):
    """What a sliced reading needs of a Sample."""

    @property
    def case(self) -> Case: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...

    @property
    def scalars(self) -> Mapping[str, Any]: ...


def nearest(given: Given) -> str:
    """Where to read a Sample: on the CPU, or a large one where its tensors are."""
    if math.prod(size for _, size in given.case.sizes) <= LARGE:
        return "cpu"
    return next((t.device.type for t in given.tensors.values()), "cpu")


def whole_because(oracle: Oracle, case: Case) -> str:
    """Why a problem has to be read whole, or ""."""
    if not oracle.batch:
        return f"oracle {oracle.name} names no batch"
    if oracle.vjp is None and oracle.gradients_for(case):
        return f"oracle {oracle.name} has no vjp of its own, and autograd names no sums"
    for declared in _tensors(oracle, case):
        if callable(declared.dims):
            return f"the dims of {declared.name} are a function: which of them is the batch?"
        if oracle.batch in declared.dims[1:]:
            return f"{declared.name} has the batch {oracle.batch} behind its first axis"
    for output in oracle.results_for(case):
        if output.name in oracle.partial and output.saved:
            return f"{output.name} is a sum over the batch that the vjp takes"
        if output.name not in oracle.partial and not oracle.batched(output):
            return f"{output.name} has no batch axis and is not among the partial outputs"
    return ""


def sliced(oracle: Oracle, given: Given, start: int, stop: int, device: str) -> dict[str, Any]:
    """Rows `start` to `stop` of inputs and cotangents on `device`, upcast exactly, and the scalars."""
    batched = {d.name for d in _tensors(oracle, given.case) if oracle.batched(d)}
    rows = {name: t[start:stop] if name in batched else t for name, t in given.tensors.items()}
    return {**{name: upcast(t, device) for name, t in rows.items()}, **given.scalars}


def upcast(t: Tensor, device: str) -> Tensor:
    """`t` on `device`, contiguous: FP64, integers int64, bools as they are."""
    t = t.detach().to(device)
    if t.dtype == torch.bool:
        return t.contiguous()
    return t.to(torch.float64 if t.dtype.is_floating_point else torch.int64).contiguous()


def rows_that_fit(oracle: Oracle, given: Given, device: str) -> int:
    """How many rows of the batch a slice may have on `device`; the whole batch where it fits.

    The whole batch too where what the oracle says is a sum over it is no named sum, so that it cannot be divided.
    """
    batch = given.case[oracle.batch]
    if batch < 2 or math.prod(size for _, size in given.case.sizes) <= WEIGHED or whole_because(oracle, given.case):
        return batch
    reading = Truth()
    reading.pieces = Pieces(frozenset(oracle.partial))
    try:
        # What grows from one row to two grows on; the rest every slice has.
        one, two = (_sizes(oracle, reading, sliced(oracle, given, 0, rows, device)) for rows in (1, 2))
    except InvalidSpec:
        return batch
    largest = max((b - a for a, b in zip(one, two, strict=False)), default=1)
    return min(batch, max(1, ELEMENTS[torch.device(device).type] // max(1, largest)))


def _sizes(oracle: Oracle, reading: Truth, exact: Mapping[str, Any]) -> list[int]:
    """The number of elements of every tensor that a walk makes on its way."""
    weighing = _Weighing()
    with weighing:
        results = walk(oracle, reading, exact, None)
    for name in oracle.partial:
        if name in results:
            reading.keep(name, results[name])
    return weighing.sizes


class _Weighing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.sizes.append(result.numel() if isinstance(result, Tensor) else 0)
        return result


def _tensors(oracle: Oracle, case: Case) -> tuple[Input | Output, ...]:
    return (*oracle.inputs_for(case), *oracle.cotangents_for(case))
