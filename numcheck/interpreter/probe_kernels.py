"""The kernels of `probes`: one operation over one block each, and the arrival counter."""

# Kernels are not typed Python: their parameters are pointers and constexprs.
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def elementwise(a, b, c, out, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    y = tl.load(b + i)
    if OP == "add":
        tl.store(out + i, x + y)
    elif OP == "sub":
        tl.store(out + i, x - y)
    elif OP == "mul":
        tl.store(out + i, x * y)
    elif OP == "div":
        tl.store(out + i, x / y)
    elif OP == "max":
        tl.store(out + i, tl.maximum(x, y))
    elif OP == "min":
        tl.store(out + i, tl.minimum(x, y))
    elif OP == "lt":
        tl.store(out + i, (x < y).to(tl.int32))
    elif OP == "le":
        tl.store(out + i, (x <= y).to(tl.int32))
    elif OP == "eq":
        tl.store(out + i, (x == y).to(tl.int32))
    elif OP == "ne":
        tl.store(out + i, (x != y).to(tl.int32))
    elif OP == "where":
        tl.store(out + i, tl.where(x > 0, x, y))
    elif OP == "neg":
        tl.store(out + i, -x)
    elif OP == "abs":
        tl.store(out + i, tl.abs(x))
    elif OP == "scale":
        tl.store(out + i, x * 0.75)
    elif OP == "fma":
        tl.store(out + i, tl.fma(x, y, tl.load(c + i)))
    elif OP == "clamp":
        tl.store(out + i, tl.clamp(x, -1.5, 2.0))
    elif OP == "constant":
        tl.store(out + i, tl.full((N,), 1.3, out.dtype.element_ty))
    elif OP == "cast":
        tl.store(out + i, x.to(out.dtype.element_ty))
    elif OP == "rtne":
        tl.store(out + i, x.to(out.dtype.element_ty, fp_downcast_rounding="rtne"))
    elif OP == "rtz":
        tl.store(out + i, x.to(out.dtype.element_ty, fp_downcast_rounding="rtz"))
    elif OP == "masked":
        tl.store(out + i, tl.load(a + i, mask=i < N // 2))


@triton.jit
def block(a, out, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i)
    if OP == "sum":
        tl.store(out, tl.sum(x, axis=0))
    elif OP == "cumsum":
        tl.store(out + i, tl.cumsum(x, axis=0))
    elif OP == "amax":
        tl.store(out, tl.max(x, axis=0))
    elif OP == "argmin":
        tl.store(out, tl.argmin(x, axis=0))


@triton.jit
def dot(a, b, out, PRECISION: tl.constexpr):
    i = tl.arange(0, 16)
    p = i[:, None] * 16 + i[None, :]
    tl.store(out + p, tl.dot(tl.load(a + p), tl.load(b + p), input_precision=PRECISION))


@triton.jit
def atomic(target, a, N: tl.constexpr, M: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(target + i % M, tl.load(a + i))


@triton.jit
def arrival(counter, arrived, NY: tl.constexpr, NZ: tl.constexpr):
    program = (tl.program_id(0) * NY + tl.program_id(1)) * NZ + tl.program_id(2)
    tl.store(arrived + program, tl.atomic_add(counter, 1))
