"""Guard: poison and margins around memory that a kernel allocates itself, and a count of the bytes it holds.

A kernel allocates its outputs and workspaces out of the caller's sight. A dispatch mode sees each allocation while the
call runs: memory from the `empty` family comes poisoned, between margins; everything else (`zeros`, `clone`, results
of torch operators) is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.dlpack import from_dlpack

from numcheck import poison
from numcheck.ulp import FORMATS, INTEGERS, torch_dtype

# Wider than the overrun of a block of 1024 FP32 elements, the widest in common use.
MARGIN_BYTES = 4096
# What a CUDA allocation is a multiple of; torch's own CPU allocations are aligned to 64.
ALIGNMENT = 512

Fill = Literal["poison", "dirty"]

_EMPTY = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"}
_NAMES = {torch_dtype(name): name for name in FORMATS}
_CHECKED_INTEGERS = (torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Allocation:
    """One guarded buffer: its raw bytes with margins, and the tensor's place in them."""

    raw: Tensor
    start: int
    size: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    address: int

    def describe(self, names: Mapping[int, str]) -> str:
        """The buffer by the output's name where it is one, or as a workspace of that shape."""
        name = names.get(self.address)
        what = f"output {name}" if name else "a workspace"
        return f"{what} {tuple(self.shape)} {str(self.dtype).removeprefix('torch.')}"


class Guard(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Active during one call. `fill` "poison" marks fresh memory; "dirty" fills it with plausible leftovers instead.

    seed: which leftovers (large values, infinities, small values), and how the memory is aligned.
    operators: torch operators in order, without repeats; written: those that wrote into a tensor of the caller.
    peak: most bytes alive at once that the call allocated.
    born: storage address -> number of launches before it was allocated.
    """

    def __init__(self, fill: Fill = "poison", seed: int = 0, launches: Callable[[], int] = lambda: 0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fill, self.seed = fill, seed
        self.operators: dict[str, None] = {}
        self.written: dict[str, None] = {}
        self.peak = 0
        self.born: dict[int, int] = {}
        self.allocations: list[Allocation] = []
        self._launches = launches
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self._known: list[StorageWeakRef] = []

    def know(self, tensors: Iterable[Tensor]) -> None:
        """Tensors of the caller: not counted."""
        self._known += [_weak(t.untyped_storage()) for t in tensors]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = str(func)
        self._note_writes(func, name, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        self.operators[name] = None
        if name.split(".")[1] in _EMPTY and isinstance(result, Tensor) and _guardable(result):
            result = self._guarded(result)
        self._count(result)
        return result

    def _note_writes(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Remember an operator that writes into a tensor of the caller, even where a later one puts it back."""
        for position, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            for tensor in _leaves(value):
                # An empty storage has no address of its own, so that all empty tensors would look alike.
                if tensor.numel() and tensor.layout == torch.strided and self._is_known(tensor):
                    self.written[name] = None

    def _is_known(self, tensor: Tensor) -> bool:
        ref = _weak(tensor.untyped_storage())
        return any(ref.cdata == known.cdata for known in self._known)

    def _guarded(self, fresh: Tensor) -> Tensor:
        extent = 1 + sum((n - 1) * s for n, s in zip(fresh.shape, fresh.stride(), strict=True))
        size = extent * fresh.element_size()
        shift = ALIGNMENT + 16 * (self.seed % 4) if self.fill == "dirty" else ALIGNMENT
        raw = torch.full(
            (size + 2 * MARGIN_BYTES + 2 * ALIGNMENT,), poison.MARGIN_BYTE, dtype=torch.uint8, device=fresh.device
        )
        start = MARGIN_BYTES + (-(raw.data_ptr() + MARGIN_BYTES)) % ALIGNMENT + shift - ALIGNMENT
        # A storage of its own over the same bytes: it can be dropped by the kernel while the margins are still held.
        body = from_dlpack(raw[start : start + size]).view(fresh.dtype)
        _fill(body, self.fill, self.seed + len(self.allocations))
        guarded = body.as_strided(fresh.shape, fresh.stride())
        where = guarded.data_ptr()
        self.allocations.append(Allocation(raw, start, size, tuple(fresh.shape), fresh.dtype, where))
        return guarded

    def _count(self, result: Any) -> None:
        tensors = [t for t in _leaves(result) if t.layout == torch.strided and t.device.type != "meta"]
        fresh = False
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() == 0:
                continue
            ref = _weak(storage)
            if ref.cdata in self._alive or any(ref.cdata == known.cdata for known in self._known):
                continue
            self._alive[ref.cdata] = (ref, storage.nbytes())
            self.born[storage.data_ptr()] = self._launches()
            fresh = True
        if fresh:
            self._alive = {k: v for k, v in self._alive.items() if not _expired(v[0])}
            self.peak = max(self.peak, sum(size for _, size in self._alive.values()))

    def findings(self, outputs: Mapping[str, Tensor]) -> list[str]:
        """Margins that were written over, and cells of `outputs` that still hold poison."""
        names = {t.data_ptr(): name for name, t in outputs.items()}
        found = [f for a in self.allocations if (f := _margins(a, names))]
        if self.fill == "poison":
            found += [f for name, t in outputs.items() if (f := _unwritten(name, t))]
        return found


def _weak(storage: torch.UntypedStorage) -> StorageWeakRef:
    return StorageWeakRef(storage)  # type: ignore[no-untyped-call]


def _expired(ref: StorageWeakRef) -> bool:
    return bool(ref.expired())  # type: ignore[no-untyped-call]


def _guardable(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type in ("cpu", "cuda") and tensor.numel() > 0


def _leaves(result: Any) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for item in result:
            yield from _leaves(item)


def _fill(body: Tensor, fill: Fill, seed: int) -> None:
    if body.dtype == torch.bool:
        body.fill_(bool(seed % 2) if fill == "dirty" else True)
        return
    plain = body.view(INTEGERS[min(body.element_size(), 8)])
    if fill == "poison":
        name = _NAMES.get(body.dtype)
        width = plain.element_size()
        pattern = poison.FLOAT_BITS[name] if name else poison.integer(width)
        plain.fill_(pattern)
    elif body.dtype.is_floating_point or body.dtype.is_complex:
        # Leftovers of three kinds: huge, infinite, and the size of an honest result.
        body.fill_((torch.finfo(body.dtype).max / 2, math.inf, -1.5)[seed % 3])
    else:
        body.fill_((0, 1, 63)[seed % 3])


def _margins(allocation: Allocation, names: Mapping[int, str]) -> str:
    end = allocation.start + allocation.size
    width = max(torch.empty((), dtype=allocation.dtype).element_size(), 1)
    for side, margin in (("after", allocation.raw[end:]), ("before", allocation.raw[: allocation.start])):
        changed = (margin != poison.MARGIN_BYTE).nonzero().flatten()
        if changed.numel():
            cells = torch.unique(changed // width).numel()
            near = int(changed[0]) // width if side == "after" else (len(margin) - 1 - int(changed[-1])) // width
            return (
                f"{cells} cell(s) written {side} {allocation.describe(names)}, the nearest {near + 1} from its "
                f"{'end' if side == 'after' else 'start'}"
            )
    return ""


def _unwritten(name: str, tensor: Tensor) -> str:
    if tensor.numel() == 0:
        return ""
    left = poisoned(tensor)
    count = int(left.sum())
    if not count:
        return ""
    first = tuple(int(i) for i in left.nonzero()[0])
    return f"{count} of {tensor.numel()} cell(s) of output {name} were never written, the first at {first}"


def poisoned(tensor: Tensor) -> Tensor:
    """Which elements hold poison: a float's own NaN payload, or the sentinel of a 16 to 64 bit integer."""
    name = _NAMES.get(tensor.dtype)
    if name is None and tensor.dtype not in _CHECKED_INTEGERS:
        return torch.zeros(tensor.shape, dtype=torch.bool, device=tensor.device)
    width = tensor.element_size()
    pattern = poison.FLOAT_BITS[name] if name else poison.integer(width)
    return tensor.contiguous().view(INTEGERS[width]) == pattern


@contextmanager
def allocator_peak(device: str) -> Iterator[Callable[[], int]]:
    """On CUDA, the most bytes asked of the allocator and alive at once, beyond those before; elsewhere 0.

    Bytes as they were requested, before the allocator rounds each block up, so that they are comparable with a formula.
    """
    if device != "cuda":
        yield lambda: 0
        return
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    yield lambda: max(0, torch.cuda.memory_stats()["requested_bytes.all.peak"] - before)
