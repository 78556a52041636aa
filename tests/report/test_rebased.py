"""Each Case against the base: other bits under the law that has them, another verdict, or the same."""

from __future__ import annotations

from pathlib import Path

from numcheck.baseline import of
from numcheck.compare import compare
from numcheck.record import Records, Row, read
from numcheck.report.rebased import NEW, SAME, Rebased, rebased
from numcheck.selection import CPU, Kernel
from tests.report import scene

TRITON, ATOMIC = Kernel("kernels", "triton"), Kernel("kernels", "triton_split_atomic")


def against(base: Records, head: list[Row]) -> Rebased:
    return rebased(compare(of(base), of(Records(tuple(head)))))


def test_a_case_says_what_moved_under_the_law_that_saw_it(tmp_path: Path) -> None:
    base = read(scene.write(tmp_path / "r.jsonl", count=12))
    mine = [r for r in base.rows if r["kind"] == "case" and r["spec"] == "triton"]
    changed = next(r for r in mine if r["law"] == "accuracy")
    failed = next(r for r in mine if r["law"] == "edges")
    head: list[Row] = []
    for row in base.rows:
        if row["id"] == changed["id"]:
            row = {**row, "hashes": {**row["hashes"], "d_x": "0" * 16}}
        elif row["id"] == failed["id"]:
            row = {**row, "status": "FAIL", "outputs": {"out": {"status": "FAIL"}}, "hashes": {}}
        head.append(row)
    found = against(base, head)
    moved = {key: text for key, text in found.items() if text not in (SAME, "")}
    assert sorted((key[0], key[1], key[2], text) for key, text in moved.items()) == [
        (TRITON, CPU, "accuracy", "other bits: d_x"),
        (TRITON, CPU, "edges", "no bits: out; was PASS"),
    ]


def test_a_case_that_the_base_does_not_have_says_so_and_without_a_base_nothing_is_said(tmp_path: Path) -> None:
    head = read(scene.write(tmp_path / "r.jsonl", count=12))
    first = next(r for r in head.rows if r["kind"] == "case" and r["spec"] == "triton" and r["law"] == "bitwise")
    base = Records(tuple(r for r in head.rows if r.get("case") != first["case"]))
    assert [key[2] for key, text in against(base, list(head.rows)).items() if text == NEW] == ["bitwise"]
    assert rebased(None) == {}


def test_an_output_whose_order_is_free_has_not_moved(tmp_path: Path) -> None:
    base = read(scene.write(tmp_path / "r.jsonl", count=12))
    head = [
        {**row, "hashes": {**row["hashes"], "d_post": "0" * 16}}
        if row["kind"] == "case" and row["spec"] == ATOMIC.spec and "d_post" in row["hashes"]
        else row
        for row in base.rows
    ]
    assert {text for key, text in against(base, head).items() if key[0] == ATOMIC} <= {SAME, ""}
