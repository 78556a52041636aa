"""The section "Fault by law": what was caught and by which law, what survives, and what the usual test would catch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from numcheck.case import Case
from numcheck.record import Writer, read
from numcheck.report import render_html, render_markdown
from numcheck.report.faults import board
from tests.report import scene
from tests.report.tree import Node, parse, table_rows

CASE = Case.of(S=1, H=2, D=31)


def mutant(number: int, **facts: Any) -> dict[str, Any]:
    """A row of a mutant of one operator, killed unless said otherwise."""
    return {
        "specs": "kernels",
        "spec": "mhc.triton",
        "fault": f"fused.forward:wrong-sign:{number:08x}",
        "made": "mutant",
        "status": "KILLED",
        "law": "accuracy",
        "case": CASE.to_json(),
        "why": "out: ceiling 7 beyond 1",
        "tried": {"edges": 2},
        "laws": {"accuracy": True},
        "raised": False,
        "usual": True,
        "changed": True,
        "seconds": 0.25,
        "operator": "wrong-sign",
        "function": "forward",
        "file": "/somewhere/fused.py",
        "line": 36,
        "text": "total += <weight>",
        "before": "total += <weight>",
        "after": "total -= <weight>",
        **facts,
    }


def declared(name: str, **facts: Any) -> dict[str, Any]:
    head = {"specs": "kernels", "spec": "mhc.triton", "fault": name, "made": "declared", "expected": "bitwise"}
    rest = {"status": "KILLED", "law": "bitwise", "why": "d_post: raced", "laws": {"bitwise": True}, "usual": False}
    return {**head, **rest, "case": CASE.to_json(), "tried": {"bitwise": 1}, "doc": "Lost updates.", **facts}


SURVIVOR = mutant(90, status="SURVIVED", law="", why="held on 82 Cases", laws={"accuracy": False}, usual=False)
KILLED = [mutant(n) for n in range(18)]
MANY = [*KILLED, mutant(18, law="edges", laws={"edges": True}, raised=True, usual=False), declared("mhc.fault.lost")]
REASONED = {"claim": "equal", "reason": "the other lanes are never stored"}


def written(path: Path, rows: list[dict[str, Any]], alone: bool = True) -> Path:
    if not alone:
        scene.write(path, count=3)
    with Writer(path, "run9") as writer:
        writer.environment(scene.environment())
        for row in rows:
            writer.fault(row)
    return path


def page(tmp_path: Path, rows: list[dict[str, Any]], alone: bool = True) -> Node:
    return parse(render_html(read(written(tmp_path / "r.jsonl", rows, alone))))


def test_counts_by_law_operator_and_kernel(tmp_path: Path) -> None:
    tree = page(tmp_path, MANY).one("section", id="faults")
    kernels, faults, operators = (table_rows(node) for node in tree.all("table"))
    assert kernels == [["mhc.triton", "19", "19", "100 %", "1", "0", "0", "18 of 19", "4.8", "0.25"]]
    assert operators[0][:2] == ["wrong-sign", "19"]
    assert operators[0][2:5] == ["", "18", "1"]
    assert faults[0][0].startswith("mhc.fault.lost")
    assert faults[0][4] == "passes"


def test_each_fault_has_a_line_that_scores_it_again(tmp_path: Path) -> None:
    tree = page(tmp_path, [*MANY, SURVIVOR, declared("mhc.fault.a b")]).one("section", id="faults")
    lines = {code.text for code in tree.all("code") if code.text.startswith("numcheck faults")}
    assert lines == {
        "numcheck faults --specs kernels --declared -k mhc.fault.lost",
        "numcheck faults --specs kernels --declared -k 'mhc.fault.a b'",
        f"numcheck faults --specs kernels --mutants -k {SURVIVOR['fault']}",
    }


def test_a_run_of_faults_alone_says_what_it_found(tmp_path: Path) -> None:
    tree = page(tmp_path, MANY)
    assert tree.one("h1").text == "Held"
    assert tree.one("p", cls="lede").text == "1 of 1 declared faults caught by the law that they name."
    assert tree.one("p", cls="also").text.strip() == "19 of 19 source mutants killed."


@pytest.mark.parametrize(
    "row",
    [
        declared("mhc.fault.deaf", status="SURVIVED", law="", laws={"bitwise": False}, why="held on 3 Cases"),
        mutant(91, status="REFUTED", **REASONED),
    ],
    ids=["a declared fault survives", "a reason is refuted"],
)
@pytest.mark.parametrize("alone", [True, False])
def test_what_did_not_hold_is_said_first(tmp_path: Path, row: dict[str, Any], alone: bool) -> None:
    assert page(tmp_path, [*MANY, row], alone).one("h1").text == "Did not hold"


def test_too_many_survivors_do_not_hold_and_few_do(tmp_path: Path) -> None:
    assert board([*MANY, SURVIVOR]).held
    assert not board([*KILLED[:8], SURVIVOR]).held
    proved = [mutant(100 + n, status="EQUIVALENT", law="", laws={}, **REASONED) for n in range(9)]
    assert board([*KILLED[:8], *proved]).held
    assert board([*KILLED[:8], *proved]).specs[0].share == "47 %"


def test_a_survivor_shows_its_line_and_what_was_tried(tmp_path: Path) -> None:
    text = page(tmp_path, [*MANY, SURVIVOR]).one("section", id="faults").text
    for shown in ("fused.py:36", "total += <weight>", "total -= <weight>", "held on 82 Cases", "edges 2"):
        assert shown in text


def test_a_reason_is_shown_and_its_mutant_is_no_survivor(tmp_path: Path) -> None:
    row = mutant(92, status="EQUIVALENT", law="", laws={}, **REASONED)
    found = board([*MANY, row])
    assert not found.survivors
    assert found.specs[0].statuses["EQUIVALENT"] == 1
    # Killed over all: a mutant that is excused is none that was killed.
    assert (found.specs[0].dead, found.specs[0].judged) == (19, 20)
    assert "the other lanes are never stored" in page(tmp_path, [*MANY, row]).one("section", id="faults").text


def test_a_survivor_that_a_reason_explains_is_listed_as_one_with_what_was_tried(tmp_path: Path) -> None:
    row = mutant(
        94, status="SURVIVED", law="", laws={}, claim="open", reason="no Case is that wide", tried={"edges": 7}
    )
    found = board([*MANY, row])
    assert [mark.id for mark in found.reasoned] == [row["fault"]]
    assert not found.explained
    text = page(tmp_path, [*MANY, row]).one("section", id="faults").text
    for shown in ("Survivors whose written reason", "open: no Case is that wide", "edges 7", "fused.py:36"):
        assert shown in text


def test_a_law_that_caught_nothing_anywhere_is_called_out(tmp_path: Path) -> None:
    idle = mutant(93, laws={"accuracy": True, "memory": False})
    assert board([*MANY, idle]).idle == ["memory"]
    assert "Caught nothing anywhere: memory" in page(tmp_path, [*MANY, idle]).one("section", id="faults").text
    # Where the first kill ends a fault, a law that was not asked has not failed.
    held = mutant(93, laws={"accuracy": True}, tried={"memory": 2})
    assert board([*MANY, held]).idleness.startswith("Caught nothing first: memory (")


def test_what_another_kernel_builds_is_counted_there_and_said(tmp_path: Path) -> None:
    text = render_html(read(written(tmp_path / "r.jsonl", [*MANY, mutant(70, status="ABSENT", law="", laws={})])))
    assert "1 mutants stand in branches that their kernel never builds" in text
    assert [line.judged for line in board([*KILLED, mutant(70, status="ABSENT", law="")]).specs] == [18]


def test_what_hung_is_neither_killed_nor_survived(tmp_path: Path) -> None:
    late = mutant(96, status="HUNG", law="", laws={}, why="hung: edges on its Case did not end within 60 s")
    found = board([*MANY, late, SURVIVOR])
    assert (found.mutants.dead, found.mutants.alive, found.mutants.hung) == (19, 1, 1)
    assert found.mutants.judged == 21
    assert found.held
    assert "1 hung, which no law has judged" in found.sentences
    assert "did not end within 60 s" in page(tmp_path, [*MANY, late]).one("section", id="faults").text
    text = render_markdown(read(tmp_path / "r.jsonl"))
    assert "## Hung, judged by no law" in text
    assert "## Survivors" not in text


def test_a_declared_fault_that_hangs_is_not_caught_by_the_law_that_it_names() -> None:
    row = next(row for row in MANY if row["made"] == "declared")
    late = {**row, "status": "HUNG", "law": "", "laws": {}}
    assert board(MANY).held
    assert not board([late if other is row else other for other in MANY]).held


def test_the_usual_test_is_compared_on_the_same_faults(tmp_path: Path) -> None:
    """What does not load, and what no test could catch, is in neither figure."""
    rows = [
        *MANY,
        mutant(94, status="STILLBORN", law="", laws={}, usual=True),
        mutant(95, status="EQUIVALENT", law="", laws={}, usual=False, **REASONED),
    ]
    assert board(rows).mutants.usual == "18 of 19"


def test_the_latest_score_of_a_fault_counts(tmp_path: Path) -> None:
    path = written(tmp_path / "r.jsonl", [SURVIVOR])
    with Writer(path, "run91") as writer:
        writer.fault(mutant(90))
    tree = parse(render_html(read(path))).one("section", id="faults")
    assert "Survivors: no law" not in tree.text


def test_without_faults_there_is_no_section(tmp_path: Path) -> None:
    tree = parse(render_html(read(scene.write(tmp_path / "r.jsonl", count=3))))
    assert not tree.all("section", id="faults")


def test_markdown_tells_the_same(tmp_path: Path) -> None:
    text = render_markdown(read(written(tmp_path / "r.jsonl", [*MANY, SURVIVOR])))
    assert "## Fault by law" in text
    assert "## Survivors" in text
    assert "total -= &lt;weight&gt;" in text
