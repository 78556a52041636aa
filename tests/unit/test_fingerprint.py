"""The fingerprint of candidates whose matches are given."""

from __future__ import annotations

from numcheck.fingerprint import pooled, summary


def test_the_candidate_that_explains_all_outputs_wins_over_one_that_explains_one() -> None:
    """cuDNN's backward: P left in FP32 explains dq as well as the real policy does, and dkv not at all."""
    matches = {
        "P in FP32": {"dq": 0.06, "dkv": 0.8},
        "real": {"dq": 0.06, "dkv": 0.12},
        "cast": {"dq": 1.1, "dkv": 1.1},
    }
    found = summary(matches)
    assert (found["best"], found["second"], found["explained"]) == ("real", "P in FP32", True)
    assert 2 < found["gap"] < 3


def test_candidates_that_round_alike_are_tied() -> None:
    found = summary({"a": {"out": 0.0}, "b": {"out": 0.0}, "c": {"out": 1.0}})
    assert (found["best"], found["tied"], found["second"]) == ("a", ["b"], "c")


def test_no_candidate_explains_an_unknown_policy() -> None:
    assert summary({"a": {"out": 0.9}, "b": {"out": 1.3}})["explained"] is False


def test_pooling_joins_cases_and_skips_those_without() -> None:
    one = summary({"a": {"out": 0.1}, "b": {"out": 1.0}})
    two = summary({"a": {"out": 1.0}, "b": {"out": 0.5}})
    both = pooled([one, {}, two])
    assert (both["best"], both["cases"]) == ("a", 2)
    assert pooled([{}]) == {}
    assert summary({}) == {}
