"""Shrinking on the grouped kernels: sums by float atomics that claim a fixed order, in the interpreter."""

from __future__ import annotations

import pytest

from kernels.grouped_srelu import SPECS
from kernels.grouped_srelu.contracts import addends
from numcheck import interpreter
from numcheck.case import Case
from numcheck.draw import grid
from numcheck.evidence import ADDENDS
from numcheck.laws.bitwise import BITWISE
from numcheck.profile import QUICK
from numcheck.shrink import Trial, minimise
from numcheck.verdict import Status

# Judged Cases of one shrinking: a search that asks for more takes too long in the interpreter.
MOST = 80
# The size that does not make addends, and how few will do: each row or feature is one more chance of a flip.
OTHER = {"d_prob": "M", "d_bias": "N"}
FEW = 8

pytestmark = pytest.mark.skipif(
    not interpreter.active(), reason="the interpreter permutes program orders; a device has its own"
)


def broken(trial: Trial, case: Case, output: str) -> bool:
    verdict = trial.verdict(case, "grid")
    return verdict is not None and output in verdict.outputs and not verdict.outputs[output].status.held


@pytest.mark.parametrize("output", ["d_prob", "d_bias"])
def test_atomics_that_claim_a_fixed_order_shrink_to_three_addends(output: str) -> None:
    (atomic,) = (spec for spec in SPECS if spec.name == "grouped_srelu.triton_atomic")
    asked: list[tuple[str, Case]] = []
    claim = atomic.claiming(**{output: "fixed"})
    trial = Trial(BITWISE, claim, QUICK, lambda case, verdict, phase: asked.append((phase, case)))
    first = next(case for case in (*BITWISE.cases(claim), *reversed(grid(claim, QUICK))) if broken(trial, case, output))
    found = minimise(trial, first, 0)
    shrinking = [case for phase, case in asked if phase == "shrink"]
    print(f"{output}: {first.line()} -> {found.shrunk.line()} in {len(shrinking)} Cases")
    assert found.verdict.status is Status.FAIL
    assert {name for name, v in found.verdict.outputs.items() if not v.status.held} == {output}
    landed = found.shrunk
    assert (landed["E"], landed["H"], landed.dtype, landed.layout, landed.offset) == (1, 1, "fp32", "contiguous", 0)
    assert dict(landed.facts)["rows"] == "full"
    # Three addends and no more: fewer show no order, and the third is as small as it may be and still tell.
    assert addends(landed)[output] == ADDENDS
    assert landed[OTHER[output]] <= FEW
    assert len(shrinking) <= MOST
