"""Text from records reaches a terminal, and the log of a workflow, as text alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from numcheck.cli import main
from numcheck.compare import compare
from numcheck.compare.text import as_text
from numcheck.harmless import one_line, visible
from numcheck.record import Writer
from numcheck.verdict import OutputVerdict, Status, Verdict
from tests.compare.test_compare import CASES, records, verdict

HOSTILE = "::error title=t::owned\n  ::set-output name=x::y\x1b[31m\u202egnp\ud800\r##[error]z"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def harmless(said: str) -> None:
    """Nothing that moves a cursor, nothing that a runner obeys, and no byte that cannot be written."""
    said.encode()
    assert not {"\x1b", "\u202e", "\r"} & set(said)
    assert "##[" not in said
    assert [line for line in said.split("\n") if line.lstrip().startswith("::")] == []


def named(found: Verdict) -> Verdict:
    return replace(
        found,
        spec=HOSTILE,
        outputs={HOSTILE: OutputVerdict(Status.PASS)},
        hashes={HOSTILE: found.hashes["out"]},
        gates=tuple(replace(gate, output=HOSTILE) for gate in found.gates),
    )


def hostile(path: Path, *, failing: bool = False, ends: bool = True, status: Status = Status.PASS) -> Path:
    status = Status.FAIL if failing else status
    writer = Writer(path, "run", HOSTILE)
    writer.environment({"id": "e"})
    writer.unavailable("kernels", HOSTILE, HOSTILE, HOSTILE)
    for case in CASES:
        found = named(verdict("accuracy", case))
        hashes = {HOSTILE: path.stem * 4}
        writer.case("kernels", case, replace(found, outputs={HOSTILE: OutputVerdict(status)}, hashes=hashes), "grid")
    if ends:
        writer.end()
    writer.close()
    return path


def test_compare_prints_what_records_call_things_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    hostile(Path("a.jsonl"))
    hostile(Path("b.jsonl"), status=Status.VACUOUS, ends=False)
    assert main(["compare", "a.jsonl", "b.jsonl"]) == 1
    said = capsys.readouterr().out
    assert "owned" in said
    harmless(said)


def test_accept_prints_what_records_call_things_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    hostile(Path("failing.jsonl"), failing=True)
    assert main(["accept", "failing.jsonl", "--reason", "r"]) == 1
    harmless(capsys.readouterr().out)
    hostile(Path("killed.jsonl"), ends=False)
    assert main(["accept", "killed.jsonl", "--reason", "r"]) == 2
    said = capsys.readouterr().err
    assert "owned" in said
    harmless(said)


def test_a_reason_is_kept_and_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    records(Path("a.jsonl"))
    assert main(["accept", "a.jsonl", "--reason", HOSTILE]) == 0
    main(["compare", "numcheck-baseline.json", "a.jsonl"])
    said = capsys.readouterr().out
    assert "owned" in said
    harmless(said)


@pytest.mark.parametrize("reason", ["\u200b", "\u2800\u3164", "\x1b\x00", "\ufe0f \u00ad"])
def test_an_invisible_reason_is_none(reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    records(Path("a.jsonl"))
    assert main(["accept", "a.jsonl", "--reason", reason]) == 2
    assert "--reason is empty" in capsys.readouterr().err


def test_merge_prints_problems_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    records(Path("a.jsonl"))
    head = {"schema": 1, "kind": "problem", "id": "p", "run": "", "worker": "", "seq": 0, "time": ""}
    with Path("a.jsonl").open("a") as file:
        file.write(json.dumps({**head, "file": HOSTILE, "line": 3, "text": HOSTILE}) + "\n")
    assert main(["merge", "a.jsonl", "-o", "all.jsonl"]) == 1
    said = capsys.readouterr().out
    assert "owned" in said
    harmless(said)


def test_run_at_prints_what_records_call_things_as_text() -> None:
    base = records(Path("a.jsonl"), spec=HOSTILE)
    (key, known), = base.kernels.items()  # fmt: skip
    said = as_text(compare(replace(base, kernels={key: replace(known, laws={"accuracy": "FAIL"})}), base, "main"))
    assert "owned" in said
    harmless(said)


def test_plain_text_is_left_as_it_is() -> None:
    text = "  std::vector of x_π: 3 of 7 Cases (a::b), ## note [1] ✓"
    assert one_line(text) == text
    assert visible("ok")
    assert visible("理由")
