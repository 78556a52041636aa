"""Shrinking on a real kernel: float atomics that claim a fixed order, in the interpreter."""

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

# D blocks of triton_split_atomic are 16 wide for a small D, so two blocks and one element make three.
BLOCK = 16
# Judged Cases of one shrinking: 19 to 32 were seen, at 0.15 s each; a search that asks for more would miss 10 s.
MOST = 60


@pytest.mark.skipif(not interpreter.active(), reason="the interpreter permutes program orders; a device has its own")
@pytest.mark.parametrize("seed", range(8))
def test_atomics_that_claim_a_fixed_order_shrink_to_three_blocks(seed: int) -> None:
    (atomic,) = (spec for spec in ALL if spec.name == "mhc_post.triton_split_atomic")
    asked: list[tuple[str, Case]] = []
    claim = atomic.claiming(d_post="fixed", d_comb="fixed")
    trial = Trial(BITWISE, claim, CI, lambda case, verdict, phase: asked.append((phase, case)))
    first = first_failure(trial, examples=100, seed=seed)
    assert first is not None
    start = time.monotonic()
    found = minimise(trial, first, seed)
    spent = time.monotonic() - start
    shrinking = [case for phase, case in asked if phase == "shrink"]
    print(f"seed {seed}: {first.line()} -> {found.shrunk.line()} in {len(shrinking)} Cases, {spent:.1f} s")
    assert found.verdict.status == Status.FAIL
    assert {name for name, v in found.verdict.outputs.items() if not v.status.held} <= {"d_post", "d_comb"}
    assert found.shrunk == Case.of(S=1, H=1, D=2 * BLOCK + 1, seed=found.shrunk.seed)
    assert len(shrinking) <= MOST
