"""Kernels and disks that would end a session green, or with a traceback."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import LAWS, LIGHT, SPECS, run

FULL = """
import numcheck.record.writer
rows = iter(range({rows}))
write = numcheck.record.writer._write

def full(file, data):
    if next(rows, None) is None:
        raise OSError(28, "No space left on device")
    write(file, data)

numcheck.record.writer._write = full
"""


@pytest.mark.parametrize("call", ["skip('no time')", "xfail('known')", "exit('done', returncode=0)"])
def test_a_kernel_has_no_say_in_the_outcome_of_its_own_test(project: pytest.Pytester, call: str) -> None:
    project.makepyfile(kernels=SPECS + f"import pytest\nclever = good.but(capability=lambda d: pytest.{call})\n")
    done = run(project, "--numcheck-specs", "kernels.py:clever", "-m", "bitwise")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.assert_outcomes(failed=1, deselected=2)
    done.stdout.fnmatch_lines(["*ERROR: good under bitwise: *"])


@pytest.mark.parametrize("rows", [4, 7])
def test_a_full_disk_is_said_and_the_session_does_not_pass(project: pytest.Pytester, rows: int) -> None:
    project.makeconftest(LAWS + LIGHT + FULL.format(rows=rows))
    done = run(project, "--numcheck-specs", "kernels.py:good", "-m", "bitwise", "--numcheck-records", "r.jsonl")
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    text = done.stdout.str() + done.stderr.str()
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text
    assert "cannot be written: No space left on device; make room and run again" in text
    assert len((project.path / "r.jsonl").read_text(encoding="utf-8").splitlines()) == rows


def test_a_disk_that_is_full_only_at_the_end_fails_the_session(project: pytest.Pytester) -> None:
    late = "\ndef pytest_runtest_logfinish():\n    global rows\n    rows = iter(())\n"
    project.makeconftest(LAWS + LIGHT + FULL.format(rows=10**6) + late)
    done = run(project, "--numcheck-specs", "kernels.py:good", "-m", "bitwise", "--numcheck-records", "r.jsonl")
    done.assert_outcomes(passed=1, deselected=2)
    assert done.ret == pytest.ExitCode.TESTS_FAILED
    done.stdout.fnmatch_lines(["records problem: *r.jsonl cannot be written: No space left on device*"])
