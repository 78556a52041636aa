"""Records: what is written is kept, what is broken is said, and what only all workers know is found."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from numcheck import baseline, record, schema
from numcheck.case import Case
from numcheck.errors import BadRecords
from numcheck.evidence import Evidence
from numcheck.finding import findings
from numcheck.gate import Gate
from numcheck.record import Records, Writer, merge, new_run, read, replay_line
from numcheck.verdict import OutputVerdict, Rung, Status, Verdict
from tests.report import scene

ROOT = Path(__file__).resolve().parents[2]
CASE = Case.of(S=1, H=2, D=31, dtype="bf16", facts={"pattern": 'it\'s "odd"'}, seed=7)
GATE = Gate("band", "out", math.nan, math.inf, "because", lower=-math.inf, vacuous="no figure where nothing rounds")
VERDICT = Verdict(
    "triton",
    "accuracy",
    "claimed",
    {"out": OutputVerdict(Status.PASS)},
    (GATE,),
    (Rung("same process", 2, {"out": ("ab",)}, {"out": 0}),),
    {"out": "ab"},
    Evidence(backend="interpreter"),
    {"peak_bytes": 12, "odd": {1: (math.inf, {"set"})}},
)


def write(path: Path, worker: str = "gw0", verdict: Verdict = VERDICT, case: Case = CASE, env: str = "e1") -> Path:
    """A file with one judged Case, ended properly."""
    with Writer(path, "run1", worker, clock=scene.Clock()) as writer:
        writer.environment({"id": env})
        writer.started("kernels", verdict.spec, verdict.law, case, "grid")
        writer.case("kernels", case, verdict, "grid", {"kernel": 0.5})
    return path


def rows(path: Path) -> list[dict[str, Any]]:
    """The lines of a file as strict JSON."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="ascii").splitlines()]


def test_the_published_schema_is_the_one_in_force() -> None:
    published = json.loads((ROOT / "docs" / "reference" / "records.schema.json").read_text(encoding="utf-8"))
    assert published == schema.json_schema(), "write it anew: json.dumps(schema.json_schema(), indent=2)"


def test_every_row_of_a_run_is_strict_json_of_the_published_schema(tmp_path: Path) -> None:
    path = scene.write(tmp_path / "r.jsonl", count=6, devices=("cpu", "cuda"))
    with Writer(path, "run2") as writer:
        writer.outcome(
            "kernels", "triton", "edges", "ERROR", reason="no Case was legal", notes=["stopped"], seconds=1.5
        )
        writer.fault(
            {
                "specs": "kernels",
                "spec": "triton",
                "fault": "fused.forward:wrong-sign:0a1b2c3d",
                "made": "mutant",
                "status": "KILLED",
                "law": "accuracy",
                "why": "out: ceiling 7 beyond 1",
                "case": Case.of(S=1, H=1, D=1).to_json(),
                "tried": {"edges": 2},
                "laws": {"accuracy": True},
                "line": 3,
            }
        )
    merge([path], tmp_path / "all.jsonl")
    validator = jsonschema.Draft202012Validator(schema.json_schema())
    found = rows(tmp_path / "all.jsonl")
    assert {row["kind"] for row in found} == set(schema.KINDS) - {"problem"}
    for row in found:
        validator.validate(row)


def test_order_of_rows_and_numbers_that_json_lacks(tmp_path: Path) -> None:
    found = rows(write(tmp_path / "r.jsonl"))
    assert [row["kind"] for row in found] == ["run", "environment", "started", "case", "end"]
    case = found[3]
    assert (case["gates"][0]["value"], case["gates"][0]["limit"], case["gates"][0]["lower"]) == ("nan", "inf", "-inf")
    assert case["figures"] == {"peak_bytes": 12, "odd": {"1": ["inf", ["set"]]}}
    assert case["environment"] == "e1"
    assert Case.from_json(case["case"]) == CASE


def test_a_row_is_one_write_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: writes.append(bytes(data)) or real(file, data))
    write(tmp_path / "r.jsonl")
    assert len(writes) == 5
    assert all(data.endswith(b"\n") and data.count(b"\n") == 1 for data in writes)


HEAD = """
import os, random, signal, sys
from numcheck.record import Writer
from tests.report import scene
CASE = next(scene.cases(random.Random(0), 1))
VERDICT = scene.judge("accuracy", "triton", CASE)
writer = Writer(sys.argv[1], "run1", "gw0")
"""
CHILD = f"""{HEAD}
while True:
    writer.started("kernels", "triton", "accuracy", CASE, "draw")
    writer.case("kernels", CASE, VERDICT, "draw")
    print(writer._seq, flush=True)
"""


@pytest.mark.parametrize("count", [1, 7, 60])
def test_kill_9_loses_no_finished_row(tmp_path: Path, count: int) -> None:
    path = tmp_path / "r.jsonl"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    told = 0
    for _ in range(count):
        told = int(child.stdout.readline())
    child.send_signal(signal.SIGKILL)
    told = max([told, *(int(line) for line in child.stdout.read().split("\n")[:-1])])
    child.wait()
    records = read(path)
    assert [row["seq"] for row in records.rows] == list(range(len(records.rows)))
    assert len(records.rows) >= told
    assert "no_end" in {finding.kind for finding in findings(records)}


def test_the_case_that_killed_the_worker_is_found(tmp_path: Path) -> None:
    code = f"""{HEAD}
writer.started("kernels", "triton", "accuracy", CASE, "grid")
writer.case("kernels", CASE, VERDICT, "grid")
writer.started("kernels", "triton", "accuracy", CASE.but(D=11), "grid")
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "r.jsonl"
    assert subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT).returncode == -signal.SIGKILL
    found = findings(read(path))
    assert [f.kind for f in found] == ["unfinished", "no_end"]
    assert found[0].case is not None
    assert found[0].case["sizes"]["D"] == 11
    assert "killed" in found[0].text


def test_a_finished_file_has_nothing_to_find(tmp_path: Path) -> None:
    records = read(write(tmp_path / "r.jsonl"))
    assert records.problems == ()
    assert findings(records) == ()


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    write(path, "gw1")
    records = read(path)
    assert [row["kind"] for row in records.rows].count("case") == 2
    assert [str(p).split(":")[:2] for p in records.problems] == [["r.jsonl", "5"]]


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (b"garbage", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        (b'{"schema":1,"kind":"case","gates":NaN}', "NaN is no JSON number"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"schema":1}', "lacks 'kind'"),
        (b"7", "is 7, not an object"),
        (b'{"schema":true}', "schema is True, not an integer"),
    ],
)
def test_a_corrupt_line_is_reported_with_its_place_and_the_others_kept(tmp_path: Path, bad: bytes, said: str) -> None:
    path = write(tmp_path / "r.jsonl")
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:2], bad, *lines[2:]]) + b"\n")
    records = read(path)
    assert len(records.rows) == 5
    assert len(records.problems) == 1
    assert str(records.problems[0]).startswith("r.jsonl:3: ")
    assert said in str(records.problems[0])
    assert len(str(records.problems[0])) < 300


CHANGES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda row: row.update(status="GREEN"), "status is 'GREEN', not one of"),
    (lambda row: row.pop("law"), "lacks 'law'"),
    (lambda row: row.update(gates={}), "gates is {}, not an array"),
    (lambda row: row["gates"][0].update(value="1.5"), "gates[0].value is '1.5', not a number"),
    (lambda row: row["gates"][0].update(value=None), "gates[0].value is None, not a number"),
    (lambda row: row["case"]["sizes"].update(H=-1), "case.sizes.H is -1, below 0"),
    (lambda row: row["case"]["sizes"].update(H=True), "case.sizes.H is True, not an integer"),
    (lambda row: row["outputs"].update(out="PASS"), "outputs.out is 'PASS', not an object"),
    (lambda row: row.update(hashes=["ab"]), "hashes is ['ab'], not an object"),
    (lambda row: row["evidence"].update(backend="cpu"), "evidence.backend is 'cpu', not one of"),
    (lambda row: row.update(kind="case!"), "unknown kind 'case!'"),
    (lambda row: row["gates"][0].update(value=10**400), "gates[0].value is 1000"),
    (lambda row: row["gates"][0].update(lower=-(10**400)), "gates[0].lower is -1000"),
    (lambda row: row["seconds"].update(kernel=10**400), "seconds.kernel is 1000"),
    (lambda row: row["case"]["sizes"].update(H=10**400), "case.sizes.H is 1000"),
    (lambda row: row["figures"].update(measured="many"), "figures.measured is 'many', not a number"),
    (lambda row: row["figures"].update(measured=1, formula=None), "figures.formula is None, not a number"),
    (lambda row: row["figures"].update(measured=1, formula=10**400), "figures.formula is 1000"),
]


def with_changed_case(folder: Path, change: Callable[[dict[str, Any]], object]) -> tuple[Records, dict[str, Any]]:
    """What is read of a file whose Case row was changed, and that row."""
    path = write(folder / "r.jsonl")
    found = rows(path)
    change(found[3])
    path.write_text("\n".join(json.dumps(row) for row in found), encoding="ascii")
    return read(path), found[3]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=[said for _, said in CHANGES])
def test_a_row_of_another_shape_is_a_problem_and_the_schema_agrees(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    records, row = with_changed_case(tmp_path, change)
    assert [said in str(problem) for problem in records.problems] == [True]
    assert len(records.rows) == 4
    assert not jsonschema.Draft202012Validator(schema.json_schema()).is_valid(row)


# What a schema cannot say.
CONTRADICTIONS: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda row: row["case"].update(dtype="int8"), "dtype='int8', but it must be one of"),
    (lambda row: row["case"].update(later=1), "unknown Case field(s) ['later']"),
    (lambda row: row.update(law="memory", figures={"measured": 1}), "figures.measured and figures.formula"),
    (lambda row: row.update(status="FAIL"), "has status FAIL, but the worst of its outputs is PASS"),
    (lambda row: row["outputs"]["out"].update(status="FAIL"), "has status PASS, but the worst of its outputs is FAIL"),
    (lambda row: row.update(outputs={}), "has status PASS, but the worst of its outputs is VACUOUS"),
    (lambda row: row["gates"][0].update(vacuous=""), "has a 'band' gate of 'out' at NaN, and yet PASS for it"),
    (lambda row: row["gates"][0].update(vacuous="", value=0, limit="nan"), "gate of 'out' at NaN"),
    (lambda row: row["gates"][0].update(vacuous="", output="gone"), "gate of 'gone' at NaN"),
]


@pytest.mark.parametrize(("change", "said"), CONTRADICTIONS, ids=[said for _, said in CONTRADICTIONS])
def test_a_row_that_contradicts_itself_is_a_problem_of_its_line_and_the_others_are_kept(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    records, _ = with_changed_case(tmp_path, change)
    (problem,) = map(str, records.problems)
    assert problem.startswith("r.jsonl:4: is no case row: it ")
    assert said in problem
    assert [row["kind"] for row in records.rows] == ["run", "environment", "started", "end"]
    baseline.of(records)


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"*": OutputVerdict(Status.ERROR, "the law raised")},
        {"out": OutputVerdict(Status.FAIL, "band nan beyond inf"), "d_x": OutputVerdict(Status.PASS)},
        {"out": OutputVerdict(Status.VACUOUS), "d_x": OutputVerdict(Status.UNAVAILABLE)},
    ],
    ids=["none", "error", "fail", "unavailable"],
)
def test_whatever_a_law_may_say_is_no_contradiction(tmp_path: Path, outputs: dict[str, OutputVerdict]) -> None:
    gates = () if "out" not in outputs else (replace(GATE, vacuous=""),)
    verdict = replace(VERDICT, outputs=outputs, gates=gates)
    with Writer(tmp_path / "r.jsonl", "run1") as writer:
        writer.case("kernels", CASE, verdict, "grid")
        writer.pooled("kernels", replace(verdict, pooled=True))
    assert read(tmp_path / "r.jsonl").problems == ()


def test_keys_of_a_later_version_are_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl")
    found = [{**row, "later": 1} for row in rows(path)]
    path.write_text("\n".join(json.dumps(row) for row in found), encoding="ascii")
    assert [row["later"] for row in read(path).rows] == [1] * 5


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"name": "somebody else"}\n', "not a numcheck records file (line 1 "),
        (b"<html>", "not a numcheck records file"),
        (b"PK\x03\x04\x00\x00", "not a numcheck records file"),
        (b'{"schema":2,"kind":"case","id":"x"}\n', "written with schema 2, but this numcheck"),
    ],
)
def test_a_foreign_or_newer_file_is_refused_by_name(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadRecords) as error:
        read(path)
    assert said in str(error.value)
    assert "other.jsonl" in str(error.value)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadRecords, match=r"none\.jsonl: No such file"):
        read(tmp_path / "none.jsonl")


@pytest.mark.parametrize("content", [b"", b'{"schema":1,"kind":"run","id":"a'])
def test_a_file_that_died_at_birth_is_reported_and_no_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    records = read([path, write(tmp_path / "other.jsonl")])
    assert len(records.rows) == 5
    assert "r.jsonl: no row" in str(records.problems[-1])


def test_merge_orders_rows_and_drops_duplicates(tmp_path: Path) -> None:
    late = write(tmp_path / "b.jsonl", "gw1")
    early = write(tmp_path / "a.jsonl", "gw0")
    merged = merge([late, early, late], tmp_path / "all.jsonl")
    found = rows(tmp_path / "all.jsonl")
    assert len(found) == len(merged.rows) == 10
    assert [(row["worker"], row["seq"]) for row in found] == [(w, n) for w in ("gw0", "gw1") for n in range(5)]
    assert read(tmp_path / "all.jsonl") == merged


def test_merging_again_changes_nothing_and_forgets_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl")
    path.write_bytes(path.read_bytes() + b"garbage\n")
    out = tmp_path / "all.jsonl"
    first = merge([path], out)
    assert [str(p) for p in first.problems] == [str(p) for p in read(out).problems]
    before = out.read_bytes()
    merge([path], out)
    assert out.read_bytes() == before
    merge([write(tmp_path / "b.jsonl", "gw1")], out)
    assert len(read(out).rows) == 10


def test_merge_into_somebody_elses_file_leaves_it_alone(tmp_path: Path) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("mine")
    with pytest.raises(BadRecords):
        merge([write(tmp_path / "a.jsonl")], out)
    assert out.read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "notes.txt"]


def test_restarted_writers_of_one_name_keep_all_rows(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path)
    write(path)
    assert len(read(path).rows) == 10


def test_worker_files_are_found_by_run(tmp_path: Path) -> None:
    target = tmp_path / "records.jsonl"
    for worker in ("gw0", "gw1"):
        write(record.worker_path(target, "run1", worker), worker)
    write(record.worker_path(target, "run2", "gw0"))
    assert [p.name for p in record.worker_paths(target, "run1")] == ["records.run1.gw0.jsonl", "records.run1.gw1.jsonl"]


def test_time_never_goes_back_within_a_file(tmp_path: Path) -> None:
    clock = scene.Clock()
    writer = Writer(tmp_path / "r.jsonl", new_run(), clock=clock)
    clock.now = clock.now.replace(year=2020)
    writer.end()
    times = [row["time"] for row in rows(tmp_path / "r.jsonl")]
    assert times == sorted(times)


def differing(tmp_path: Path, one: Verdict, other: Verdict, env: str = "e1") -> list[str]:
    """Texts of the bits_differ findings of two workers that judged one Case."""
    paths = [write(tmp_path / "a.jsonl", "gw0", one), write(tmp_path / "b.jsonl", "gw1", other, env=env)]
    return [f.text for f in findings(read(paths)) if f.kind == "bits_differ"]


def test_other_bits_in_another_worker_are_a_finding(tmp_path: Path) -> None:
    other = replace(VERDICT, hashes={"out": "cd"})
    (text,) = differing(tmp_path, VERDICT, other)
    assert "out has 2 different hashes on the interpreter backend, in one environment" in text
    assert "run1/gw0" in text
    assert "run1/gw1" in text


def test_equal_bits_in_another_worker_are_none(tmp_path: Path) -> None:
    assert differing(tmp_path, VERDICT, VERDICT) == []


def test_an_output_that_may_differ_is_no_finding(tmp_path: Path) -> None:
    free = replace(VERDICT, outputs={"out": OutputVerdict(Status.ORDER_DEPENDENT)})
    assert differing(tmp_path, free, replace(free, hashes={"out": "cd"})) == []


def test_interpreter_and_device_are_not_held_to_each_other(tmp_path: Path) -> None:
    device = replace(VERDICT, hashes={"out": "cd"}, evidence=Evidence(backend="device"))
    assert differing(tmp_path, VERDICT, device) == []


def test_other_bits_on_another_machine_say_so(tmp_path: Path) -> None:
    (text,) = differing(tmp_path, VERDICT, replace(VERDICT, hashes={"out": "cd"}), env="e2")
    assert "between environments" in text


@pytest.mark.parametrize("specs", ["kernels", "my kernels/it's.py", "a.py:SPECS; rm -rf ~"])
def test_a_replay_line_survives_the_shell(specs: str) -> None:
    words = shlex.split(replay_line(specs, "split[0]", "bitwise", CASE))
    assert words[:3] == ["numcheck", "replay", "--specs"]
    assert words[3:6] == [specs, "split[0]", "bitwise"]
    assert Case.from_json(words[6]) == CASE
    assert replay_line(specs, "split[0]", "bitwise", CASE.to_json()) == replay_line(specs, "split[0]", "bitwise", CASE)


def test_certificates_are_appended(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl")
    record.append_certificates(path, [*scene.certificates()])
    assert [row["status"] for row in read(path).of("certificate")] == ["CERTIFIED", "UNCERTIFIED"]
    assert len({row["run"] for row in read(path).rows}) == 2
