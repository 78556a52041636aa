"""Undeclared rounding at 100 elements: the derived gates see it, a flat relL2 cap does not."""

from __future__ import annotations

import pytest

from numcheck import KernelSpec
from numcheck.laws.accuracy import ACCURACY
from numcheck.profile import QUICK
from numcheck.verdict import Status
from tests.meta.mhc import OLD, OLD_POINTS, hundred, mhc

FLAT = 5e-3
BROKEN = {
    "post": mhc("post", rounds=("post",)),
    "comb": mhc("comb", rounds=("comb",)),
    "post*x": mhc("post*x", rounds=("px",)),
    "mix": mhc("mix", rounds=("mix",)),
    "truncated cast": mhc("truncated cast", truncate=True),
}


def test_the_right_kernel_passes() -> None:
    for seed in range(3):
        verdict = ACCURACY.judge(mhc(), hundred(seed), QUICK)
        assert verdict.status is Status.PASS, verdict


@pytest.mark.parametrize("spec", BROKEN.values(), ids=BROKEN)
def test_undeclared_rounding_fails_where_a_flat_cap_passes(spec: KernelSpec) -> None:
    for seed in range(3):
        verdict = ACCURACY.judge(spec.but(caps={"out": FLAT}), hundred(seed), QUICK)
        assert verdict.outputs["out"].status is Status.FAIL
        failed = {g.kind for g in verdict.gates if g.output == "out" and not g.held}
        assert "ceiling" in failed
        assert "cap" not in failed


@pytest.mark.parametrize("spec", BROKEN.values(), ids=BROKEN)
def test_match_alone_sees_it_nearly_always(spec: KernelSpec) -> None:
    """A rounding that a wider Contract would hide from the ceiling still changes a third of the elements."""
    seen = sum(
        any(
            g.kind == "match" and g.output == "out" and not g.held
            for g in ACCURACY.judge(spec, hundred(s), QUICK).gates
        )
        for s in range(6)
    )
    assert seen >= 5


@pytest.mark.parametrize("missing", OLD_POINTS)
def test_a_declared_rounding_that_is_missing_fails(missing: str) -> None:
    """A kernel that is more exact than it says is not what it says: the ceiling cannot see it, the match can."""
    spec = mhc("not " + missing, rounds=tuple(p for p in OLD_POINTS if p != missing), contract=OLD)
    judged = [(case, ACCURACY.judge(spec, case, QUICK)) for case in map(hundred, range(5))]
    pooled = ACCURACY.pool(spec, judged)
    assert pooled is not None
    # The four elements of d_post are too few in each Case, so it is the pool that sees them.
    verdicts = [pooled] if missing == "d_post" else [v for _, v in judged]
    failed = [g for v in verdicts for g in v.gates if not g.held]
    expected = {"post": "out", "comb": "out", "px": "out", "mix": "out"}.get(missing, missing)
    assert any((g.kind, g.output) == ("match", expected) for g in failed)


def test_a_failure_names_the_worst_element_and_each_gate_its_reason() -> None:
    verdict = ACCURACY.judge(BROKEN["mix"], hundred(), QUICK)
    output = verdict.outputs["out"]
    assert output.where.startswith("out got=")
    assert " expected=" in output.where
    assert " at [0, " in output.where
    assert "ceiling" in output.why
    assert all(g.reason for g in verdict.gates)


def test_the_old_policy_passes_under_its_own_contract_and_not_under_the_new() -> None:
    old = mhc("old", rounds=OLD_POINTS)
    assert ACCURACY.judge(old.but(contract=OLD), hundred(), QUICK).status is Status.PASS
    verdict = ACCURACY.judge(old, hundred(), QUICK)
    assert {n for n, o in verdict.outputs.items() if o.status is Status.FAIL} == set(verdict.outputs)
