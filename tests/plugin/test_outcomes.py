"""A test that ends in ERROR with no Case judged is no claim that held, in any reader of its records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from numcheck.record import read
from tests.compare.test_doors import KERNEL
from tests.plugin.conftest import LAWS, LIGHT, ROOT, run

# A Contract under which nothing is legal, and a law that raises before its first verdict.
NEVER = """
from dataclasses import replace

never = good.but(name="never", oracle=replace(problem, space=replace(space, legal=lambda case: "never")))
"""
CRASH = """
def lists(spec):
    if spec.name == "crash":
        raise KeyError("no such size")
    if spec.name == "timed":
        pytest.fail("Timeout >1.0s")
    return ()

import pytest
numcheck.laws.LAWS = (law("bitwise", cases=lists), *numcheck.laws.LAWS[1:])
"""
CI = ("--numcheck-specs", "kernels.py", "--numcheck-profile", "ci", "--numcheck-records", "r.jsonl", "-m", "bitwise")


@pytest.fixture
def folder(project: pytest.Pytester) -> Path:
    own = project.path / "kernels.py"
    own.write_text(own.read_text() + NEVER + 'crash = good.but(name="crash")\ntimed = good.but(name="timed")\n')
    project.makeconftest(LAWS + CRASH + LIGHT)
    return project.path


def numcheck(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "numcheck", *arguments]
    return subprocess.run(line, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("workers", [(), ("-n", "2")])
def test_a_test_without_a_verdict_is_broken_in_every_reader(
    project: pytest.Pytester, folder: Path, workers: tuple[str, ...]
) -> None:
    assert run(project, *CI, *workers, "-k", "good or never or crash or timed").ret == 1
    ended = {row["spec"]: (row["status"], row["reason"]) for row in read(folder / "r.jsonl").of("outcome")}
    assert ended["good"] == ("PASS", "")
    assert {ended[name][0] for name in ("never", "crash", "timed")} == {"ERROR"}
    assert "no Case was judged" in ended["never"][1]
    assert "no such size" in ended["crash"][1]
    assert "Timeout" in ended["timed"][1]
    assert numcheck(folder, "render", "r.jsonl", "-o", "r.md").returncode == 0
    page = (folder / "r.md").read_text()
    assert "1 of 4 claims held, 3 did not" in page
    assert "no Case was judged" in page
    accepted = numcheck(folder, "accept", "r.jsonl", "--reason", "it is late")
    assert accepted.returncode == 1
    assert "never on cpu under bitwise: ERROR" in accepted.stdout


def test_a_baseline_of_a_kernel_is_not_met_by_a_test_that_judged_nothing(
    project: pytest.Pytester, folder: Path
) -> None:
    own, whole = folder / "kernels.py", (folder / "kernels.py").read_text()
    own.write_text(whole.replace('"never"))', "None))"))
    assert run(project, *CI, "-k", "never or good").ret == 0
    assert numcheck(folder, "accept", "r.jsonl", "--reason", "first figures").returncode == 0
    own.write_text(whole)
    (folder / "r.jsonl").unlink()
    done = run(project, *CI, "-k", "never or good", "--numcheck-baseline", "numcheck-baseline.json")
    assert done.ret == 1
    done.stdout.fnmatch_lines(["*never on cpu*PASS, now ERROR*"])


def test_run_at_credits_no_change_whose_test_judged_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    other = 'other = kernel.but(name="other"'
    (tmp_path / "mine.py").write_text(KERNEL.replace("SCALE", "1.001") + other + ")\n")
    git("init", "-q")
    git("add", "mine.py")
    git("commit", "-qm", "off by a thousandth")
    illegal = "oracle=replace(mhc_post, space=replace(mhc_post.space, legal=lambda case: 'never'))"
    text = "from dataclasses import replace\n" + KERNEL.replace("SCALE", "1.0") + f"{other}, {illegal})\n"
    (tmp_path / "mine.py").write_text(text)
    done = numcheck(tmp_path, "run", "--specs", "mine.py", "--device", "cpu", "accuracy", "--at", "HEAD")
    assert "fixed: mine on CPU under accuracy, out: FAIL at HEAD in " in done.stdout
    assert "does not hold: other on CPU under accuracy: FAIL at HEAD, ERROR here" in done.stdout
    assert done.returncode == 1


@pytest.mark.parametrize("line", ["run accuracy --at", "run accuracy --baseline", "render r.jsonl --baseline"])
def test_an_empty_value_switches_no_check_off(folder: Path, line: str) -> None:
    done = numcheck(folder, *line.split(), "")
    assert done.returncode == 2
    assert "it is empty" in done.stderr


def test_a_damaged_baseline_is_found_before_anything_is_judged(project: pytest.Pytester, folder: Path) -> None:
    (folder / "b.json").write_text('{"format":"numcheck baseline","version":1,"kernels":[{}]}')
    done = run(project, *CI, "--numcheck-baseline", "b.json")
    assert done.ret == 4
    done.stderr.fnmatch_lines(["*--numcheck-baseline: *a damaged baseline*"])
    assert not (folder / "r.jsonl").exists()
