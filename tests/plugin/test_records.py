"""Records of a pytest run: one file a worker, merged at the end, and nothing lost where a worker dies."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from numcheck.plugin import door
from numcheck.record import Records, read
from tests.plugin.conftest import LAWS, run

CI = ("--numcheck-specs", "kernels.py", "--numcheck-profile", "ci", "--numcheck-records", "out/all.jsonl")


def kinds(records: Records) -> Counter[str]:
    return Counter(row["kind"] for row in records.rows)


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("all.*.gw*.jsonl"))


def test_every_case_is_announced_and_recorded(project: pytest.Pytester) -> None:
    project.makeconftest(LAWS)
    done = run(project, *CI, "-m", "bitwise", "-k", "good or bad or absent", "--numcheck-report", "out/report.md")
    records = read(project.path / "out" / "all.jsonl")
    count = kinds(records)
    assert count["run"] == count["end"] == count["environment"] == count["certificate"] == count["unavailable"] == 1
    assert count["started"] == count["case"] > 20
    phases = Counter(row["phase"] for row in records.of("case"))
    assert set(phases) == {"grid", "draw", "shrink"}
    row = next(row for row in records.of("case") if row["spec"] == "bad" and row["status"] == "FAIL")
    assert row["specs"] == "kernels.py"
    assert row["gates"][0]["reason"] == "the reason of the limit"
    report = (project.path / "out" / "report.md").read_text()
    assert "the reason of the limit" in report
    (line,) = {line.strip().removeprefix("replay: ") for line in done.outlines if line.strip().startswith("replay: ")}
    assert f"```\n{line}\n```" in report, "the console and the report tell one failure by one Case"


def test_a_second_run_is_appended(project: pytest.Pytester) -> None:
    for _ in range(2):
        run(project, *CI, "-m", "bitwise", "-k", "good")
    records = read(project.path / "out" / "all.jsonl")
    assert len({row["run"] for row in records.rows}) == 2


def test_workers_write_a_file_each_and_the_controller_merges(project: pytest.Pytester) -> None:
    done = run(project, *CI, "-n", "2", "-k", "not deadly")
    files = parts(project.path)
    assert len(files) == 2
    merged = read(project.path / "out" / "all.jsonl")
    assert merged.rows == read(files).rows
    assert {row["worker"] for row in merged.rows} == {"gw0", "gw1"}
    assert len({row["run"] for row in merged.rows}) == 1
    tests: dict[tuple[str, str], set[str]] = {}
    for row in merged.of("case"):
        tests.setdefault((row["spec"], row["law"]), set()).add(row["worker"])
    assert all(len(workers) == 1 for workers in tests.values())
    done.stdout.fnmatch_lines(["bitwise*1 PASS*"])


def test_a_killed_worker_keeps_its_rows_and_its_case_is_named(project: pytest.Pytester) -> None:
    done = run(project, *CI, "-n", "2", "-m", "bitwise", "-k", "deadly or bad or good")
    assert done.ret == 1
    merged = read(project.path / "out" / "all.jsonl")
    deadly = [row for row in merged.rows if row.get("spec") == "deadly" and "case" in row]
    assert [(row["kind"], row["case"]["sizes"]["D"]) for row in deadly] == [
        ("started", 8),
        ("case", 8),
        ("started", 33),
    ]
    assert {"good", "bad"} <= {row["spec"] for row in merged.of("case")}
    done.stdout.fnmatch_lines(['unfinished: *deadly*bitwise*"D":33*'])


def test_each_worker_gets_a_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs are played by an nvidia-smi that lists them; workers beyond them share."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: one'\necho 'GPU 1: two'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def seen_by(worker: str, visible: str | None) -> str | None:
        if visible is None:
            monkeypatch.delenv(door.VISIBLE, raising=False)
        else:
            monkeypatch.setenv(door.VISIBLE, visible)
        door.pin(worker)
        return os.environ.get(door.VISIBLE)

    assert [seen_by(worker, None) for worker in ("gw0", "gw1", "gw2")] == ["0", "1", "0"]
    assert [seen_by(worker, "5,7") for worker in ("gw0", "gw3")] == ["5", "7"]
    assert seen_by("", None) is None
