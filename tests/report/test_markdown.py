"""Markdown says the same as the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from numcheck.baseline import of
from numcheck.record import Records, read
from numcheck.report import render_markdown
from numcheck.report.marks import plain, span
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


def test_problems_are_listed_where_it_says(told: str) -> None:
    assert "in the records, listed below." in told


def test_a_replay_line_stands_once(tmp_path: Path) -> None:
    clean = read(scene.write(tmp_path / "a.jsonl", count=12))
    failing = read(scene.write(tmp_path / "b.jsonl", count=12, failing=True))
    for brief in (False, True):
        replays = re.findall(r"^numcheck replay .*$", render_markdown(failing, of(clean), brief), flags=re.MULTILINE)
        assert replays
        assert len(replays) == len(set(replays))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at 5b20f3a8de61, dirty", "at `5b20f3a8de61`, dirty"),
        ("434979e5b0c1d2e3f4a5968778695a4b3c2d1e0f", "`434979e5b0c1d2e3f4a5968778695a4b3c2d1e0f`"),
        ("1048576 of 16777216 bytes", "1048576 of 16777216 bytes"),
        ("decade and 2e4f", "decade and 2e4f"),
        ("`x` 5b20f3a", "\\`x\\` `5b20f3a`"),
    ],
)
def test_what_could_be_a_commit_is_code(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize("text", ["a", "`", "a`b``c", "``", " x ", "a\nb", "", "`a"])
def test_code_in_a_line_cannot_be_left(text: str) -> None:
    shown = span(text)
    inside = re.fullmatch(r"(`+)(.*?)\1", shown) if shown else None
    assert "\n" not in shown
    assert inside is None or inside[1] not in inside[2]
    assert bool(inside) == bool(text.strip())
