"""Repairs of the interpreter's arithmetic, as overrides on the builder instance and on its reductions.

The interpreter keeps bf16 as uint16 and computes on those bits. Here every bf16 operation widens to FP32, computes
there and rounds once, as hardware does (FP32 has more than twice bf16's bits plus two, so that is one rounding of the
exact result for + - x / and sqrt). `probe` compares each of them with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as upstream

from numcheck.errors import Refused
from numcheck.interpreter import bits, reductions
from numcheck.interpreter.handles import is_bf16, narrowed, widened
from numcheck.interpreter.patch import Patches

# By name, as recorded with each run.
REPAIRS = {
    "bf16-casts": "one rounding, to nearest even or as asked",
    "bf16-arithmetic": "+ - x /, compare, min, max, clamp in FP32, rounded once",
    "fma": "one rounding (bf16, fp16, fp32)",
    "min-max-nan": "the number where one side is NaN, unless NaN is to propagate",
    "dot-inputs": "bf16 widened exactly; FP32 rounded to TF32 where that is asked for (Triton's default)",
    "16-bit-sums": "sum, cumsum and cumprod round each partial result",
    "16-bit-atomics": "one rounding a lane",
    "scalar-masks": "a comparison of scalars stays a mask when it meets a block; run-time scalars index",
    "masked-lanes": "a masked-off lane of a load without `other` is poison, not 0",
}

_Handle = upstream.TensorHandle
_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift)


def install(patches: Patches) -> None:
    """Put every repair in force on the one builder instance that interpreted kernels use."""
    builder = upstream.interpreter_builder
    for name, override in (*_casts(builder), *_arithmetic(builder), *_dot(builder)):
        patches.set(builder, name, override)
    reductions.install(patches)
    patches.set(tl.tensor, "__index__", lambda self: int(self.handle.data.item()))


Overrides = tuple[tuple[str, Callable[..., Any]], ...]


def _casts(builder: Any) -> Overrides:
    cast_impl, fp_to_fp = builder.cast_impl, builder.create_fp_to_fp
    toward_zero = upstream._ir.ROUNDING_MODE.RTZ

    def cast(src: Any, dst_type: Any) -> Any:
        return convert(src, dst_type, truncate=False)

    def convert(src: Any, dst_type: Any, truncate: bool) -> Any:
        target = dst_type.scalar
        if is_bf16(src):
            if target == tl.bfloat16:
                return src
            src = widened(src)
            if target == tl.float32:
                return src
        if target == tl.bfloat16:
            values = src.data if src.data.dtype == np.float64 else src.data.astype(np.float32)
            return _Handle(bits.narrow(values, truncate), tl.bfloat16)
        if target == tl.float16 and src.data.dtype in (np.float32, np.float64):
            return _Handle(bits.to_fp16(src.data, truncate), tl.float16)
        if target == tl.float32 and src.data.dtype == np.float64 and truncate:
            raise Refused("a cast from fp64 to fp32 towards zero is not known to the interpreter; use rtne")
        return cast_impl(src, dst_type)

    def create_fp_to_fp(src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if target.is_fp8() and not source.is_fp8():
            raise Refused(f"a cast from {source} to {target} rounds wrongly in the interpreter; run it on a device")
        if source.is_fp8():
            wide = fp_to_fp(src, tl.float32, rounding_mode)
            return wide if target == tl.float32 else convert(wide, dst_type, truncate=False)
        return convert(src, dst_type, truncate=rounding_mode == toward_zero)

    def get_bf16(value: float) -> Any:
        return narrowed(np.array([value], dtype=np.float64))

    return (("cast_impl", cast), ("create_fp_to_fp", create_fp_to_fp), ("get_bf16", get_bf16))


def _arithmetic(builder: Any) -> Overrides:
    binary, unary, ternary = builder.binary_op, builder.unary_op, builder.ternary_op

    def binary_op(lhs: Any, rhs: Any, op: Any) -> Any:
        if is_bf16(lhs) and op not in _BITWISE:
            result = op(widened(lhs).data, widened(rhs).data)
            return _Handle(result, tl.int1) if result.dtype == np.bool_ else narrowed(result)
        handle = binary(lhs, rhs, op)
        # Left as it is, a comparison of scalars turns into the operands' dtype when it meets a block.
        return _Handle(handle.data, tl.int1) if handle.data.dtype == np.bool_ else handle

    def unary_op(arg: Any, op: Any) -> Any:
        return narrowed(op(widened(arg).data)) if is_bf16(arg) else unary(arg, op)

    def ternary_op(lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where or not is_bf16(other):
            return ternary(lhs, rhs, other, op)
        return narrowed(op(widened(lhs).data, widened(rhs).data, widened(other).data))

    def create_fma(x: Any, y: Any, z: Any) -> Any:
        kind = z.dtype.scalar
        if kind == tl.float64:
            return _fma_fp64(x, y, z)
        total = bits.fused(widened(x).data, widened(y).data, widened(z).data)
        if kind == tl.bfloat16:
            return narrowed(total)
        rounded = bits.to_fp16(total) if kind == tl.float16 else bits.round_fp32(total)
        return _Handle(rounded, kind)

    def create_minnumf(lhs: Any, rhs: Any) -> Any:
        return binary_op(lhs, rhs, np.fmin)

    def create_maxnumf(lhs: Any, rhs: Any) -> Any:
        return binary_op(lhs, rhs, np.fmax)

    def create_clampf(arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        if propagate_nans == upstream._ir.PROPAGATE_NAN.NONE:
            return binary_op(binary_op(arg, lo, np.fmax), hi, np.fmin)
        return ternary_op(arg, lo, hi, np.clip)

    return (
        ("binary_op", binary_op),
        ("unary_op", unary_op),
        ("ternary_op", ternary_op),
        ("create_fma", create_fma),
        ("create_minnumf", create_minnumf),
        ("create_maxnumf", create_maxnumf),
        ("create_clampf", create_clampf),
    )


def _fma_fp64(x: Any, y: Any, z: Any) -> Any:
    exact = getattr(upstream._interpreter, "fma_fp64", None)
    if exact is None:
        raise Refused("tl.fma of fp64 rounds twice in this version of the interpreter; run it with Triton 3.9 or later")
    return _Handle(exact(*np.broadcast_arrays(x.data, y.data, z.data)), z.dtype.scalar)


def _dot(builder: Any) -> Overrides:
    dot, dot_scaled = builder.create_dot, getattr(builder, "create_dot_scaled", None)
    tf32 = upstream._ir.INPUT_PRECISION.TF32

    def create_dot(a: Any, b: Any, d: Any, input_precision: Any, *rest: Any, **kwargs: Any) -> Any:
        if is_bf16(d):
            raise Refused("tl.dot into a bf16 accumulator is not known to the interpreter; accumulate in FP32")
        a, b = _dot_input(a, input_precision == tf32), _dot_input(b, input_precision == tf32)
        return dot(a, b, d, input_precision, *rest, **kwargs)

    def create_dot_scaled(*args: Any, **kwargs: Any) -> Any:
        raise Refused("tl.dot_scaled is not checked in the interpreter; run it on a device")

    return (("create_dot", create_dot), *((("create_dot_scaled", create_dot_scaled),) if dot_scaled else ()))


def _dot_input(handle: Any, tf32: bool) -> Any:
    if is_bf16(handle):
        return widened(handle)
    if tf32 and handle.data.dtype == np.float32:
        return _Handle(bits.to_tf32(handle.data), handle.dtype)
    return handle
