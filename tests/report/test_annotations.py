"""Annotations of GitHub Actions: one command a line, whatever the records hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from numcheck.cli import main
from numcheck.record import Records, read
from numcheck.report import render_annotations
from numcheck.report.annotations import SHOWN, command
from tests.report import scene

HOSTILE = (
    "x\n::error::mine",
    "100%0A::set-env name=A::b",
    "a\r\n::add-mask::b",
    "t,file=/etc/passwd::",
    "\u2028::stop",
)
COMMAND = re.compile(r"::(error|warning|notice) (file=[^:,\r\n]+,)?title=[^:,\r\n]*::[^\r\n]*")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_can_begin_a_command_or_end_one(text: str) -> None:
    line = command("error", text, text, text)
    assert COMMAND.fullmatch(line)
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_records_give_only_our_commands(tmp_path: Path, text: str) -> None:
    rows = []
    for row in read(scene.write(tmp_path / "r.jsonl", count=3, failing=True)).rows:
        named = {name: row[name] + text for name in ("spec", "specs", "law") if name in row}
        rows.append({**row, **named})
    lines = render_annotations(Records(tuple(rows)))
    assert lines
    assert all(COMMAND.fullmatch(line) for line in lines)


def test_failures_are_errors_with_their_replay_and_a_clean_run_says_nothing(tmp_path: Path) -> None:
    failing = render_annotations(read(scene.write(tmp_path / "a.jsonl", failing=True)))
    assert [line.split("::")[1] for line in failing] == [
        "error title=ERROR%3A eager under edges%2C CPU",
        "error title=FAIL%3A triton under accuracy%2C CPU",
    ]
    assert "%0Anumcheck replay --specs kernels triton accuracy" in failing[1]
    assert render_annotations(read(scene.write(tmp_path / "b.jsonl"))) == []


def test_many_are_cut_and_counted(tmp_path: Path) -> None:
    rows = []
    for row in read(scene.write(tmp_path / "r.jsonl", count=3, failing=True)).rows:
        for copy in range(12):
            named = {"id": f"{row['id']}/{copy}"} | ({"spec": f"{row['spec']}{copy}"} if "spec" in row else {})
            rows.append({**row, **named})
    errors = [line for line in render_annotations(Records(tuple(rows))) if line.startswith("::error")]
    assert len(errors) == SHOWN
    assert "15 more" in errors[-1]


def test_render_prints_them_where_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = scene.write(tmp_path / "r.jsonl", count=3, failing=True)
    assert main(["render", str(path), "-o", str(tmp_path / "c.md"), "--brief", "--github"]) == 0
    assert "\n::error title=" in capsys.readouterr().out
    assert "## Gates" not in (tmp_path / "c.md").read_text(encoding="utf-8")
