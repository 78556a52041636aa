"""Shrinking on a real kernel with integer inputs: atomics on d_kv that claim a fixed order, in the interpreter."""

from __future__ import annotations

import time

import pytest

from kernels import ALL
from numcheck import interpreter
from numcheck.case import Case
from numcheck.laws.bitwise import BITWISE
from numcheck.profile import CI
from numcheck.shrink import Trial, first_failure, minimise
from numcheck.verdict import Status

# Three addends at one address are the fewest whose order can matter.
ADDENDS = 3
# Judged Cases of one shrinking.
MOST = 150


@pytest.mark.skipif(not interpreter.active(), reason="the interpreter permutes program orders; a device has its own")
@pytest.mark.parametrize("seed", range(2))
def test_atomics_that_claim_a_fixed_order_shrink_to_three_addends_at_one_row(seed: int) -> None:
    (atomic,) = (spec for spec in ALL if spec.name == "sparse_mla.triton_atomic")
    asked: list[tuple[str, Case]] = []
    trial = Trial(BITWISE, atomic.claiming(d_kv="fixed"), CI, lambda case, _, phase: asked.append((phase, case)))
    first = first_failure(trial, examples=100, seed=seed)
    assert first is not None
    start = time.monotonic()
    found = minimise(trial, first, seed)
    shrinking = [case for phase, case in asked if phase == "shrink"]
    spent = time.monotonic() - start
    print(f"seed {seed}: {first.line()} -> {found.shrunk.line()} in {len(shrinking)} Cases, {spent:.1f} s")
    assert found.verdict.status == Status.FAIL
    assert {name for name, v in found.verdict.outputs.items() if not v.status.held} == {"d_kv"}
    small = found.shrunk
    assert small["S_q"] * small["topk"] == ADDENDS
    assert (small["S_k"], small["H"]) == (1, 1)
    assert len(shrinking) <= MOST
