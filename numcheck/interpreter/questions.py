"""Questions of the probes: a small kernel each, and what it should give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import torch
import triton
from torch import Tensor

from numcheck import poison
from numcheck.interpreter import probe_kernels as kernels
from numcheck.order import Order
from numcheck.ulp import INTEGERS

_TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_MANTISSA = {"bf16": (8, -133), "fp16": (11, -24), "fp32": (24, -149)}  # bits, exponent of the smallest subnormal


@dataclass(frozen=True)
class Question:
    """`got()` runs a kernel, `want()` says what it should give; "" or how they differ."""

    op: str
    dtype: str
    got: Callable[[], Tensor]
    want: Callable[[], Tensor]
    order: Order = field(default_factory=Order)

    def differs(self) -> str:
        """Run it under whatever is in force and say where the bits differ, or ""."""
        got, want = self.got(), self.want()
        same = _bits(got) == _bits(want)
        if got.is_floating_point():
            same |= got.isnan() & want.isnan()
        if bool(same.all()):
            return ""
        k = int((~same).flatten().nonzero()[0])
        return f"element {k}: got {got.flatten()[k].item()!r}, torch gives {want.flatten()[k].item()!r}"


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(INTEGERS[tensor.element_size()])


def _values(dtype: str) -> Tensor:
    """64 values of `dtype`: special ones, then a fixed spread over the exponents."""
    kind = _TORCH[dtype]
    info = torch.finfo(kind)
    special = [0.0, -0.0, float("nan"), float("inf"), -float("inf"), info.max, info.min, info.tiny, -info.tiny]
    special += [info.smallest_normal / 2, 1.0, -1.0, 1.0 + info.eps, 2.0 - info.eps, 0.5, 3.0]
    spread = [(-1) ** k * (1 + (37 * k % 64) / 64) * 2.0 ** (k % 13 - 6) for k in range(48)]
    return torch.tensor(special + spread, dtype=torch.float64).to(kind)


def _pairs(dtype: str) -> tuple[Tensor, Tensor, Tensor]:
    """Three arrangements of the values, so that special ones meet each other and plain ones."""
    values = _values(dtype)
    return values.repeat(16), values.repeat_interleave(16), values.roll(7).repeat(16)


def _wide(dtype: str) -> Tensor:
    """FP32 values on and beside the ties of `dtype`, with carries, overflow, subnormals and specials."""
    grid = _values(dtype).float()
    finite = grid[grid.isfinite() & (grid != 0)]
    bits = finite.view(torch.int32)
    step = 1 << (24 - _MANTISSA[dtype][0])
    near = [(bits + d).view(torch.float32) for d in (step // 2 - 1, step // 2, step // 2 + 1, step - 1, step * 3 // 2)]
    return torch.cat([grid, *near])


def nearest(value: Fraction, dtype: str) -> float:
    """`value` rounded once to `dtype`, to nearest even, as a Python float (inf beyond the largest)."""
    if value == 0:
        return 0.0
    bits, lowest = _MANTISSA[dtype]
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent - bits + 1, lowest)
    rounded = float(round(value / quantum) * quantum)  # round() of a Fraction is half to even
    return rounded if abs(rounded) <= torch.finfo(_TORCH[dtype]).max else float("inf") * (1 if rounded > 0 else -1)


def questions() -> list[Question]:
    """Every operation on every 16-bit dtype, FP32 where it is repaired too, and the order of programs."""
    asked: list[Question] = []
    for dtype in ("bf16", "fp16"):
        asked += [*_cast_questions(dtype), *_arithmetic_questions(dtype), *_block_questions(dtype)]
    for dtype in ("fp32",):
        asked += [_fma(dtype), *(_binary(op, dtype) for op in ("max", "min"))]
    return [*asked, _tf32(), *_masked(), *_orders()]


def _cast_questions(dtype: str) -> list[Question]:
    kind, wide = _TORCH[dtype], _wide(dtype)
    double = torch.cat([wide.double(), torch.tensor([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-11 + 2.0**-40]).double()])
    ints = torch.tensor([0, 1, -1, 3, 255, 256, 257, 259, -771, 40000, -65519, 2**24], dtype=torch.int32)
    small = _values(dtype)[10:]
    exact = [nearest(Fraction(v), dtype) if v == v and abs(v) < float("inf") else v for v in double.tolist()]
    signs = torch.copysign(torch.tensor(exact, dtype=torch.float64), double)
    return [
        Question("cast from fp32", dtype, lambda: _run("cast", wide, kind), lambda: wide.to(kind)),
        Question("cast from fp32, rtne asked for", dtype, lambda: _run("rtne", wide, kind), lambda: wide.to(kind)),
        Question("cast from fp32, rtz asked for", dtype, lambda: _run("rtz", wide, kind), lambda: _rtz(wide, kind)),
        Question("cast from fp64", dtype, lambda: _run("cast", double, kind), lambda: signs.to(kind)),
        Question("cast from int32", dtype, lambda: _run("cast", ints, kind), lambda: ints.to(kind)),
        Question("cast to fp32", dtype, lambda: _run("cast", _values(dtype), torch.float32), _values(dtype).float),
        Question("cast to int32", dtype, lambda: _run("cast", small, torch.int32), lambda: small.to(torch.int32)),
        Question("constant", dtype, lambda: _run("constant", small, kind), lambda: torch.full_like(small, 1.3)),
    ]


def _rtz(wide: Tensor, kind: torch.dtype) -> Tensor:
    near = wide.to(kind)
    beyond = (near.float().abs() > wide.abs()) & wide.isfinite()
    return torch.where(beyond, (_bits(near) - 1).view(kind), near)


_BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "max": torch.fmax,
    "min": torch.fmin,
    "lt": lambda a, b: (a < b).int(),
    "le": lambda a, b: (a <= b).int(),
    "eq": lambda a, b: (a == b).int(),
    "ne": lambda a, b: (a != b).int(),
    "where": lambda a, b: torch.where(a > 0, a, b),
}


def _binary(op: str, dtype: str) -> Question:
    a, b, _ = _pairs(dtype)
    if op in ("max", "min"):  # which zero is the larger is left open by IEEE 754's maxNum
        a, b = a[(a != 0) | (b != 0)], b[(a != 0) | (b != 0)]
    want = _BINARY[op]
    return Question(op, dtype, lambda: _run(op, a, want(a, b).dtype, b), lambda: want(a, b))


def _arithmetic_questions(dtype: str) -> list[Question]:
    a, _, _ = _pairs(dtype)
    signed = a[a != 0]  # Triton 3.6 makes -x of 0 - x, on a device too, and so +0 of +0
    return [
        *(_binary(op, dtype) for op in _BINARY),
        Question("neg", dtype, lambda: _run("neg", signed, a.dtype), lambda: -signed),
        Question("abs", dtype, lambda: _run("abs", a, a.dtype), lambda: a.abs()),
        Question("times a scalar", dtype, lambda: _run("scale", a, a.dtype), lambda: a * 0.75),
        _fma(dtype),
        _clamp(dtype),
    ]


def _fma(dtype: str) -> Question:
    a, b, c = (t[t.isfinite()] for t in (_values(dtype), _values(dtype).flip(0), _values(dtype).roll(5)))
    n = min(len(a), len(b), len(c))
    # A product on a tie and an addend too small for FP64 to keep: two roundings would lose which way to go.
    tie = (1 + 2.0 ** (1 - _MANTISSA[dtype][0])) if dtype != "fp32" else 1 + 2.0**-12
    a = torch.cat([a[:n].double(), torch.tensor([tie, tie]).double()]).to(_TORCH[dtype])
    b = torch.cat([b[:n].double(), torch.tensor([1.5, tie]).double()]).to(_TORCH[dtype])
    c = torch.cat([c[:n].double(), torch.tensor([2.0**-24, -(2.0**-24)]).double()]).to(_TORCH[dtype])

    def want() -> Tensor:
        rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
        exact = [(Fraction(x) * Fraction(y) + Fraction(z), x * y + z) for x, y, z in rows]
        return torch.tensor([nearest(q, dtype) if q else f for q, f in exact], dtype=torch.float64).to(_TORCH[dtype])

    return Question("fma", dtype, lambda: _run("fma", a, a.dtype, b, c), want)


def _clamp(dtype: str) -> Question:
    a = _values(dtype)
    a = a[~a.isnan()]
    return Question("clamp", dtype, lambda: _run("clamp", a, a.dtype), lambda: a.clamp(-1.5, 2.0))


def _block_questions(dtype: str) -> list[Question]:
    kind = _TORCH[dtype]
    finite = _values(dtype)[16:48]
    small = torch.tensor([[(3 * i + 5 * j) % 7 - 3 for j in range(16)] for i in range(16)], dtype=kind)
    ints = small.flatten()[:32]  # exact sums: before 3.9 tl.cumsum of bf16 runs in FP32, later in bf16
    fresh = torch.tensor([0.0, 256.0, -3.0, 1.5], dtype=kind)
    return [
        Question("sum", dtype, lambda: _run("sum", finite, kind)[:1], lambda: _tree(finite)),
        Question("cumsum", dtype, lambda: _run("cumsum", ints, kind), lambda: ints.cumsum(0)),
        Question("max of a block", dtype, lambda: _run("amax", finite, kind)[:1], lambda: finite.max()[None]),
        Question("argmin of a block", dtype, lambda: _run("argmin", finite, torch.int32)[:1], lambda: _argmin(finite)),
        Question("dot", dtype, lambda: _dot(small, "ieee"), lambda: small.float() @ small.float()),
        Question("atomic add", dtype, lambda: _atomic(fresh, finite), lambda: _atomic_wanted(fresh, finite)),
    ]  # fmt: skip


def _argmin(values: Tensor) -> Tensor:
    return values.argmin()[None].int()


def _tree(values: Tensor) -> Tensor:
    while len(values) > 1:
        values = values[: len(values) // 2] + values[len(values) // 2 :]
    return values


def _atomic(fresh: Tensor, values: Tensor) -> Tensor:
    target = fresh.clone()
    kernels.atomic[(1,)](target, values, N=len(values), M=len(fresh))
    return target


def _atomic_wanted(fresh: Tensor, values: Tensor) -> Tensor:
    target = fresh.clone()
    for k, value in enumerate(values):
        target[k % len(fresh)] += value
    return target


def _dot(a: Tensor, precision: str) -> Tensor:
    out = torch.zeros(16, 16)
    kernels.dot[(1,)](a, a, out, PRECISION=precision)
    return out


def _tf32() -> Question:
    ones = torch.zeros(16, 16)
    ones[:, 0] = 1 + 2.0**-11 + 2.0**-20
    ones[0, :] = 1.0
    want = ones.clone()
    want[1:, 0] = 1 + 2.0**-10
    return Question("dot, tf32", "fp32", lambda: _dot(ones, "tf32"), lambda: want @ want)


def _masked() -> list[Question]:
    return [_masked_off(dtype, kind) for dtype, kind in (*_TORCH.items(), ("int32", torch.int32))]


def _masked_off(dtype: str, kind: torch.dtype) -> Question:
    values = torch.ones(8, dtype=kind)
    even = poison.LANE_BITS.get(dtype, poison.integer(4))
    odd = poison.INFINITY_BITS.get(dtype, even - 2**31)
    lanes = torch.tensor([even, odd] * 2, dtype=INTEGERS[values.element_size()])
    want = torch.cat([_bits(values[:4]), lanes])
    return Question("masked-off lane", dtype, lambda: _bits(_run("masked", values, kind)), lambda: want)


def _orders() -> list[Question]:
    """Arrival at an atomic counter: the order in which programs, and the lanes of one atomic, really run."""
    asked = []
    for grid in ((5,), (2, 3), (2, 3, 2)):
        for order in (Order("reversed"), Order("shuffled", 3)):
            asked.append(_arrival(grid, order))
    return asked


def _arrival(grid: tuple[int, ...], order: Order) -> Question:
    sizes = (*grid, 1, 1)[:3]
    n = sizes[0] * sizes[1] * sizes[2]

    def got() -> Tensor:
        counter, arrived = torch.zeros(1, dtype=torch.int32), torch.full((n,), -1, dtype=torch.int32)
        kernels.arrival[grid](counter, arrived, sizes[1], sizes[2])
        return torch.argsort(arrived)

    return Question(
        f"program order {order} on a grid of {n}", "", got, lambda: torch.tensor(order.permutation(n)), order
    )


_BLOCK_OPERATIONS = ("sum", "cumsum", "amax", "argmin")


def _run(op: str, a: Tensor, out: torch.dtype, b: Tensor | None = None, c: Tensor | None = None) -> Tensor:
    n = len(a)
    block = triton.next_power_of_2(n)
    result = torch.zeros(block, dtype=out)
    if op in _BLOCK_OPERATIONS:
        kernels.block[(1,)](a, result, N=block, OP=op)
        return result[:n]
    operands = (a, a if b is None else b, a if c is None else c)
    kernels.elementwise[(1,)](*(torch.cat([t, t.new_ones(block - n)]) for t in operands), result, N=block, OP=op)
    return result[:n]
