"""Markdown says the same as the page."""

from __future__ import annotations

from pathlib import Path

import pytest

from numcheck.record import Records, read
from numcheck.report import render_markdown
from tests.report import scene


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("md") / "r.jsonl"
    return render_markdown(read(scene.write(path, failing=True, devices=("cpu", "cuda"))))


def test_it_says_first_what_the_page_says_first(told: str) -> None:
    lines = told.splitlines()
    assert lines[0] == "# Did not hold"
    assert "65 of 77 claims held, 3 did not" in lines[2]
    assert "interpreter on the CPU" in lines[2]
    assert "- **FAIL** triton under accuracy (CPU)" in lines[4:9]
    assert any(
        line.startswith("| triton | interpreter, CPU | ✓ PASS ") and "✕ FAIL 8 FAIL, 16 PASS" in line for line in lines
    )


def test_it_has_the_sections_of_the_page_in_their_order(told: str) -> None:
    assert [line[3:] for line in told.splitlines() if line.startswith("## ")] == [
        "Failures",
        "Problems in the records",
        "Gates",
        "Repeat ladder",
        "Order-dependent outputs",
        "What could not have failed",
        "Skip ledger",
        "Nearest to a limit",
        "Interpreter and device, side by side",
        "Oracle certificates",
        "Policy fingerprints",
        "Environment",
    ]


def test_a_failure_can_be_replayed_from_it(told: str) -> None:
    card = told[told.index("### FAIL: triton under accuracy") :]
    assert "got=0.00390625 expected=0.0030059814453125" in card
    assert "| shrunk | 1 | 2 | 31 | bf16 | normal |" in card
    assert '\n```\nnumcheck replay --specs kernels triton accuracy \'{"sizes":{"S":1,"H":2,"D":31}' in card


def test_a_clean_run_is_short(tmp_path: Path) -> None:
    told = render_markdown(read(scene.write(tmp_path / "r.jsonl")))
    assert told.startswith("# Held\n")
    assert "## Failures" not in told
    assert "## Problems" not in told


def test_no_records_are_no_pass() -> None:
    assert render_markdown(Records(())).startswith("# Nothing was judged\n")


def test_a_brief_one_fits_a_comment_however_long_its_sentences_are(tmp_path: Path) -> None:
    records = read(scene.write(tmp_path / "r.jsonl", failing=True))
    rows = tuple({**row, "claim": row["claim"] + " x" * 9_000} if "claim" in row else row for row in records.rows)
    told = render_markdown(Records(rows), brief=True)
    assert len(told) < 65_536
    assert told.startswith("# Did not hold\n")
    assert "## Gates" not in told


def test_problems_are_listed_where_it_says(tmp_path: Path, told: str) -> None:
    assert "in the records, listed below." in told
    brief = render_markdown(read(scene.write(tmp_path / "r.jsonl", count=3, failing=True)), brief=True)
    assert "## Problems in the records" not in brief
    assert "in the records, listed in the HTML page." in brief
