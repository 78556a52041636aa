"""Annotations of GitHub Actions: one command a line, whatever the records hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from numcheck.baseline import of
from numcheck.cli import main
from numcheck.record import Records, read
from numcheck.report import render_annotations
from numcheck.report.annotations import SHOWN, Note, command
from numcheck.report.sources import Place
from tests.report import scene

HOSTILE = (
    "x\n::error::mine",
    "100%0A::set-env name=A::b",
    "a\r\n::add-mask::b",
    "t,file=/etc/passwd::",
    "\u2028::stop",
)
COMMAND = re.compile(r"::(error|warning|notice) (file=[^:,\r\n]+,(line=[1-9]\d*,)?)?title=[^:,\r\n]*::[^\r\n]*")


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_can_begin_a_command_or_end_one(text: str) -> None:
    line = command("error", Note(text, text, Place(text, 7)))
    assert COMMAND.fullmatch(line)
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_records_give_only_our_commands(tmp_path: Path, text: str) -> None:
    rows = []
    for row in read(scene.write(tmp_path / "r.jsonl", count=3, failing=True)).rows:
        named: dict[str, object] = {name: row[name] + text for name in ("spec", "specs", "law") if name in row}
        if "sources" in row:
            named["sources"] = dict.fromkeys(row["sources"], f"{text}/{text}:7")
        rows.append({**row, **named})
    lines = render_annotations(Records(tuple(rows)))
    assert lines
    assert all(COMMAND.fullmatch(line) for line in lines)


def test_failures_are_errors_with_their_replay_and_a_clean_run_says_nothing(tmp_path: Path) -> None:
    failing = render_annotations(read(scene.write(tmp_path / "a.jsonl", failing=True)))
    assert [line.split("::")[1] for line in failing] == [
        "error file=kernels/mhc_post/fused.py,line=19,title=ERROR%3A eager under edges%2C CPU",
        "error file=kernels/mhc_post/fused.py,line=19,title=FAIL%3A triton under accuracy%2C CPU",
    ]
    assert "%0AThe shrunk Case:%0Anumcheck replay --specs kernels triton accuracy" in failing[1]
    assert "%0AThe first Case that failed:%0Anumcheck replay --specs kernels eager edges" in failing[0]
    # Which of its kernels was changed nobody knows, so all are named.
    assert all("%0AIts kernels: mhc_post_forward at kernels/mhc_post/tiles.py:7%0A" in line for line in failing)
    assert render_annotations(read(scene.write(tmp_path / "b.jsonl"))) == []


def with_output_failing(records: Records, output: str) -> Records:
    """The same failures, of another output."""
    rows = []
    for row in records.rows:
        if row["kind"] == "case" and row["status"] == "FAIL":
            row = {**row, "outputs": {output: row["outputs"]["out"]}}
        rows.append(row)
    return Records(tuple(rows))


def test_a_gradient_that_fails_is_pointed_to_where_it_is_computed(tmp_path: Path) -> None:
    failing = read(scene.write(tmp_path / "a.jsonl", failing=True))
    (line,) = (line for line in render_annotations(with_output_failing(failing, "d_x")) if "FAIL" in line)
    assert line.startswith("::error file=kernels/mhc_post/fused.py,line=41,")


@pytest.mark.parametrize(
    "place",
    ["/etc/passwd:1", "../up.py:1", "a/../../b.py:1", "a.py", "a.py:0", "a.py:x", "a.py:1:2", "a.py:99999999", ""],
)
def test_a_place_outside_the_repository_or_without_a_line_is_none(tmp_path: Path, place: str) -> None:
    rows = [
        {**row, "sources": {"forward": place}} if row["kind"] == "declared" else row
        for row in read(scene.write(tmp_path / "r.jsonl", count=3, failing=True)).rows
    ]
    assert not [line for line in render_annotations(Records(tuple(rows))) if "file=" in line]


def test_other_bits_are_a_warning_at_their_kernel_and_accepting_is_advised_where_the_head_holds(tmp_path: Path) -> None:
    clean = read(scene.write(tmp_path / "a.jsonl", count=12))
    (line,) = (line for line in render_annotations(scene.moved(clean), of(clean)) if line.startswith("::warning"))
    head, title, message = re.split(r",title=|::", line.removeprefix("::"))
    assert head == "warning file=kernels/mhc_post/fused.py,line=19"
    assert title == "Other bits%3A triton on CPU"
    assert re.fullmatch(
        r"out in \d+ of \d+ Cases; if that is meant: numcheck accept RECORDS --reason TEXT%0AIts.*", message
    )
    failing = scene.moved(read(scene.write(tmp_path / "b.jsonl", count=12, failing=True)))
    told = render_annotations(failing, of(clean))
    assert any(line.startswith("::warning") and "out in" in line for line in told)
    assert not [line for line in told if "numcheck accept" in line]


def test_a_law_that_fails_is_told_once(tmp_path: Path) -> None:
    clean = read(scene.write(tmp_path / "a.jsonl", count=12))
    failing = read(scene.write(tmp_path / "b.jsonl", count=12, failing=True))
    errors = [line for line in render_annotations(failing, of(clean)) if line.startswith("::error")]
    assert len(errors) == len({line.split("::")[1] for line in errors}) == 2


def test_a_run_that_did_not_finish_or_judged_nothing_is_an_error_though_no_claim_failed(tmp_path: Path) -> None:
    rows = [r for r in read(scene.write(tmp_path / "r.jsonl", count=3)).rows if r["kind"] != "end"]
    (line,) = (line for line in render_annotations(Records(tuple(rows))) if line.startswith("::error"))
    assert line.startswith("::error title=Did not finish::")
    (line,) = render_annotations(Records(()))
    assert line.startswith("::error title=Nothing was judged::")


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
    assert "\n::error file=kernels/mhc_post/fused.py,line=19,title=" in capsys.readouterr().out
    assert "## Gates" not in (tmp_path / "c.md").read_text(encoding="utf-8")
