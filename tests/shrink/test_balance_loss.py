"""Shrinking on balance losses: column sums by float atomics that claim a fixed order, in the interpreter."""

from __future__ import annotations

import time

import pytest

from kernels.balance_loss import SPECS
from numcheck import interpreter
from numcheck.case import Case
from numcheck.laws.bitwise import BITWISE
from numcheck.profile import CI
from numcheck.shrink import Trial, first_failure, minimise
from numcheck.verdict import Status

# Judged Cases of one shrinking: 32 to 44 were seen, at 0.1 s each.
MOST = 70
# Three tokens in a part of their own, and two experts, since the share of a lone one is 1; or where rows are of mixed
# kinds, a lone expert and the one token more that it takes to find shares that are not all 1.
LANDINGS = ({"T": 3, "E": 2, "K": 1}, {"T": 4, "E": 1, "K": 1})


@pytest.mark.skipif(not interpreter.active(), reason="the interpreter permutes program orders; a device has its own")
@pytest.mark.parametrize(
    ("name", "seed"), [("balance_loss_map.triton_atomic", 0), ("balance_loss_topk.triton_atomic", 1)]
)
def test_atomics_that_claim_a_fixed_order_shrink_to_one_token_a_part(name: str, seed: int) -> None:
    (atomic,) = (spec for spec in SPECS if spec.name == name)
    asked: list[tuple[str, Case]] = []
    trial = Trial(BITWISE, atomic.claiming(mass="fixed"), CI, lambda case, verdict, phase: asked.append((phase, case)))
    first = first_failure(trial, examples=100, seed=seed)
    assert first is not None
    start = time.monotonic()
    found = minimise(trial, first, seed)
    shrinking = [case for phase, case in asked if phase == "shrink"]
    print(f"{first.line()} -> {found.shrunk.line()} in {len(shrinking)} Cases, {time.monotonic() - start:.1f} s")
    assert found.verdict.status == Status.FAIL
    assert {output for output, v in found.verdict.outputs.items() if not v.status.held} == {"mass"}
    assert dict(found.shrunk.sizes) in LANDINGS
    assert found.shrunk == Case.of(**dict(found.shrunk.sizes), facts=dict(found.shrunk.facts), seed=found.shrunk.seed)
    assert len(shrinking) <= MOST
