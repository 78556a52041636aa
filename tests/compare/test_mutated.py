"""Rows that are valid JSON and were changed at random: each command says so in a line, or writes what can be read."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from numcheck.baseline import load, of, text
from numcheck.cli import main
from numcheck.compare import compare
from numcheck.record import read
from tests.compare.test_compare import CASES, fails, records
from tests.compare.test_power import GOOD, certified

# Of each kind of value one that arithmetic, a look-up by name, a terminal, a page or UTF-8 could stumble over.
VALUES: tuple[Any, ...] = (
    None, True, -1, 2**63, 10**400, -0.0, 1e308, "nan", "inf", "", "x y", "\ud800", "<script>", "::error::x", [], {},
    [None], {"": None}, "FAIL", "VACUOUS", "accuracy", "*", "draw", "replay", "9" * 5000,
)  # fmt: skip
SEEDS = 32
COMMANDS = (
    "compare a.jsonl m.jsonl",
    "compare b.json m.jsonl --json",
    "compare m.jsonl a.jsonl -o r.html",
    "render m.jsonl -o r.md --brief --github --baseline b.json",
    "accept m.jsonl --reason r --baseline new.json",
    "merge m.jsonl a.jsonl -o all.jsonl",
    "compare mutated.json a.jsonl",
    "compare a.jsonl mutated.json",
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*at, key)
        yield from places(part, (*at, key))


def mutated(rows: list[Any], draw: random.Random) -> list[Any]:
    """A few values replaced, removed, renamed or taken from elsewhere."""
    rows = copy.deepcopy(rows)
    for _ in range(draw.choice((1, 1, 1, 3))):
        row = draw.choice(rows or [{}])
        found = list(places(row))
        if not found:
            continue
        *path, last = draw.choice(found)
        at = row
        for step in path:
            at = at[step]
        how = draw.randrange(8)
        if how == 0:
            del at[last]
        elif how == 1 and isinstance(at, dict):
            at[str(draw.choice(VALUES))] = at.pop(last)
        elif how == 2:
            rows.remove(row)
        else:
            at[last] = copy.deepcopy(draw.choice(VALUES))
    return rows


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.chdir(tmp_path)
    Path("b.json").write_text(text(certified(Path("a.jsonl"), GOOD)))
    return [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]


def test_a_mutated_row_is_a_clear_error_or_a_page(rows: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    baseline = json.loads(Path("b.json").read_text())
    for seed in range(SEEDS):
        draw = random.Random(seed)
        Path("m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in mutated(rows, draw)))
        Path("mutated.json").write_text(json.dumps((mutated([baseline], draw) or [{}])[0]))
        for name in ("new.json", "all.jsonl", "r.html", "r.md"):
            Path(name).unlink(missing_ok=True)
        line = draw.choice(COMMANDS)
        code = main(line.split())
        said = capsys.readouterr()
        said.out.encode()
        assert code in (0, 1, 2), (seed, line)
        assert (said.err.count("\n") == 1 and said.err.startswith("numcheck ")) == (code == 2), (seed, line)
        if Path("new.json").exists():
            load(Path("new.json"))


def removed(rows: list[Any], draw: random.Random) -> list[Any]:
    """Without some rows, one of which did not hold: deleted, or made one that does not count."""
    at = draw.choice([i for i, row in enumerate(rows) if row.get("status") == "FAIL"])
    how = draw.randrange(6)
    if how == 0:
        return rows[:at] + rows[at + 1 :]
    if how == 1:
        first, last = at - draw.randrange(at), at + 1 + draw.randrange(len(rows) - at)
        return rows[:first] + rows[last:]
    if how == 2:
        return [row for row in rows if row.get("status") != "FAIL"]
    changed = {3: {"phase": "shrink"}, 4: {"spec": "renamed"}, 5: {"law": "renamed"}}[how]
    return [{**row, **changed} if row.get("status") == "FAIL" else row for row in rows]


@pytest.mark.parametrize("phase", ["grid", "draw"])
def test_a_head_without_the_row_that_fails_does_not_hold(tmp_path: Path, phase: str) -> None:
    base = records(tmp_path / "a.jsonl", phase=phase, profile="ci")
    records(tmp_path / "b.jsonl", lambda v, case: fails(v, case) if case == CASES[1] else v, phase=phase, profile="ci")
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    for seed in range(SEEDS // 2):
        left = removed(rows, random.Random(seed))
        (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in left))
        assert not compare(base, of(read(tmp_path / "c.jsonl"))).held, seed
