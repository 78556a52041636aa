"""Small kernels for the tests of the interpreter and of runs; some are broken on purpose."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def double(x, out, n, BLOCK: tl.constexpr, SPILL: tl.constexpr):
    """out = 2 x. SPILL 1 forgets the mask of the store; SPILL -1 leaves the last element out."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    value = tl.load(x + i, mask=mask) * 2
    if SPILL == 1:
        tl.store(out + i, value)
    elif SPILL == -1:
        tl.store(out + i, value, mask=i < n - 1)
    else:
        tl.store(out + i, value, mask=mask)


@triton.jit
def total_atomic(x, out, n, BLOCK: tl.constexpr):
    """out += sum of x, each program's part by one atomic."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0))


@triton.jit
def total_lost(x, out, n, BLOCK: tl.constexpr):
    """The same with load, add, store in place of the atomic: a lost update."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out, tl.load(out) + tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0))


@triton.jit
def total_lanes(x, out, n, BLOCK: tl.constexpr):
    """out += each x, every lane of one atomic at the same address."""
    i = tl.arange(0, BLOCK)
    tl.atomic_add(out + i * 0, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)


@triton.jit
def total_in_turn(x, out, turn, n, BLOCK: tl.constexpr, POLL: tl.constexpr):
    """The same, each program waiting for its turn: correct only in one order of programs."""
    k = tl.program_id(0)
    if POLL == "cas":
        while tl.atomic_cas(turn, k, k) != k:
            pass
    elif POLL == "add":
        while tl.atomic_add(turn, 0) != k:
            pass
    else:
        while tl.load(turn, volatile=True) != k:
            pass
    i = k * BLOCK + tl.arange(0, BLOCK)
    tl.store(out, tl.load(out) + tl.sum(tl.load(x + i, mask=i < n, other=0.0), axis=0))
    tl.atomic_xchg(turn, k + 1)


@triton.jit
def running(x, out, n):
    """out[i] = x[i] + out[i - 1] over a run-time length, one program: many loads, none of them waiting."""
    last = tl.load(x)
    tl.store(out, last)
    for i in range(1, n):
        last += tl.load(x + i)
        tl.store(out + i, last)


@triton.jit
def scaled_sum(x, scale, out, n):
    """out = sum of scale x[i], the one scalar loaded anew for each i."""
    total = tl.load(x) * tl.load(scale)
    for i in range(1, n):
        total += tl.load(x + i) * tl.load(scale)
    tl.store(out, total)


@triton.jit
def copy_first(x, out, n, BLOCK: tl.constexpr):
    """Each program writes its part of out, and program 0 reads the next program's."""
    k = tl.program_id(0)
    i = k * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))
    if k == 0:
        tl.store(out + i, tl.load(out + BLOCK + tl.arange(0, BLOCK)))


@triton.jit
def helper(value):
    return tl.zeros_like(value) + value * 2


@triton.jit
def with_helper(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, helper(tl.load(x + i, mask=i < n, other=0.0)), mask=i < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32})], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    """out = 2 x; which block is a matter of timing."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n, other=0.0) * 2, mask=i < n)


@triton.jit
def overflowing(x, out):
    """int32 beyond its range."""
    tl.store(out, tl.load(x) * tl.load(x))


@triton.jit
def grid_corner(out, NY: tl.constexpr, NZ: tl.constexpr):
    """Each program stores its linear id at its place."""
    k = (tl.program_id(0) * NY + tl.program_id(1)) * NZ + tl.program_id(2)
    tl.store(out + k, k)


@triton.jit
def wild(x, out, far):
    """A read far beyond x."""
    tl.store(out, tl.load(x + far))


@triton.jit
def bf16_block(x, out, N: tl.constexpr):
    """Keeps bf16 from end to end: x * x + x, its running maximum, and the sum along an axis of a square."""
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(out + i, value * value + value)


@triton.jit
def fp8_cast(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(x + i).to(tl.float8e5).to(tl.float32))


@triton.jit
def packed(x, out):
    """Program 0 writes two int32 as one int64; program 1 reads the second."""
    if tl.program_id(0) == 0:
        tl.store(out, tl.load(x))
    else:
        half = (out + 1).to(tl.pointer_type(tl.int32), bitcast=True)
        tl.store(half, tl.load(half - 1))


@triton.jit
def guarded_by_scalar(x, out, n, BLOCK: tl.constexpr):
    """Program 0 alone stores, and only where a scalar that it loads is a number."""
    i = tl.arange(0, BLOCK)
    scalar = tl.load(x)
    mask = (tl.program_id(0) == 0) & (scalar == scalar) & (i < n)
    tl.store(out + i, tl.load(x + i), mask=mask)


@triton.jit
def one_lane_off(x, whole, out, OTHER: tl.constexpr):
    """A masked-off lane of a load of one element, FP32 and int8: its `other`, or poison where none is given."""
    i = tl.arange(0, 1)
    if OTHER:
        tl.store(out + i, tl.load(x + i, mask=i > 0, other=0.0))
        tl.store(out + 1 + i, tl.load(whole + i, mask=i > 0, other=0).to(tl.float32))
    else:
        tl.store(out + i, tl.load(x + i, mask=i > 0))
        tl.store(out + 1 + i, tl.load(whole + i, mask=i > 0).to(tl.float32))
