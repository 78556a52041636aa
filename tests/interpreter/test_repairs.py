"""Every repaired operation agrees with torch's bits on both 16-bit dtypes, and nothing of a session stays behind."""

# ruff: noqa: E402
from __future__ import annotations

from numcheck import interpreter

interpreter.enable()

from fractions import Fraction

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter as upstream

from numcheck.errors import Refused
from numcheck.interpreter import bits
from numcheck.interpreter.probes import Probe, broken
from numcheck.interpreter.questions import nearest, questions
from numcheck.interpreter.sessions import unchecked
from tests.interpreter import small


@pytest.mark.parametrize("question", questions(), ids=lambda q: f"{q.op} {q.dtype}".strip().replace(" ", "-"))
def test_a_repaired_operation_gives_torch_bits(question):
    with unchecked(question.order):
        assert question.differs() == ""


def test_the_probes_see_what_is_wrong_without_repairs():
    status = {(p.op, p.dtype): p.status for p in interpreter.probe()}
    for op in ("cast from fp32", "add", "mul", "div", "lt", "max", "neg", "fma", "sum", "dot", "atomic add"):
        assert status[op, "bf16"] == "repaired", op
    for op in ("cast from fp32", "add", "mul", "div", "lt", "neg", "dot", "abs"):
        assert status[op, "fp16"] == "ok", op
    assert set(status.values()) <= {"ok", "repaired"}
    assert broken() == ()


def test_a_broken_repair_is_seen_and_refuses_the_session(monkeypatch):
    def truncating(values, truncate=False):
        return (np.asarray(values, dtype=np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)

    monkeypatch.setattr(bits, "narrow", truncating)
    broken.cache_clear()
    try:
        with pytest.raises(Refused, match="cast from fp32 bf16"), interpreter.session():
            pass
    finally:
        broken.cache_clear()
    assert Probe("add", "bf16", "ok").to_json() == {"op": "add", "dtype": "bf16", "status": "ok", "note": ""}


def test_bf16_from_end_to_end_rounds_after_each_operation():
    x = torch.linspace(-3, 3, 64).bfloat16()
    out = torch.empty_like(x)
    with interpreter.session():
        small.bf16_block[(1,)](x, out, N=64)
    assert torch.equal(out, x * x + x)


def test_fp8_downcasts_are_refused_rather_than_truncated():
    x = torch.linspace(-3, 3, 16)
    with interpreter.session(), pytest.raises(Exception, match="rounds wrongly in the interpreter") as caught:
        small.fp8_cast[(1,)](x, torch.empty_like(x), N=16)
    assert isinstance(caught.value.__cause__, Refused)


def test_narrowing_fp64_rounds_once():
    values = [1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8 - 2.0**-40, 1 + 3 * 2.0**-8, -1 - 2.0**-8 - 2.0**-50, 2.0**-130]
    got = bits.widen(bits.narrow(np.array(values)))
    assert got.tolist() == [nearest(Fraction(v), "bf16") for v in values]
    toward_zero = bits.widen(bits.narrow(np.array(values), truncate=True))
    assert (np.abs(toward_zero) <= np.abs(values)).all()
    assert (np.abs(toward_zero) > np.abs(values) * (1 - 2.0**-7)).all()


def test_fused_multiply_add_keeps_an_addend_below_fp64():
    one = np.array([1 + 2.0**-7], dtype=np.float32)  # its square ends in a tie for bf16 rounding
    tiny = np.array([2.0**-100], dtype=np.float32)
    up, down = bits.fused(one, one, tiny), bits.fused(one, one, -tiny)
    assert bits.narrow(up)[0] >= bits.narrow(down)[0]
    exact = Fraction(float(one[0])) ** 2
    for sign, got in ((1, up), (-1, down)):
        assert bits.widen(bits.narrow(got))[0] == nearest(exact + sign * Fraction(2.0**-100), "bf16")


def test_nothing_of_a_session_stays_behind():
    builder = upstream.interpreter_builder
    before = {
        "builder": set(vars(builder)),
        "run": upstream.InterpretedFunction.run,
        "patch": upstream._patch_lang,
        "reduce": upstream.ReduceOps.apply_impl,
        "scan": upstream.ScanOps.apply_impl,
        "add": tl.tensor.__add__,
        "load": tl.load,
        "options": builder.options,
    }
    with pytest.raises(ZeroDivisionError), interpreter.session():
        raise ZeroDivisionError
    after = {
        "builder": set(vars(builder)),
        "run": upstream.InterpretedFunction.run,
        "patch": upstream._patch_lang,
        "reduce": upstream.ReduceOps.apply_impl,
        "scan": upstream.ScanOps.apply_impl,
        "add": tl.tensor.__add__,
        "load": tl.load,
        "options": builder.options,
    }
    assert after == before


def test_sessions_do_not_nest():
    with interpreter.session(), pytest.raises(Refused, match="do not nest"), interpreter.session():
        pass
