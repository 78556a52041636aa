"""The fingerprint names the rounding policy of every spec among all candidates, and a policy that was not declared."""

from __future__ import annotations

import pytest

from kernels import ALL
from numcheck import Available, Case, KernelSpec
from numcheck.execute import execute
from numcheck.fingerprint import candidates, fingerprint
from numcheck.laws.accuracy import ACCURACY
from numcheck.oracles import mhc_post
from numcheck.profile import QUICK
from numcheck.reading import Truth, read
from numcheck.sample import sample
from numcheck.verdict import Status
from tests.meta.mhc import OLD_POINTS, hundred, mhc

SPECS = [s for s in ALL if s.oracle is mhc_post and isinstance(s.available("cpu"), Available)]
CASES = [hundred(), Case.of(S=2, H=2, D=257, dtype="bf16", regime="normal", seed=3)]


def taken(spec: KernelSpec, case: Case) -> dict[str, object]:
    made = sample(spec.oracle, case)
    run = execute(spec, made)
    assert not run.error
    outputs = {name: run.outputs[name] for name in spec.judged}
    truth = read(spec.oracle, Truth(), made.exact())
    return fingerprint(spec.oracle, spec.contract.policy(case), made, outputs, truth)


def test_there_are_at_least_eight_candidates_and_all_differ() -> None:
    rounds = [dict(r) for r in candidates(mhc_post, hundred()).values()]
    assert len(rounds) >= 8
    assert all(rounds.count(r) == 1 for r in rounds)


@pytest.mark.parametrize("case", CASES, ids=["100", "1028"])
@pytest.mark.parametrize("spec", SPECS, ids=[s.name for s in SPECS])
def test_the_policy_of_every_spec_is_named(spec: KernelSpec, case: Case) -> None:
    found = taken(spec, case)
    declared = dict(spec.contract.policy(case).rounds)
    right = [name for name, rounds in candidates(mhc_post, case).items() if dict(rounds) == declared]
    assert found["explained"]
    # A forward alone cannot tell the candidates apart that differ in the backward.
    assert right[0] == found["best"] or (spec.vjp is None and right[0] in found["tied"])
    if spec.vjp is not None:
        assert not found["tied"]
        assert float(str(found["gap"])) > 2


@pytest.mark.parametrize(
    ("rounds", "named"),
    [
        (("post",), "post"),
        (("comb",), "comb"),
        (("px",), "px"),
        (("mix",), "mix"),
        (("post", "comb"), "coefficients"),
        (OLD_POINTS, "bf16 rounding"),
    ],
)
def test_an_undeclared_policy_is_named_in_the_failure(rounds: tuple[str, ...], named: str) -> None:
    verdict = ACCURACY.judge(mhc("undeclared", rounds=rounds), hundred(), QUICK)
    assert verdict.status is Status.FAIL
    assert verdict.figures["fingerprint"]["best"] == named


def test_a_truncated_cast_is_named() -> None:
    verdict = ACCURACY.judge(mhc("truncated", truncate=True), hundred(), QUICK)
    assert verdict.figures["fingerprint"]["best"] == "truncated outputs"


def test_the_pool_names_it_over_all_cases() -> None:
    judged = [(c, ACCURACY.judge(mhc(), c, QUICK)) for c in map(hundred, range(8))]
    pooled = ACCURACY.pool(mhc(), judged)
    assert pooled is not None
    assert pooled.figures["fingerprint"]["best"] == "fp32"
