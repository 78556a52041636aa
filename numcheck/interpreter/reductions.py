"""Repairs of tl.sum, tl.max and the scans for 16-bit floats: partial results round as values of that dtype do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream

from numcheck.interpreter import bits
from numcheck.interpreter.handles import is_bf16, narrowed, widened
from numcheck.interpreter.patch import Patches


def install(patches: Patches) -> None:
    """Repair reductions and scans of 16-bit floats."""
    reduce_apply, scan_apply = upstream.ReduceOps.apply_impl, upstream.ScanOps.apply_impl

    def reduce(self: Any, input: Any) -> Any:
        dtype = input[0].dtype
        if dtype not in (tl.bfloat16, tl.float16):
            return reduce_apply(self, input)
        if self.combine_fn is tl.standard._sum_combine:
            return self.to_tensor(_tree_sum(input[0].handle, self.axis, self.keep_dims), dtype)
        if dtype == tl.bfloat16 and _is_extreme(self.combine_fn):
            return _through_fp32(self, input, reduce_apply)
        return reduce_apply(self, input)

    def scan(self: Any, input: Any) -> Any:
        dtype = input[0].dtype
        if dtype in (tl.bfloat16, tl.float16) and self.combine_fn in (
            tl.standard._sum_combine,
            tl.standard._prod_combine,
        ):
            op = np.add if self.combine_fn == tl.standard._sum_combine else np.multiply
            return [self.to_tensor(_rounded_scan(input[0].handle, self.axis, op, self.reverse), dtype)]
        return scan_apply(self, input)

    patches.set(upstream.ReduceOps, "apply_impl", reduce)
    patches.set(upstream.ScanOps, "apply_impl", scan)


def _is_extreme(combine: Any) -> bool:
    names = [f"_arg{side}_combine_tie_break_{how}" for side in ("max", "min") for how in ("left", "fast")]
    return any(combine is getattr(tl.standard, name, None) for name in ("_elementwise_max", "_elementwise_min", *names))


def _through_fp32(self: Any, input: Any, apply: Callable[..., Any]) -> Any:
    wide = tl.core.tensor(widened(input[0].handle), input[0].type.with_element_ty(tl.float32))
    found = apply(self, (wide, *input[1:]))
    value, rest = (found[0], found[1:]) if isinstance(found, tuple) else (found, ())
    back = self.to_tensor(bits.narrow(value.handle.data), tl.bfloat16)
    if not value.handle.data.shape or not value.type.is_block():
        back = tl.core.tensor(narrowed(value.handle.data), tl.bfloat16)
    return (back, *rest) if rest else back


def _rounder(handle: Any) -> tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """FP32 values of a 16-bit handle, how to round such values to its dtype, and how to store them."""
    if is_bf16(handle):
        return bits.widen(handle.data), lambda v: bits.widen(bits.narrow(v)), bits.narrow
    return handle.data.astype(np.float32), lambda v: bits.to_fp16(v).astype(np.float32), bits.to_fp16


def _tree_sum(handle: Any, axis: int | None, keep_dims: bool) -> Any:
    """The sum in halves, each partial sum rounded to 16 bits: what a device does, up to its choice of tree."""
    values, rounded, stored = _rounder(handle)
    shape = values.shape
    values = values.reshape(-1) if axis is None else np.moveaxis(values, axis, -1)
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        with np.errstate(over="ignore", invalid="ignore"):
            values = rounded(values[..., :half] + values[..., half:])
    result = stored(values[..., 0])
    if not keep_dims:
        return result
    return result.reshape([1] * len(shape)) if axis is None else np.expand_dims(result, axis)


def _rounded_scan(handle: Any, axis: int, op: Any, reverse: bool) -> Any:
    """The running sum or product along `axis`, each step rounded to 16 bits."""
    values, rounded, stored = _rounder(handle)
    values = np.moveaxis(values, axis, 0).copy()
    values = values[::-1] if reverse else values
    for k in range(1, len(values)):
        with np.errstate(over="ignore", invalid="ignore"):
            values[k] = rounded(op(values[k - 1], values[k]))
    values = values[::-1] if reverse else values
    return np.ascontiguousarray(stored(np.moveaxis(values, 0, axis)))
