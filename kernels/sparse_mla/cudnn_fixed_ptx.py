"""The instructions of `cudnn_fixed_kernel`'s scatter, in PTX: rounding to integers, and adding them.

Each function takes and gives values of the CuTe DSL while a kernel is traced.
"""

from __future__ import annotations

from typing import Any

from cutlass import Boolean, Float32, Int32
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import T, dsl_user_op

from kernels.sparse_mla.cudnn_tables import BIAS

# 1.5 * 2^23: FP32 numbers near it are one apart, so that x + MAGIC has rint(x) in its low bits, for |x| < 2^22.
MAGIC = f"0f{BIAS:08X}"
MAGIC_REACH = "0f4A800000"  # 2^22
# A size in 64ths of a unit, rounded up, half a unit more for the rounding of each value: 64 (1 + 2^-13) x + 32. The
# 2^-13 outweighs the rounding of this multiplication itself.
SIXTY_FOURTHS, HALF = "0f42800400", "0f42000000"


@dsl_user_op
def largest(least: Float32, values: list[Float32], *, loc: Any = None, ip: Any = None) -> Float32:
    """max(least, |values|), NaN if any is."""
    steps = "".join(
        f"abs.f32 a, ${i + 2}; max.NaN.f32 c, c, a; abs.f32 b, ${i + 3}; max.NaN.f32 d, d, b; "
        for i in range(0, len(values), 2)
    )
    text = f"{{ .reg .f32 a, b, c, d; mov.f32 c, $1; mov.f32 d, 0f00000000; {steps} max.NaN.f32 $0, c, d; }}"
    operands = [_float(v, loc, ip) for v in (least, *values)]
    return Float32(_asm(T.f32(), operands, text, ",".join(["=f", *["f"] * len(operands)]), loc, ip))


@dsl_user_op
def larger(a: Float32, b: Float32, *, loc: Any = None, ip: Any = None) -> Float32:
    """max(a, b), NaN if either is."""
    operands = [_float(a, loc, ip), _float(b, loc, ip)]
    return Float32(_asm(T.f32(), operands, "max.NaN.f32 $0, $1, $2;", "=f,f,f", loc, ip))


@dsl_user_op
def integers(values: list[Float32], scale: Float32, peak: Float32, *, loc: Any = None, ip: Any = None) -> list[Float32]:
    """The bits of BIAS + rint(value * scale), each in a register of type Float32.

    One multiplication and addition each where peak * scale < 2^22; else a conversion, which reaches 2^31 and is slow.
    """
    n = len(values)
    fast = "".join(f"fma.rn.f32 ${k}, ${k}, ${n}, {MAGIC}; " for k in range(n))
    slow = "".join(
        f"mul.rn.f32 f, ${k}, ${n}; cvt.rni.s32.f32 i, f; add.s32 i, i, {BIAS}; mov.b32 ${k}, i; " for k in range(n)
    )
    text = (
        f"{{ .reg .f32 f; .reg .s32 i; .reg .pred p; mul.rn.f32 f, ${n}, ${n + 1}; setp.lt.f32 p, f, {MAGIC_REACH}; "
        f"@p bra FAST; {slow} bra END; FAST: {fast} END: }}"
    )
    # Each value is rounded in its own register.
    constraints = ",".join([*["=&f"] * n, "f", "f", *map(str, range(n))])
    operands = [_float(v, loc, ip) for v in (scale, peak, *values)]
    found = _asm(llvm.StructType.get_literal([T.f32()] * n), operands, text, constraints, loc, ip)
    return [Float32(llvm.extractvalue(T.f32(), found, [k], loc=loc, ip=ip)) for k in range(n)]


@dsl_user_op
def add_pairs(
    rows: list[list[Float32]], sums: Any, targets: list[Int32], all_live: Boolean, first: int, step: int, *,
    loc: Any = None, ip: Any = None,
) -> None:  # fmt: skip
    """Add two pairs of words to each of four rows as 64-bit integers, `step` bytes apart.

    sums + target + first: where; a target with its lowest bit set is dead. all_live: no row of this warp is, so that
    one branch does for all.
    """

    def add(i: int, guard: str) -> str:
        pairs = [(6 + 4 * i + 2 * k, first + k * step) for k in (0, 1)]
        return f"cvt.u64.u32 a, ${2 + i}; add.s64 a, a, $0; " + "".join(
            f"mov.b64 v, {{${w}, ${w + 1}}}; {guard} red.relaxed.gpu.global.add.u64 [a+{at}], v; " for w, at in pairs
        )

    unguarded = "".join(add(i, "") for i in range(4))
    guarded = "".join(f"and.b32 t, ${2 + i}, 1; setp.eq.u32 p, t, 0; {add(i, '@p')}" for i in range(4))
    text = f"{{ .reg .b64 a, v; .reg .b32 t; .reg .pred p; @!$1 bra DEAD; {unguarded} bra END; DEAD: {guarded} END: }}"
    operands = [sums.toint().ir_value(loc=loc, ip=ip), Boolean(all_live).ir_value(loc=loc, ip=ip)]
    operands += [Int32(t).ir_value(loc=loc, ip=ip) for t in targets]
    operands += [_float(w, loc, ip) for row in rows for w in row]
    _asm(None, operands, text, ",".join(["l", "b", *["r"] * 4, *["f"] * 16]), loc, ip)


@dsl_user_op
def store(address: Int32, word: Int32, here: Boolean, *, loc: Any = None, ip: Any = None) -> None:
    """Store a word to shared memory where `here`."""
    operands = [Int32(v).ir_value(loc=loc, ip=ip) for v in (address, word)]
    operands.append(Boolean(here).ir_value(loc=loc, ip=ip))
    _asm(None, operands, "@$2 st.shared.b32 [$0], $1;", "r,r,b", loc, ip)


@dsl_user_op
def load_four(address: Int32, *, loc: Any = None, ip: Any = None) -> list[Int32]:
    """Four words of shared memory, at a multiple of 16 bytes."""
    words = llvm.StructType.get_literal([T.i32()] * 4)
    found = llvm.inline_asm(
        words, [Int32(address).ir_value(loc=loc, ip=ip)], "ld.shared.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,r",
        has_side_effects=True, is_align_stack=False, asm_dialect=llvm.AsmDialect.AD_ATT, loc=loc, ip=ip,
    )  # fmt: skip
    return [Int32(llvm.extractvalue(T.i32(), found, [k], loc=loc, ip=ip)) for k in range(4)]


@dsl_user_op
def add_sizes(
    mass: Any, count: Any, peak: Any, valid: Boolean, scale: Float32, size: Float32, *, loc: Any = None, ip: Any = None
) -> None:
    """Where `valid`: add the size, scaled, to a row's mass; one to its count; and raise its peak to the size."""
    text = (
        f"{{ .reg .f32 f; .reg .b64 u; .reg .b32 w; @!$3 bra END; mul.rn.f32 f, $4, $5; "
        f"fma.rn.f32 f, f, {SIXTY_FOURTHS}, {HALF}; cvt.rpi.u64.f32 u, f; red.relaxed.gpu.global.add.u64 [$0], u; "
        f"red.relaxed.gpu.global.add.u32 [$1], 1; mov.b32 w, $5; red.relaxed.gpu.global.max.u32 [$2], w; END: }}"
    )
    operands = [address.ir_value(loc=loc, ip=ip) for address in (mass, count, peak)]
    operands += [Boolean(valid).ir_value(loc=loc, ip=ip), _float(scale, loc, ip), _float(size, loc, ip)]
    _asm(None, operands, text, "l,l,l,b,f,f", loc, ip)


def _float(value: Float32, loc: Any, ip: Any) -> Any:
    return Float32(value).ir_value(loc=loc, ip=ip)


def _asm(result: Any, operands: list[Any], text: str, constraints: str, loc: Any, ip: Any) -> Any:
    return llvm.inline_asm(
        result,
        operands,
        text,
        constraints,
        has_side_effects=result is None,
        is_align_stack=False,
        asm_dialect=llvm.AsmDialect.AD_ATT,
        loc=loc,
        ip=ip,
    )
