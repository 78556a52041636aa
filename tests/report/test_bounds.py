"""The page stays quick to make and small to send, however many records it is made of."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from numcheck.baseline import of
from numcheck.record import Records, Row, read
from numcheck.report import render_html, render_markdown
from tests.report import scene

RECORDS = 10_000
# A reviewer waits for the page, and for 2 s without minding; CPU seconds, so that a busy machine does not decide.
SECONDS = 2.0
# What mail and artifact stores take without a word, and what a browser opens at once.
BYTES = 5_000_000
# GitHub takes comments of up to 65,536 characters.
COMMENT = 65_536


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scene.write(tmp_path_factory.mktemp("many") / "r.jsonl", count=355, failing=True)


def test_ten_thousand_records_are_read_and_rendered_in_time(many: Path) -> None:
    render_html(Records(()))  # the templates compile once a process
    start = time.process_time()
    records = read(many)
    page = render_html(records)
    spent = time.process_time() - start
    assert len(records.rows) >= RECORDS
    assert spent < SECONDS, f"{spent:.2f} s for {len(records.rows)} records"
    assert len(page.encode()) < BYTES


def test_ten_thousand_records_are_rendered_against_a_base_in_time(many: Path) -> None:
    records = read(many)
    base = of(records)
    start = time.process_time()
    page = render_html(records, base)
    spent = time.process_time() - start
    assert spent < SECONDS, f"{spent:.2f} s for {len(records.rows)} records"
    assert len(page.encode()) < BYTES


def test_ten_thousand_records_of_many_kernels_stay_small(many: Path) -> None:
    """Each of 100 kernels with its own gates: pictures are limited in number, and the rest is counted."""
    rows: list[Row] = []
    for index, row in enumerate(read(many).rows):
        rows.append({**row, "spec": f"{row['spec']}[{index % 20}]"} if "spec" in row else row)
    page = render_html(Records(tuple(rows)))
    assert len(page.encode()) < BYTES
    assert "are left out of the page; they are in the records" in page


def test_what_is_left_out_is_counted(many: Path) -> None:
    page = render_html(read(many))
    assert "further failing Cases of 117" in page
    assert " a mark</span>" in page


def test_the_verdict_in_markdown_fits_a_comment(many: Path) -> None:
    told = render_markdown(read(many))
    assert len(told) < COMMENT
    head = told[: told.index("## Failures")]
    # The verdict, the claims that broke and the matrix: a screen or two.
    assert len(head) < 3_000
    assert head.startswith("# Did not hold\n\n32 of 42 claims held, 2 did not")
