"""What no status says: a head whose checks could show less than the base's is told as a fall, and by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernels import ALL
from numcheck.baseline import Baseline, load, of, text
from numcheck.baseline.file import plain
from numcheck.case import Case
from numcheck.cli import main
from numcheck.compare import Comparison, compare, told
from numcheck.compare.contracts import contract
from numcheck.compare.power import chance_of_so_few
from numcheck.compare.text import as_json, as_text
from numcheck.declared import declared
from numcheck.record import Writer, read
from numcheck.report import render_html
from numcheck.verdict import ONE_ORDER, ORDER, OutputVerdict, Rung, Status, Verdict
from tests.compare.test_compare import CASES, CONTRACT, Change, changed, fails, records, verdict, words
from tests.report import scene
from tests.report.tree import parse

RUNGS = (Rung("same process", 4), Rung("permuted order", 6), Rung("thread counts", 2))


def climbing(*rungs: Rung, only: int = 0, status: Status = Status.PASS) -> Change:
    """Bitwise verdicts with these rungs, of Cases of that D alone where one is given."""

    def change(v: Verdict, case: Case) -> Verdict:
        if v.law != "bitwise" or (only and case["D"] != only):
            return replace(v, rungs=RUNGS) if v.law == "bitwise" else v
        return replace(v, rungs=rungs, outputs={**v.outputs, "out": OutputVerdict(status)})

    return change


def against(tmp_path: Path, base: Change, head: Change) -> Comparison:
    """Through a baseline file, as a repository keeps it."""
    (tmp_path / "base.json").write_text(text(records(tmp_path / "a.jsonl", base)))
    return compare(load(tmp_path / "base.json"), records(tmp_path / "b.jsonl", head))


def test_a_gate_that_can_no_longer_fail_is_a_fall_though_the_output_passes(tmp_path: Path) -> None:
    def toothless(v: Verdict, case: Case) -> Verdict:
        return replace(v, gates=tuple(replace(g, vacuous="nothing rounds") if g.kind == "band" else g for g in v.gates))

    found = against(tmp_path, lambda v, case: v, toothless)
    (moved,) = told(found.kernels[0].power)
    assert (moved.what, moved.after, moved.cases) == ("band of out under accuracy", "could not have failed", len(CASES))
    assert words(found) == ["no", "yes", "nothing"]
    assert found.verdict == (
        "does not hold: accuracy or coverage fell: k on CPU: band of out under accuracy: could have failed, "
        "now could not have failed in 3 Cases"
    )
    back = compare(found.head, records(tmp_path / "c.jsonl"))
    assert back.held, "a gate that could fail again is no fall"


def test_of_gates_of_one_kind_that_which_could_have_failed_counts(tmp_path: Path) -> None:
    def beside(v: Verdict, case: Case) -> Verdict:
        empty = (replace(g, value=1.0, vacuous="an empty part") for g in v.gates if g.kind == "ceiling")
        return replace(v, gates=(*empty, *v.gates))

    assert against(tmp_path, lambda v, case: v, beside).held


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (climbing(RUNGS[0], RUNGS[2]), "permuted order under bitwise: climbed in 3 Cases, now not climbed"),
        (climbing(RUNGS[0], RUNGS[2], only=31), "permuted order under bitwise: climbed in 3 Cases, now in 2 Cases"),
        (climbing(RUNGS[0], Rung("permuted order", 0, note="it was left out"), RUNGS[2]), "now not climbed"),
        (climbing(Rung("same process", 1), *RUNGS[1:]), "same process under bitwise: 4 runs, now 1 run in 3 Cases"),
    ],
)
def test_a_rung_that_is_gone_or_shorter_is_a_fall(tmp_path: Path, head: Change, said: str) -> None:
    found = against(tmp_path, climbing(*RUNGS), head)
    assert said in " ".join(found.answers[1].sentences)
    assert not found.held


@pytest.mark.parametrize(
    "head",
    [
        climbing(RUNGS[0], Rung("permuted order", 0, note=ONE_ORDER), RUNGS[2]),
        climbing(*RUNGS[:2], Rung("thread counts", 1)),
        climbing(*(replace(rung, runs=rung.runs + 1) for rung in RUNGS)),
    ],
    ids=["nothing to vary", "other cores", "more"],
)
def test_a_rung_that_had_nothing_to_vary_or_another_machine_is_no_fall(tmp_path: Path, head: Change) -> None:
    assert against(tmp_path, climbing(*RUNGS), head).held


def test_the_slow_rungs_are_counted_wherever_they_were_climbed(tmp_path: Path) -> None:
    slow = Rung("fresh process", 1)
    base = climbing(*RUNGS, slow, only=31)
    assert against(tmp_path, base, climbing(*RUNGS, slow, only=257)).held
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "a.jsonl").unlink()
    found = against(tmp_path, base, climbing(*RUNGS))
    assert "k on CPU: fresh process under bitwise: climbed in 1 Case, now not climbed" in found.answers[1].sentences


def test_a_rung_that_a_flip_ended_is_told_by_the_verdict_alone(tmp_path: Path) -> None:
    head = climbing(RUNGS[0], Rung("permuted order", 1), status=Status.FAIL)
    found = against(tmp_path, climbing(*RUNGS), head)
    assert not found.kernels[0].power
    assert words(found)[1] == "yes"


def certified(path: Path, *rows: dict[str, Any]) -> Baseline:
    records(path)
    if rows:
        with Writer(path, f"20260302T100000Z-{path.stem}", clock=scene.Clock(), profile="quick") as writer:
            for row in rows:
                writer.certificate(row)
    return of(read(path))


GOOD = {"oracle": "mhc_post", "status": "CERTIFIED", "vjp": "analytic", "limit": 1e-14, "cases": 6,
        "by_output": {"out": 1e-16, "d_x": 2e-16}}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ((), "certificate of the oracle mhc_post: CERTIFIED, now none"),
        (({**GOOD, "status": "FAILED"},), "certificate of the oracle mhc_post: CERTIFIED, now FAILED"),
        (({**GOOD, "status": "UNCERTIFIED"},), "CERTIFIED, now UNCERTIFIED"),
        (({**GOOD, "vjp": "autograd"},), "gradients: analytic, now autograd"),
        (({**GOOD, "limit": 1e-3},), "limit: 1e-14, now 0.001"),
        (({**GOOD, "cases": 1},), "6 Cases, now 1 Case"),
        (({**GOOD, "by_output": {"out": 1e-16}},), "d_x: certified, now not certified"),
    ],
)
def test_an_oracle_that_is_certified_less_is_a_fall(
    tmp_path: Path, rows: tuple[dict[str, Any], ...], said: str
) -> None:
    base = certified(tmp_path / "a.jsonl", GOOD)
    (tmp_path / "base.json").write_text(text(base))
    found = compare(load(tmp_path / "base.json"), certified(tmp_path / "b.jsonl", *rows))
    assert words(found)[1] == "yes"
    assert said in found.answers[1].sentences[0]
    assert as_json(found)["certificates"][0]["loss"]
    assert compare(base, certified(tmp_path / "c.jsonl", GOOD)).held


def test_certificates_and_timings_beside_a_run_take_nothing_from_its_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn(tmp_path / "a.jsonl", "bf", "ci")
    with Writer(tmp_path / "a.jsonl", "20260302T120000Z-certify", clock=scene.Clock()) as writer:
        writer.certificate(GOOD)
    assert main(["accept", "a.jsonl", "--reason", "first figures"]) == 0
    accepted = load(tmp_path / "numcheck-baseline.json")
    assert [seen.phase for known in accepted.kernels.values() for seen in known.cases.values()].count("draw") == 2
    assert accepted.profiles == ("ci",)
    assert (accepted.certificates or {})["mhc_post"].status == "CERTIFIED"


def test_a_run_of_which_a_row_that_it_writes_is_missing_is_not_whole(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    with Writer(tmp_path / "b.jsonl", "20260302T100000Z-b", clock=scene.Clock(), profile="quick") as writer:
        writer.environment(scene.environment())
        writer.declared("kernels", "k", CONTRACT, oracle="mhc_post")
        for law in ("bitwise", "accuracy", "memory"):
            for case in CASES:
                writer.case("kernels", case, verdict(law, case), "grid", {"kernel": 1.0})
            writer.outcome("kernels", "k", law, "PASS")
        writer.end(exit=0)
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]

    def against_base(rows: list[Any]) -> Comparison:
        (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return compare(base, of(read(tmp_path / "c.jsonl")))

    def ended(code: object) -> list[Any]:
        return [{**row, "facts": {"exit": code}} if row["kind"] == "end" else row for row in rows]

    assert against_base(rows).verdict == "held: no bits changed, and nothing fell"
    gone = [row for row in rows if row["kind"] != "outcome" or row["law"] != "accuracy"]
    assert "left no outcome" in against_base(gone).verdict
    assert "has no first row" in against_base([row for row in rows if row["kind"] != "run"]).verdict
    assert "was interrupted or broke: pytest's exit 3" in against_base(ended(3)).verdict
    one = against_base(ended(1))
    assert one.held
    assert "ended with exit code 1, though no row of it fails" in one.verdict
    assert against_base(ended([3])).held


def test_a_head_that_fails_is_not_offered_as_a_baseline(tmp_path: Path) -> None:
    gpu = records(tmp_path / "a.jsonl", device="cuda")
    assert "numcheck accept RECORDS" in compare(gpu, records(tmp_path / "b.jsonl")).verdict
    broken = compare(gpu, records(tmp_path / "c.jsonl", fails)).verdict
    assert broken.endswith("the head is no baseline before it holds: k on CPU under accuracy: FAIL")


def test_a_run_whose_oracle_failed_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    certified(tmp_path / "a.jsonl", {**GOOD, "status": "FAILED"})
    assert main(["accept", "a.jsonl", "--reason", "the kernels are fine"]) == 1
    assert "the oracle mhc_post FAILED its certificate" in capsys.readouterr().out


def test_a_contract_that_is_no_longer_declared_is_a_fall(tmp_path: Path) -> None:
    assert "k on CPU: Contract: declared, now not declared" in changed(tmp_path, contract={}).answers[1].sentences
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.jsonl").unlink()
    less = {what: said for what, said in CONTRACT.items() if what != "order (bf16)"}
    assert words(changed(tmp_path, contract=less))[1] == "yes"


def test_a_promise_given_up_in_some_cases_is_a_fall(tmp_path: Path) -> None:
    """A Contract may be a function of the Case: what its lines say of all of them need not move."""

    def promising(promise: str) -> Change:
        def change(v: Verdict, case: Case) -> Verdict:
            said = promise if case["D"] > 31 else "fixed"
            return replace(v, claim=f"k gives the same bits{ORDER}out {said}, d_x fixed") if v.law == "bitwise" else v

        return change

    found = against(tmp_path, promising("fixed"), promising("any"))
    assert "k on CPU: order of out: fixed, now any in 2 Cases" in found.answers[1].sentences
    assert not found.held
    assert compare(found.head, found.base).answers[1].word == "no"


def test_a_contract_that_is_a_function_of_the_case_is_declared_as_a_whole() -> None:
    spec = next(spec for spec in ALL if spec.name == "mhc_post.eager")
    base = declared(spec)

    def order(case: Case) -> dict[str, str]:
        return {} if case.elements <= 1 else {"out": "any"}

    def rounds(case: Case) -> dict[str, str]:
        return {"out": "bf16"} if case["D"] > 100 else {"out": "fp32"}

    head = declared(spec.but(contract=replace(spec.contract, order=order, rounds=rounds)))
    moved = {line.what: line.loss for line in contract(base, head)}
    assert moved["order (fp32)"] is True
    assert "out fp32" in head["roundings (fp32)"]
    assert "out bf16" in head["roundings (fp32)"]


def drawn(path: Path, dtypes: str, profile: str, change: Change = lambda v, case: v) -> Baseline:
    """A run of named Cases and of one drawn Case for each letter: b for bf16, f for fp32."""
    named = records(path, change, profile=profile)
    seeds = {"quick": len(path.stem) * 1000 + ord(path.stem[0]) * 10_000, "ci": 0}[profile]
    cases = tuple(
        Case.of(S=2, H=1, D=5, dtype={"b": "bf16", "f": "fp32"}[letter], seed=seeds + i)
        for i, letter in enumerate(dtypes)
    )
    records(path, change, profile=profile, cases=cases, phase="draw", run=f"20260302T103000Z-{path.stem}")
    assert named.kernels
    return of(read(path))


@pytest.mark.parametrize("profile", ["ci", "quick"])
def test_a_dtype_that_is_no_longer_drawn_is_a_fall(tmp_path: Path, profile: str) -> None:
    base = drawn(tmp_path / "a.jsonl", "bf" * 8, profile)
    (tmp_path / "base.json").write_text(text(base))
    found = compare(load(tmp_path / "base.json"), drawn(tmp_path / "b.jsonl", "f" * 16, profile))
    said = " ".join(found.answers[1].sentences)
    assert "dtype bf16 drawn under accuracy: 8 of 16 Cases, now 0 of 16 Cases" in said or (
        "dtype bf16 drawn: 24 of 48 Cases, now 0 of 48 Cases" in said
    )
    assert not found.held
    others = compare(base, drawn(tmp_path / "c.jsonl", "fb" * 8, profile))
    assert others.answers[1].word == "no"
    assert ("the head draws others" in " ".join(others.answers[2].sentences)) is (profile == "ci")


def test_a_draw_that_comes_again_in_every_run_and_did_not_is_a_fall(tmp_path: Path) -> None:
    base = drawn(tmp_path / "a.jsonl", "bf" * 8, "ci")
    less = drawn(tmp_path / "b.jsonl", "bf" * 7, "ci")
    found = compare(base, less)
    said = "k on CPU: drawn Cases under accuracy: 16 Cases, the same in every run, now 14 of them"
    assert said in found.answers[1].sentences
    # A slower machine that says so has not come to them, and has lost nothing.
    (key, known), = less.kernels.items()  # fmt: skip
    stopped = compare(base, replace(less, kernels={key: replace(known, stopped=tuple(known.laws))}))
    assert stopped.held
    assert "2 of 16 Cases that the base drew" in " ".join(stopped.answers[2].sentences)


def test_draws_that_became_small_are_a_fall(tmp_path: Path) -> None:
    """Of other sizes alone, as a Contract that is legal for less would have them."""

    def sized(path: Path, sizes: tuple[int, ...]) -> Baseline:
        cases = tuple(Case.of(S=2, H=1, D=d, seed=i + sizes[0] * 100) for i, d in enumerate(sizes))
        records(path, run=f"20260302T103000Z-{path.stem}")
        return records(path, phase="draw", cases=cases)

    base = sized(tmp_path / "a.jsonl", (9, 70, 600, 5000) * 6)
    small = compare(base, sized(tmp_path / "b.jsonl", (1, 2, 3, 4) * 6))
    said = [m.what for m in small.kernels[0].power]
    assert said == ["size D 8 and more drawn"]
    assert not small.held
    assert not compare(base, sized(tmp_path / "c.jsonl", (11, 300, 900, 2000) * 6)).kernels[0].power


def test_other_draws_and_draws_that_a_failure_ended_are_no_fall_of_draws(tmp_path: Path) -> None:
    base = drawn(tmp_path / "a.jsonl", "bf" * 8, "quick")
    luck = drawn(tmp_path / "b.jsonl", "bfffffbfffbfffbf", "quick")
    assert not compare(base, luck).kernels[0].power
    cut = drawn(tmp_path / "c.jsonl", "f", "ci", fails)
    assert not [
        m for m in compare(drawn(tmp_path / "d.jsonl", "bf" * 8, "ci"), cut).kernels[0].power if m.law == "accuracy"
    ]


def test_the_chance_of_so_few_is_fishers() -> None:
    # Of 8 marked in 32, none in one half: C(16, 8) / C(32, 8).
    assert chance_of_so_few(0, 16, 8, 16) == pytest.approx(12870 / 10518300)
    assert chance_of_so_few(8, 16, 8, 16) == pytest.approx(0.5, abs=0.15)
    assert chance_of_so_few(0, 10**15, 10**15, 2 * 10**15) < 1e-9


def test_a_failing_draw_that_nobody_repeats_is_not_fixed(tmp_path: Path) -> None:
    """Where the draws come again, the Case that failed has to be among them."""
    base = drawn(tmp_path / "a.jsonl", "bf", "ci", lambda v, case: fails(v, case) if case["S"] == 2 else v)
    head = drawn(tmp_path / "b.jsonl", "bf", "ci")
    assert {claim.state for claim in compare(base, head).claims} == {"fixed"}
    (key, known), = head.kernels.items()  # fmt: skip
    kept = {name: seen for name, seen in known.cases.items() if seen.phase != "draw"}
    found = compare(base, replace(head, kernels={key: replace(known, cases=kept)}))
    assert {claim.state for claim in found.claims} == {"no longer judged"}
    assert not found.held


OLD = ("rungs", "drawn", "oracle", "certificates", "profiles")


def older(data: Any) -> Any:
    """A baseline as it was written before coverage was kept."""
    if isinstance(data, dict):
        return {key: older(value) for key, value in data.items() if key not in OLD}
    return [older(value) for value in data] if isinstance(data, list) else data


def test_a_baseline_of_before_still_reads_and_claims_no_more_than_it_knows(tmp_path: Path) -> None:
    new = certified(tmp_path / "a.jsonl", GOOD)
    (tmp_path / "old.json").write_text(json.dumps(older(plain(new))))
    old = load(tmp_path / "old.json")
    for base, head in ((old, new), (new, old), (old, old)):
        assert compare(base, head).held


def broken_at_once(path: Path, *environments: str) -> Baseline:
    """A run of which a test broke before its environment was known."""
    with Writer(path, f"20260302T110000Z-{path.stem}", clock=scene.Clock(), profile="quick") as writer:
        writer.outcome("kernels", "k", "accuracy", "ERROR", reason="no module")
        for device in environments:
            writer.environment(scene.environment(device))
            for case in CASES:
                writer.case("kernels", case, verdict("bitwise", case), "grid")
    return of(read(path))


@pytest.mark.parametrize("environments", [(), ("cpu",)], ids=["nothing else ran", "another law ran"])
def test_an_error_before_its_device_is_known_is_its_kernels(tmp_path: Path, environments: tuple[str, ...]) -> None:
    base = records(tmp_path / "a.jsonl", laws=("bitwise", "accuracy"))
    found = compare(base, broken_at_once(tmp_path / "b.jsonl", *environments))
    assert [k.subject.name for k in found.kernels] == ["k on CPU"]
    assert not found.added
    assert not found.gone
    assert "accuracy, over all Cases: PASS, now ERROR" in " ".join(found.answers[1].sentences)


def test_the_verdict_names_what_is_known_and_nothing_else(tmp_path: Path) -> None:
    flips: Callable[[Verdict, Case], Verdict] = lambda v, case: replace(v, hashes={**v.hashes, "out": "0" * 16})  # noqa: E731
    found = changed(tmp_path, flips)
    assert found.verdict == "does not hold: bits changed: k on CPU: out in 3 of 3 Cases"
    assert found.answers[0].sentences[-1] == "a new baseline needs a written reason: numcheck accept"
    head = records(tmp_path / "c.jsonl", lambda v, case: flips(fails(v, case), case))
    both = compare(found.base, head)
    assert both.verdict.startswith(
        "does not hold: accuracy or coverage fell: k on CPU: accuracy, over all Cases: PASS,"
    )
    assert "; bits changed: k on CPU: out in 3 of 3 Cases" in both.verdict
    assert "missing" not in both.verdict
    advice = both.answers[0].sentences[-1]
    assert advice == "the head cannot be accepted as a new baseline before it holds: k on CPU under accuracy: FAIL"
    page = parse(render_html(read(tmp_path / "c.jsonl"), found.base))
    assert "numcheck accept" not in page.one("section", id="answers").text


def test_a_repair_may_change_bits_and_nothing_else_may_fall(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl", fails)
    flip: Change = lambda v, case: replace(v, hashes={**v.hashes, "out": "0" * 16})  # noqa: E731
    head = records(tmp_path / "b.jsonl", flip)
    found = compare(base, head, "main")
    assert found.held
    assert found.verdict == (
        "fixed: k on CPU under accuracy failed at main and holds here, and nothing fell; "
        "its bits changed, as a repair may"
    )
    (claim,) = found.claims
    assert (claim.output, claim.cases, claim.held, claim.case) == ("out", 3, 3, CASES[0])
    assert f"fixed: {claim.told('main')}" in as_text(found).splitlines()
    page = parse(render_html(read(tmp_path / "b.jsonl"), found))
    assert page.one("h1").text == "Fixed what failed at main"
    assert "does not hold" not in page.one("p", cls="lede").text
    # The same change is no fix where it also promises less, and nothing is fixed where nothing failed.
    less = compare(base, records(tmp_path / "c.jsonl", contract={**CONTRACT, "order (bf16)": "out any"}), "main")
    assert not less.held
    assert "order (bf16): out fixed, now out any" in less.verdict
    assert "not shown to fix anything" in compare(head, head, "main").verdict
