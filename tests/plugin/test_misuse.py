"""Wrong use ends before anything runs, with exit code 4 and a line that says what to do."""

from __future__ import annotations

from argparse import Namespace

import pytest

from numcheck.plugin.settings import settings
from tests.plugin.conftest import run

# option, value, what is said
WRONG = [
    ("profile", "fast", "profile 'fast'; allowed: quick, ci, deep"),
    ("device", "gpu", "--numcheck-device gpu: allowed are auto, cpu, cuda"),
    ("require", "sm80", "--numcheck-require sm80: allowed are cpu, gpu, sm90, sm100"),
    ("records", "kernels.py/rows.jsonl", "cannot be written: File exists; give a file in a folder that can"),
    ("records", ".", "cannot be written: it is a folder; give a file in a folder that can"),
    ("report", "report.pdf", "report.pdf: a report is an .html or an .md file"),
    ("helpers", "many", "--numcheck-helpers many: give a number of processes, 0 or more"),
    ("baseline", "old.jsonl", "compares records: add --numcheck-records FILE"),
]
SPECS = [
    ("nowhere", "no module 'nowhere'; give an importable module, or a path"),
    ("nowhere.py", "nowhere.py; give an existing .py file or a module"),
    ("kernels.py:best", "has no 'best'; name one of good, bad"),
    ("empty.py", "empty.py holds no KernelSpec; assign one at module level"),
    ("broken.py", "broken.py: importing it raised ZeroDivisionError"),
]


@pytest.mark.parametrize(("option", "value", "words"), WRONG)
def test_a_wrong_value_is_named_with_what_is_allowed(
    project: pytest.Pytester, option: str, value: str, words: str
) -> None:
    with pytest.raises(pytest.UsageError) as said:
        settings(Namespace(**{f"numcheck_{option}": value}), project.path)
    assert words in str(said.value)


@pytest.mark.parametrize(("source", "words"), SPECS)
def test_a_source_without_kernels_ends_the_run(project: pytest.Pytester, source: str, words: str) -> None:
    project.makepyfile(empty="x = 1", broken="1 / 0")
    done = run(project, "--numcheck-specs", source)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert words in done.stderr.str()
    assert "Traceback" not in done.stderr.str()


def test_two_kernels_of_one_name_are_refused(project: pytest.Pytester) -> None:
    done = run(project, "--numcheck-specs", "kernels.py", "--numcheck-specs", "kernels.py")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "two kernels are called 'good'; rename one" in done.stderr.str()


def test_a_name_that_no_kernel_has_is_answered_with_where_the_names_are(project: pytest.Pytester) -> None:
    done = run(project, "--numcheck-specs", "kernels.py", "-k", "nosuchkernel")
    assert done.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "-k 'nosuchkernel' matches no test: `numcheck list --specs kernels.py` names" in done.stdout.str()


def test_misuse_is_said_once_with_workers_too(project: pytest.Pytester) -> None:
    done = run(project, "--numcheck-specs", "nowhere.py", "-n", "2", "--numcheck-device", "cpu")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.str().count("nowhere.py") == 1
