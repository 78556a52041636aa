"""The pooled bitwise verdict: a `fixed` promise that no Case could have broken fails."""

from __future__ import annotations

import pytest

from numcheck import Case, CaseSpace, Contract, Input, KernelSpec, Oracle, Output
from numcheck.laws.bitwise import BITWISE
from numcheck.verdict import OutputVerdict, Status, Verdict

ORACLE = Oracle(
    "two",
    inputs=(Input("x", ("S",)),),
    outputs=(Output("a", ("S",)), Output("b", ("S",))),
    forward=lambda read, x: {"a": x, "b": x},
    space=CaseSpace(sizes={"S": (1, 4)}),
)
CASE = Case.of(S=1)


def _spec(a: str) -> KernelSpec:
    return KernelSpec("two", ORACLE, forward=dict, contract=Contract(order={"a": a, "b": "single"}))


def _judged(*statuses: Status) -> list[tuple[Case, Verdict]]:
    return [
        (
            CASE.but(seed=k),
            Verdict("two", "bitwise", "", {"a": OutputVerdict(s, "why"), "b": OutputVerdict(Status.PASS)}),
        )
        for k, s in enumerate(statuses)
    ]


@pytest.mark.parametrize(
    ("promise", "statuses", "pooled"),
    [
        ("fixed", (Status.VACUOUS, Status.VACUOUS), Status.FAIL),
        ("fixed", (Status.VACUOUS, Status.PASS), Status.PASS),
        ("any", (Status.VACUOUS, Status.VACUOUS), Status.VACUOUS),
        ("single", (Status.VACUOUS,), Status.VACUOUS),
        ("any", (Status.PASS, Status.ORDER_DEPENDENT, Status.VACUOUS), Status.ORDER_DEPENDENT),
        ("fixed", (Status.PASS, Status.FAIL), Status.FAIL),
        ("fixed", (Status.ERROR, Status.FAIL), Status.ERROR),
        ("fixed", (Status.UNAVAILABLE, Status.UNAVAILABLE), Status.UNAVAILABLE),
        ("fixed", (Status.UNAVAILABLE, Status.VACUOUS), Status.FAIL),
    ],
)
def test_pool(promise, statuses, pooled) -> None:
    verdict = BITWISE.pool(_spec(promise), _judged(*statuses))
    assert verdict is not None
    assert verdict.pooled
    assert verdict.outputs["a"].status is pooled
    assert verdict.outputs["b"].status is Status.PASS


def test_a_vacuous_promise_fails_per_output_and_says_what_would_help() -> None:
    verdict = BITWISE.pool(_spec("fixed"), _judged(Status.VACUOUS, Status.VACUOUS))
    assert verdict is not None
    assert verdict.outputs["a"].why == "promised fixed, yet no Case could have differed (VACUOUS 2): why"
    assert verdict.figures["counts"] == {"a": {"VACUOUS": 2}, "b": {"PASS": 2}}
