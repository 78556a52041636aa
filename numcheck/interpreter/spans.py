"""Spans: the memory that a launch was given, so that an access beyond it is reported instead of done.

What a launch was given is its tensors' whole storages: a kernel may walk from one view of a buffer to the next. Of the
caller's own tensors it is their elements and what lies between them; margins around them are nobody's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor

# Storage address -> first byte and the one after the last that its tensors reach.
Reaches = Mapping[int, tuple[int, int]]


def reaches(tensors: Iterable[Tensor]) -> Reaches:
    """How far these tensors reach in their storages: from the first element to the end of the last."""
    found: dict[int, tuple[int, int]] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        storage, first = tensor.untyped_storage().data_ptr(), tensor.data_ptr()
        length = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
        last = first + length * tensor.element_size()
        low, high = found.get(storage, (first, last))
        found[storage] = min(low, first), max(high, last)
    return found


class Spans:
    """Byte ranges of a launch's tensors by argument name: whole storages, or as far as `known` ones reach."""

    def __init__(self, arguments: Mapping[str, Any], known: Reaches) -> None:
        found: dict[int, tuple[int, str]] = {}
        # A pointer that the kernel makes from an integer, or an argument of an unknown kind, may lead anywhere.
        self.open = False
        for name, value in arguments.items():
            for tensor in _tensors(value):
                storage = getattr(tensor, "untyped_storage", None)
                if storage is None:
                    self.open = True
                    continue
                start, size = tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes()
                if start in known:
                    start, size = known[start][0], known[start][1] - known[start][0]
                if size and size > found.get(start, (0, ""))[0]:
                    found[start] = (size, name)
        self.starts = sorted(found)
        self.ends = [start + found[start][0] for start in self.starts]
        self.names = [found[start][1] for start in self.starts]

    def holds(self, low: int, high: int) -> bool:
        """Whether the bytes from `low` up to `high` lie in one span."""
        k = bisect_right(self.starts, low) - 1
        return self.open or (k >= 0 and high <= self.ends[k])

    def inside(self, addresses: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.bool_]:
        """For each address, whether `width` bytes from there lie in a span."""
        if self.open or not self.starts:
            return np.full(addresses.shape, self.open, dtype=bool)
        k = np.searchsorted(np.array(self.starts, dtype=np.uint64), addresses, side="right") - 1
        ends = np.array(self.ends, dtype=np.uint64)[np.maximum(k, 0)]
        return (k >= 0) & (addresses + np.uint64(width) <= ends)

    def distance(self, address: int, width: int) -> int:
        """How many bytes an access at `address` reaches beyond the nearest span; 0 inside one."""
        return min((max(s - address, address + width - e, 0) for s, e, _ in self._each()), default=0)

    def describe(self, address: int, width: int, home: int | None = None) -> tuple[str, int]:
        """Where an address beyond the spans lies, in elements of `width` bytes from an argument, and where that starts.

        The argument is the one that holds `home` (another lane of the same access), or else the nearest.
        """
        spans = [s for s in self._each() if home is not None and s[0] <= home < s[1]] or self._each()
        if not spans:
            return "outside every argument", 0
        start, end, name = min(spans, key=lambda span: max(span[0] - address, address + width - span[1]))
        after = address >= start
        elements = -(-(address + width - end if after else start - address) // width)
        return f"{elements} element(s) {'past the end' if after else 'before the start'} of `{name}`", start

    def _each(self) -> list[tuple[int, int, str]]:
        return list(zip(self.starts, self.ends, self.names, strict=True))


def _tensors(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "base") and hasattr(value, "block_shape"):  # a TensorDescriptor
        yield from _tensors(value.base)
    elif hasattr(value, "data_ptr"):
        inner = getattr(value, "base", None)  # a TensorWrapper (reinterpreted dtype)
        yield inner if not hasattr(value, "untyped_storage") and inner is not None else value
