"""Snapshot: the caller's tensors before a call, to tell what the call changed and to put it back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from numcheck.ulp import INTEGERS

# Bytes beyond which a storage is mostly reserved and never touched, so that of its tensor the elements alone are kept.
MOST = 2**30


@dataclass(frozen=True)
class Snapshot:
    """The caller's tensors as they were, whole storages: what lies between and around the elements counts too.

    Of a storage of more than MOST bytes on a CPU only the tensor's elements are kept, so that a write between them is
    not seen.
    """

    tensors: Mapping[str, Tensor]
    copies: Mapping[str, Tensor]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Snapshot:
        """Copy the storages of `tensors`."""
        with _disable_current_modes():
            return cls(dict(tensors), {name: _kept(t) for name, t in tensors.items()})

    def restore(self, role: str = "input") -> list[str]:
        """Which tensors have changed since, one sentence each that calls them `role`; they are put back."""
        with _disable_current_modes():
            return self._restored(role)

    def _restored(self, role: str) -> list[str]:
        found = []
        for name, tensor in self.tensors.items():
            before = self.copies[name]
            if _vast(tensor):
                if not torch.equal(_elements(tensor), before):
                    kept = before.view(tensor.dtype).view(tensor.shape)
                    found.append(_changed(f"{role} {name}", tensor, kept))
                    tensor.copy_(kept)
                continue
            now = _bytes(tensor)
            if torch.equal(now, before):
                continue
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
                before.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
            found.append(_changed(f"{role} {name}", tensor, copy))
            now.copy_(before)
        return found


def _kept(tensor: Tensor) -> Tensor:
    return _elements(tensor).clone() if _vast(tensor) else _bytes(tensor).clone()


def _vast(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() > MOST and tensor.device.type == "cpu"


def _elements(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _changed(name: str, tensor: Tensor, before: Tensor) -> str:
    width = INTEGERS[min(tensor.element_size(), 8)]
    differ = tensor.contiguous().view(width) != before.contiguous().view(width) if tensor.numel() else None
    if differ is None or not bool(differ.any()):
        return f"memory around {name} was changed, outside its elements"
    first = tuple(int(i) for i in differ.nonzero()[0])
    return f"{name} was changed in {int(differ.sum())} of {tensor.numel()} element(s), the first at {first}"


def aliases(outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> list[str]:
    """Outputs that share memory with an input, one sentence each."""
    found = []
    for name, output in outputs.items():
        for other, given in inputs.items():
            if output.numel() and given.numel() and _same_storage(output, given):
                found.append(f"output {name} shares its memory with input {other}")
    return found


def reused(outputs: Mapping[str, Tensor], earlier: Mapping[str, Tensor]) -> list[str]:
    """Outputs in memory that an earlier call returned, one sentence each: the caller's first result is gone then."""
    return [
        f"output {name} comes in the memory of output {other} of an earlier call, whose result is overwritten"
        for name, output in outputs.items()
        for other, before in earlier.items()
        if output.numel() and before.numel() and _same_storage(output, before)
    ]


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
