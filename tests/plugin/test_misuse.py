"""Wrong use ends before anything runs, with exit code 4 and a line that says what to do."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import run

MISUSES = {
    "profile": (["--numcheck-profile", "fast"], "profile 'fast'; allowed: quick, ci, deep"),
    "device": (["--numcheck-device", "gpu"], "device 'gpu'; allowed: auto, cpu, cuda"),
    "tier": (["--numcheck-require", "sm80"], "--numcheck-require sm80: allowed are cpu, gpu, sm90, sm100"),
    "module": (["--numcheck-specs", "nowhere"], "no module 'nowhere'; give an importable module, or a path"),
    "file": (["--numcheck-specs", "nowhere.py"], "nowhere.py; give an existing .py file or a module"),
    "name": (["--numcheck-specs", "kernels.py:best"], "has no 'best'; name one of good, bad"),
    "empty": (["--numcheck-specs", "empty.py"], "empty.py holds no KernelSpec; assign one at module level"),
    "broken": (["--numcheck-specs", "broken.py"], "broken.py: importing it raised ZeroDivisionError"),
    "twice": (["--numcheck-specs", "kernels.py", "--numcheck-specs", "kernels.py"], "two kernels are called 'good'"),
    "records": (
        ["--numcheck-records", "kernels.py/records.jsonl"],
        "cannot be written: File exists; give a file in a folder",
    ),
    "folder": (["--numcheck-records", "."], "cannot be written: it is a folder; give a file"),
    "report": (["--numcheck-report", "report.pdf"], "report.pdf: a report is an .html or an .md file"),
    "baseline": (["--numcheck-baseline", "old.jsonl"], "comes with `numcheck compare`. Leave it out"),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_says_what_to_do(project: pytest.Pytester, name: str) -> None:
    project.makepyfile(empty="x = 1", broken="1 / 0")
    arguments, words = MISUSES[name]
    done = run(project, *arguments)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert words in done.stderr.str()
    assert "Traceback" not in done.stderr.str()


def test_misuse_is_said_once_with_workers_too(project: pytest.Pytester) -> None:
    done = run(project, "--numcheck-specs", "nowhere.py", "-n", "2")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert done.stderr.str().count("nowhere.py") == 1
