"""No command writes over a file that it did not write itself."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from numcheck.cli import main
from numcheck.plugin.settings import settings
from tests.compare.test_compare import fails, records

# Anybody's files: source, a page, notes that begin as a report's might, JSON of another program.
FOREIGN = {
    "mine.py": "x = 1\n",
    "index.html": "<!doctype html>\n<title>Held</title>\n",
    "README.md": "# Holding\n\nnotes\n",
    "package.json": '{"name":"mine","version":1}\n',
    "data.jsonl": '{"prompt":"a","schema":1}\n',
    "foreign.json": '{"schema": "http://json-schema.org/x", "mine": 1}\n',
    "other.jsonl": '{"schema":1,"mine":1}\n',
    "held.md": "# Held back issues\n",
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records(tmp_path / "a.jsonl")
    for name, text in FOREIGN.items():
        (tmp_path / name).write_text(text)


WRITERS = (
    "render a.jsonl -o {}",
    "compare a.jsonl a.jsonl -o {}",
    "accept a.jsonl --reason why --baseline {}",
    "merge a.jsonl -o {}",
    "certify --records {}",
    "faults --declared --records {}",
    "faults --declared --report {}",
    "bench --ab a b --case {{}} --records {}",
)


@pytest.mark.parametrize("line", WRITERS)
@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_kind_is_left_alone(line: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.format(name).split()) == 2
    assert f"{name} is no " in capsys.readouterr().err
    assert Path(name).read_text() == FOREIGN[name]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("accept a.jsonl --reason why --baseline x", "render a.jsonl -o x"),
        ("accept a.jsonl --reason why --baseline x", "merge a.jsonl -o x"),
        ("render a.jsonl -o x", "accept a.jsonl --reason why --baseline x"),
        ("merge a.jsonl -o x", "accept a.jsonl --reason why --baseline x"),
        ("merge a.jsonl -o x", "render a.jsonl -o x"),
    ],
)
def test_one_kind_of_numchecks_files_is_no_other(first: str, second: str) -> None:
    assert main(first.split()) == 0
    before = Path("x").read_bytes()
    assert main(second.split()) == 2
    assert Path("x").read_bytes() == before


@pytest.mark.parametrize(
    "line",
    [
        "render a.jsonl -o x.html",
        "render a.jsonl -o x.md",
        "render a.jsonl -o x.md --brief",
        "compare a.jsonl a.jsonl -o x.html",
        "accept a.jsonl --reason why --baseline x.json",
        "merge a.jsonl -o x.jsonl",
    ],
)
def test_what_a_command_wrote_it_writes_again_and_an_empty_file_too(line: str) -> None:
    Path(line.split()[-1] if "--brief" not in line else "x.md").touch()
    assert [main(line.split()) for _ in range(2)] == [0, 0]


def test_a_file_keeps_its_mode(tmp_path: Path) -> None:
    line = ["accept", "a.jsonl", "--reason", "why", "--baseline", "x.json"]
    assert main(line) == 0
    Path("x.json").chmod(0o600)
    assert main(line) == 0
    assert Path("x.json").stat().st_mode & 0o777 == 0o600


def test_json_on_the_output_is_nothing_but_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "a.jsonl", "a.jsonl", "--json", "-o", "x.html"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["held"] is True
    assert said.err == "report: x.html\n"


def test_every_headline_is_known_for_a_report(tmp_path: Path) -> None:
    records(tmp_path / "bad.jsonl", fails)
    records(tmp_path / "none.jsonl", cases=())
    for head in ("bad.jsonl", "none.jsonl"):
        for base in ([], ["--baseline", "a.jsonl"]):
            for _ in range(2):
                assert main(["render", head, *base, "-o", "x.md"]) == 0


def test_records_that_were_torn_in_their_first_row_are_continued(tmp_path: Path) -> None:
    (tmp_path / "torn.jsonl").write_text('{"sch')
    assert settings(Namespace(numcheck_records="torn.jsonl"), tmp_path).records == tmp_path / "torn.jsonl"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"records": "mine.py"}, "mine.py is no records file that numcheck wrote"),
        ({"report": "README.md"}, "README.md is no report that numcheck wrote"),
        ({"report": "data.html"}, "data.jsonl is no records file that numcheck wrote"),
        ({"records": "a.jsonl", "baseline": "a.jsonl"}, "--numcheck-records and --numcheck-baseline name one file"),
    ],
)
def test_pytest_refuses_before_anything_runs(tmp_path: Path, given: dict[str, str], said: str) -> None:
    with pytest.raises(pytest.UsageError, match=said):
        settings(Namespace(**{f"numcheck_{name}": value for name, value in given.items()}), tmp_path)
    assert {name: (tmp_path / name).read_text() for name in FOREIGN} == FOREIGN
