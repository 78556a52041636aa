"""bf16 handles of the interpreter: uint16 data with a dtype that says so."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.runtime import interpreter as upstream

from numcheck.interpreter import bits

_Handle = upstream.TensorHandle


def is_bf16(handle: Any) -> bool:
    """Whether the handle holds bf16 values."""
    return bool(handle.dtype.scalar == tl.bfloat16)


def widened(handle: Any) -> Any:
    """The same values in FP32, for a bf16 handle; any other handle as it is."""
    return _Handle(bits.widen(handle.data), tl.float32) if is_bf16(handle) else handle


def narrowed(values: Any) -> Any:
    """FP32 or FP64 values as a bf16 handle."""
    return _Handle(bits.narrow(values), tl.bfloat16)
