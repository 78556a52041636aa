"""Tests that are generated from --numcheck-specs: which there are, and what each says."""

from __future__ import annotations

import pytest

from numcheck.record import read
from tests.plugin.conftest import run

SPECS = ("--numcheck-specs", "kernels.py", "--numcheck-profile", "ci")


def test_one_test_for_each_kernel_and_law_that_speaks_of_it(project: pytest.Pytester) -> None:
    done = run(project, *SPECS, "--collect-only", "-q")
    listed = [line for line in done.outlines if "::" in line]
    assert "kernels.py::bitwise[vacuous]" in listed
    assert "kernels.py::memory[good]" in listed
    assert "kernels.py::memory[vacuous]" not in listed
    assert "kernels.py::certificate[scale]" in listed
    assert len(listed) == 7 + 6 + 1


def test_marks_and_names_choose_among_them_without_a_warning(project: pytest.Pytester) -> None:
    done = run(project, *SPECS, "-m", "bitwise", "-k", "good or absent", "--strict-markers", "-W", "error")
    done.assert_outcomes(passed=1, deselected=12)
    done.stdout.fnmatch_lines(["*1 passed*1 unavailable*"])


def test_nothing_else_is_collected_where_nothing_else_was_asked_for(project: pytest.Pytester) -> None:
    project.makepyfile(test_own="def test_own(): assert False")
    assert run(project, *SPECS, "-k", "good and bitwise or own").ret == 0
    assert run(project, *SPECS, "-k", "good and bitwise or own", "test_own.py").ret == 1


def test_each_status_has_its_own_letter_and_count(project: pytest.Pytester) -> None:
    done = run(project, *SPECS, "-m", "bitwise", "-k", "not deadly", "-v")
    assert done.ret == 1
    done.stdout.fnmatch_lines(
        [
            "*bitwise?good? PASSED*",
            "*bitwise?bad? FAILED*",
            "*bitwise?raises? ERROR*",
            "*bitwise?vacuous? VACUOUS*",
            "*bitwise?dependent? ORDER_DEPENDENT*",
            "*bitwise?absent? UNAVAILABLE*",
        ]
    )
    done.stdout.fnmatch_lines(["*2 failed, 1 passed*1 vacuous, 1 order_dependent, 1 unavailable*"])


def test_the_summary_counts_cases_and_keeps_a_ledger(project: pytest.Pytester) -> None:
    done = run(project, *SPECS, "-m", "bitwise", "-k", "not deadly and not bad and not raises")
    done.stdout.fnmatch_lines(
        [
            "*= numcheck =*",
            "bitwise*1 PASS, 1 VACUOUS, 1 ORDER_DEPENDENT, 1 UNAVAILABLE; Cases: *PASS*",
            "VACUOUS: said VACUOUS: bitwise?vacuous?",
            "UNAVAILABLE: no sm_90 here (needs sm90): bitwise?absent?",
        ]
    )


def test_a_failure_reads_in_the_promised_order(project: pytest.Pytester) -> None:
    done = run(project, *SPECS, "-m", "bitwise", "-k", "bad")
    done.stdout.fnmatch_lines(
        [
            "FAIL: bad under bitwise",
            "  claimed: bad is bitwise",
            "  out: FAIL: said FAIL",
            "    out got=1 expected=2 at (0,)",
            "    ceiling 2, allowed up to 1: the reason of the limit",
            '  shrunk Case: {"sizes":{"D":13}*',
            '  first failing Case: {"sizes":{"D":33}*',
            '  replay: numcheck replay --specs kernels.py bad bitwise \'{"sizes":{"D":13}*\'',
            "Cases: FAIL 1, PASS 1; profile ci, drawn again by --hypothesis-seed *",
        ],
        consecutive=True,
    )
    assert "Traceback" not in done.stdout.str()


def test_the_seed_that_a_failure_names_draws_the_same_cases(project: pytest.Pytester) -> None:
    ask = ("--numcheck-specs", "kernels.py", "-m", "bitwise", "-k", "good or bad", "--numcheck-records", "rows.jsonl")
    for _ in range(2):
        done = run(project, *ask, "--hypothesis-seed", "77")
        done.stdout.fnmatch_lines(["Cases: *; profile quick, drawn again by --hypothesis-seed 77"])
    drawn: dict[str, list[object]] = {}
    for row in read(project.path / "rows.jsonl").of("case"):
        drawn.setdefault(row["run"], []).append(row["case"])
    first, second = drawn.values()
    assert first == second


@pytest.mark.parametrize(("tier", "code"), [("cpu", 0), ("gpu", 0), ("sm90", 1), ("sm100", 1)])
def test_a_required_tier_turns_a_skip_into_an_error(project: pytest.Pytester, tier: str, code: int) -> None:
    done = run(project, *SPECS, "-m", "bitwise", "-k", "absent", "--numcheck-require", tier)
    assert done.ret == code
    if code:
        done.stdout.fnmatch_lines([f"*UNAVAILABLE, but --numcheck-require {tier}: no sm_90 here"])


def test_the_header_says_where_and_how_hard(project: pytest.Pytester) -> None:
    done = run(project, *SPECS, "--numcheck-device", "cpu", "-k", "good")
    done.stdout.fnmatch_lines(
        [
            "numcheck *: device cpu (Triton kernels run in its interpreter); profile ci",
            "numcheck versions: torch *not here: *",
        ]
    )


def test_regressions_beside_the_kernels_run_first(project: pytest.Pytester) -> None:
    row = '{"oracle": "scale", "spec": "bad", "case": {"sizes": {"D": 57}, "dtype": "fp32"}, "why": "a report"}'
    (project.path / "regressions.jsonl").write_text(f"# kept\n\n{row}\n")
    done = run(project, *SPECS, "-m", "bitwise", "-k", "bad")
    done.stdout.fnmatch_lines(['  first failing Case: {"sizes":{"D":57}*'])
    (project.path / "regressions.jsonl").write_text('{"oracle": "scale"}\n')
    done = run(project, *SPECS, "-m", "bitwise", "-k", "bad")
    done.stdout.fnmatch_lines(["*regressions.jsonl:1: a line needs oracle, case and why*"])


def test_the_judge_fixture_judges_like_a_generated_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_laws="""
        import pytest
        from kernels import good, bad

        @pytest.mark.parametrize("spec", [good, bad], ids=lambda spec: spec.name)
        def test_bitwise(spec, judge):
            judge("bitwise", spec, "kernels.py")
        """
    )
    project.makeini("[pytest]\npythonpath = .\n")
    done = run(project, "--numcheck-device", "auto", "test_laws.py")
    done.assert_outcomes(passed=1, failed=1)
    done.stdout.fnmatch_lines(["  replay: numcheck replay --specs kernels.py bad bitwise *"])


def test_without_an_option_the_plugin_changes_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
        import os, sys

        def test_quiet():
            assert "TRITON_INTERPRET" not in os.environ
            assert not {"torch", "triton"} & set(sys.modules)

        def test_asks(judge):
            pass
        """
    )
    done = run(project)
    assert "numcheck 0" not in done.stdout.str()
    done.assert_outcomes(passed=1, errors=1)
    done.stdout.fnmatch_lines(["*add --numcheck-device=auto to the command line, or to addopts*"])
