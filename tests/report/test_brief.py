"""A comment on a pull request: the verdict first, a kernel in a few lines, and a length that nothing exceeds."""

from __future__ import annotations

import re

import pytest

from numcheck.baseline import Baseline, of
from numcheck.record import Records, Row, read
from numcheck.report import render_markdown
from numcheck.report.brief import COMMENT, KERNEL, PAGE
from tests.report import scene

# What a kernel that fails may take, with its share of what is said of all.
FAILING_KERNEL = 1_500


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return read(scene.write(tmp_path_factory.mktemp("brief") / "a.jsonl", count=12))


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return read(scene.write(tmp_path_factory.mktemp("brief") / "b.jsonl", count=12, failing=True))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The same with the fewest Cases that fail."""
    return read(scene.write(tmp_path_factory.mktemp("brief") / "c.jsonl", count=2, failing=True))


def brief(records: Records, base: Baseline | None = None) -> str:
    return render_markdown(records, base, brief=True)


def copies(records: Records, number: int, name: str = "") -> Records:
    """The kernel that fails, `number` times under other names; the others once."""
    rows: list[Row] = []
    for row in records.rows:
        if row.get("spec") != "triton":
            rows.append(row)
            continue
        rows += [{**row, "spec": f"triton_{i:03}{name}", "id": f"{row['id']}/{i}"} for i in range(number)]
    return Records(tuple(rows))


def blocks(told: str) -> dict[str, str]:
    """What is said of each kernel."""
    parts = re.split(r"^### (.*)$", told, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_verdict_leads_and_names_what_broke(failing: Records, clean: Records) -> None:
    lines = brief(failing, of(clean)).splitlines()
    assert lines[0] == "# Did not hold: `eager` under edges, and 1 more claim"
    assert re.match(r"\d+ of \d+ claims held, 2 did not", lines[2])
    assert brief(clean).startswith("# Held\n\n")


def test_each_kernel_says_what_failed_where_and_how_to_see_it(failing: Records, clean: Records) -> None:
    found = blocks(brief(failing, of(clean)))
    assert list(found) == ["eager on CPU", "triton on CPU"]
    triton = found["triton on CPU"]
    assert "- **FAIL** under accuracy, 4 of 12 Cases: out: match 61 beyond 4; ceiling 2.41 beyond 1\n" in triton
    assert "`out got=0.00390625 expected=0.0030059814453125 at [0, 1, 17]`" in triton
    assert "in `kernels/mhc_post/fused.py:19`" in triton
    assert triton.count("numcheck replay") == 1
    assert len(triton) < KERNEL


def test_what_moved_is_told_with_a_line_that_shows_it(clean: Records) -> None:
    told = brief(scene.moved(clean), of(clean))
    (block,) = blocks(told).values()
    assert re.search(r"- Other bits: out in \d+ of \d+ Cases\n```\nnumcheck replay --specs kernels triton ", block)
    assert "**Did bits change? Yes.**" in told


def test_a_kernel_that_fails_takes_a_few_lines(failing: Records, clean: Records) -> None:
    one, many = (len(brief(copies(failing, n), of(copies(clean, n)))) for n in (1, 21))
    assert (many - one) / 20 < FAILING_KERNEL


@pytest.mark.parametrize("number", [50, 250])
def test_whatever_fails_it_fits_a_comment_and_counts_what_is_left_out(few: Records, number: int) -> None:
    told = brief(copies(few, number))
    assert len(told.encode()) <= COMMENT
    found = blocks(told)
    left = re.search(rf"^(\d+) more kernels, for which there is no room here, {PAGE}: ", told, flags=re.MULTILINE)
    assert len(found) + (int(left[1]) if left else 0) == number + 1
    assert all("**FAIL**" in block or "**ERROR**" in block for block in found.values())
    assert (left is None) == (number == 50)


@pytest.mark.parametrize("text", [" long" * 200, "\x00" * 700, "<&`|>" * 140, "\u2028語" * 1_500])
def test_no_text_of_a_record_makes_it_longer(few: Records, text: str) -> None:
    rows = []
    for row in copies(few, 60).rows:
        named = {name: row[name] + text for name in ("spec", "law", "specs", "claim") if name in row}
        if row["kind"] == "case":
            named["outputs"] = {n + text: {**o, "why": text, "where": text} for n, o in row["outputs"].items()}
        rows.append({**row, **named})
    told = brief(Records(tuple(rows)))
    assert len(told.encode()) <= COMMENT
    assert told.startswith("# Did not hold")
    assert len(told.split("```")) % 2 == 1


def test_a_mark_does_not_cover_cases_that_proved_nothing(clean: Records) -> None:
    told = brief(clean)
    row = next(line for line in told.splitlines() if line.startswith("| eager | "))
    cells = {cell.strip() for cell in row.split("|")}
    vacuous = sum(
        row["kind"] == "case" and (row["spec"], row["law"], row["status"]) == ("eager", "bitwise", "VACUOUS")
        for row in clean.rows
    )
    assert 0 < vacuous < 12
    assert f"✓ 12, of them {vacuous} vacuous" in cells
    assert "Vacuous: nothing in those Cases could have failed, so they prove nothing." in told
    assert "Pooled" not in told
    rows = [
        {**row, "outputs": {n: {**o, "status": "VACUOUS"} for n, o in row["outputs"].items()}, "status": "VACUOUS"}
        if row["kind"] == "pooled" and row["law"] == "accuracy" else row
        for row in clean.rows
    ]  # fmt: skip
    told = brief(Records(tuple(rows)))
    assert "| ✓ 12, pooled VACUOUS |" in told
    assert "Pooled: the verdict on all Cases together, beside those on each." in told


def test_the_gate_furthest_beyond_its_limit_leads(failing: Records) -> None:
    """0 as a limit is no measure: whatever is beyond it is infinitely far."""
    rows = []
    for row in failing.rows:
        if row["kind"] == "case" and row["status"] == "FAIL":
            gates = [{**row["gates"][0], "kind": "exact", "value": 1.0, "limit": 0.0},
                     {**row["gates"][0], "value": 225.0}, *row["gates"][1:]]  # fmt: skip
            out = {
                **row["outputs"]["out"],
                "why": "guard: torn; exact 1 beyond 0; match 61 beyond 4; ceiling 225 beyond 1",
            }
            row = {**row, "gates": gates, "outputs": {**row["outputs"], "out": out}}
        rows.append(row)
    assert "out: guard: torn; ceiling 225 beyond 1; match 61 beyond 4; exact 1 beyond 0" in brief(Records(tuple(rows)))


def test_problems_are_counted_and_said_to_be_elsewhere(failing: Records) -> None:
    told = brief(failing)
    assert "in the records, listed in the HTML page." in told
    assert "## " not in told.replace("### ", "")
