"""Base against head: each kind of change is named in its place, and nothing else is."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from numcheck.baseline import Baseline, Figure, Known, Seen, load, narrowed, of, text, within
from numcheck.baseline.file import plain
from numcheck.baseline.gather import machine
from numcheck.case import Case
from numcheck.cli import main
from numcheck.compare import Comparison, compare, told
from numcheck.compare.text import as_json, as_text
from numcheck.errors import BadRecords
from numcheck.evidence import Evidence
from numcheck.gate import Gate
from numcheck.record import Writer, read
from numcheck.report import render_html, render_markdown
from numcheck.selection import Kernel
from numcheck.verdict import OutputVerdict, Status, Verdict
from tests.report import scene
from tests.report.tree import parse

CASES = tuple(Case.of(S=1, H=1, D=d, seed=d) for d in (31, 257, 2053))
CONTRACT = {"roundings (bf16)": "out bf16", "order (bf16)": "out fixed"}
Change = Callable[[Verdict, Case], Verdict]


def gates(case: Case) -> tuple[Gate, ...]:
    return (
        Gate("ceiling", "out", 0.5, 1.0, "worst case"),
        Gate("band", "out", 1.0, 1.5, "relL2 over predicted", 0.01, 1 / 1.5),
    )


def verdict(law: str, case: Case) -> Verdict:
    outputs = {"out": OutputVerdict(Status.PASS), "d_x": OutputVerdict(Status.PASS)}
    hashes = scene.hashes("k", case, ("out", "d_x"))
    figures = {"measured": 64, "formula": 64} if law == "memory" else {}
    found = gates(case) if law == "accuracy" else ()
    return Verdict("k", law, "claim", outputs, found, hashes=hashes, evidence=Evidence(), figures=figures)


def records(
    path: Path,
    change: Change = lambda v, case: v,
    *,
    spec: str = "k",
    cases: tuple[Case, ...] = CASES,
    device: str = "cpu",
    contract: dict[str, str] = CONTRACT,
    phase: str = "grid",
    seconds: float = 1.0,
    unavailable: str = "",
    laws: tuple[str, ...] = ("bitwise", "accuracy", "memory"),
    run: str = "",
    profile: str = "quick",
    specs: str = "kernels",
) -> Baseline:
    """One run of one kernel under three laws, each verdict as `change` makes it."""
    run = run or f"20260302T093000Z-{path.stem}"
    with Writer(path, run, clock=scene.Clock(), profile=profile) as writer:
        writer.environment(scene.environment(device))
        writer.declared(specs, spec, contract, oracle="mhc_post")
        for law in laws:
            for case in cases:
                judged = replace(change(verdict(law, case), case), spec=spec)
                writer.case(specs, case, judged, phase, {"kernel": seconds * (1 + case.seed / 1e6)})
        if unavailable:
            writer.unavailable(specs, spec, unavailable, "needs a GPU", "gpu")
    return of(read(path))


def changed(tmp_path: Path, change: Change = lambda v, case: v, **facts: Any) -> Comparison:
    return compare(records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl", change, **facts))


def words(comparison: Comparison) -> list[str]:
    return [answer.word for answer in comparison.answers]


def test_the_same_run_twice_says_nothing(tmp_path: Path) -> None:
    found = changed(tmp_path)
    assert words(found) == ["no", "no", "nothing"]
    assert found.held
    assert found.kernels[0].quiet
    assert as_text(found).endswith("held: no bits changed, and nothing fell")


def test_other_bits_are_named_by_output_and_case_and_are_no_fall(tmp_path: Path) -> None:
    def flip(v: Verdict, case: Case) -> Verdict:
        return replace(v, hashes={**v.hashes, "out": "0" * 16}) if case["D"] > 31 else v

    found = changed(tmp_path, flip)
    assert words(found) == ["yes", "no", "nothing"]
    (bits,) = found.kernels[0].changed
    assert (bits.output, bits.same, [c["D"] for c in bits.changed]) == ("out", 1, [257, 2053])
    assert not found.held


def test_bits_whose_order_is_free_are_not_compared(tmp_path: Path) -> None:
    def free(v: Verdict, case: Case) -> Verdict:
        outputs = {**v.outputs, "out": OutputVerdict(Status.ORDER_DEPENDENT, "differs")}
        hashes = {**v.hashes, "out": f"{id(v):016x}"}
        return replace(v, outputs=outputs, hashes=hashes) if v.law == "bitwise" else replace(v, hashes=hashes)

    base = records(tmp_path / "a.jsonl", free)
    found = compare(base, records(tmp_path / "b.jsonl", free))
    assert words(found)[0] == "no"
    assert [b.output for b in found.kernels[0].bits if b.free] == ["out"]


def test_bits_promised_in_any_order_are_not_compared_where_nothing_tried_other_orders(tmp_path: Path) -> None:
    def other(v: Verdict, case: Case) -> Verdict:
        return replace(v, hashes={**v.hashes, "out": "0" * 16})

    loose = {**CONTRACT, "order (fp32)": "out any, d_x fixed"}
    base = records(tmp_path / "a.jsonl", laws=("accuracy",), contract=loose)
    found = compare(base, records(tmp_path / "b.jsonl", other, laws=("accuracy",), contract=loose))
    assert words(found)[0] == "no"
    assert [(b.output, b.free) for b in found.kernels[0].bits] == [("d_x", False), ("out", True)]
    # The promise of another dtype says nothing of this one, and bits that kept still in every order are compared.
    fixed = {**CONTRACT, "order (bf16)": "out any"}
    base = records(tmp_path / "c.jsonl", laws=("accuracy",), contract=fixed)
    assert words(compare(base, records(tmp_path / "d.jsonl", other, laws=("accuracy",), contract=fixed)))[0] == "yes"
    base = records(tmp_path / "e.jsonl", contract=loose)
    assert words(compare(base, records(tmp_path / "f.jsonl", other, contract=loose)))[0] == "yes"


@pytest.mark.parametrize(
    ("status", "loss"),
    [(Status.FAIL, True), (Status.ERROR, True), (Status.VACUOUS, True), (Status.ORDER_DEPENDENT, True)],
)
def test_a_verdict_that_says_less_is_a_loss_and_the_way_back_is_none(
    tmp_path: Path, status: Status, loss: bool
) -> None:
    def worse(v: Verdict, case: Case) -> Verdict:
        return replace(v, outputs={**v.outputs, "out": OutputVerdict(status, "why")}) if v.law == "bitwise" else v

    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl", worse)
    assert words(compare(base, head))[1] == "yes"
    moved = compare(base, head).kernels[0].claims
    assert [(m.law, m.before, m.after, m.loss) for m in moved] == [("bitwise", "PASS", status.name, loss)]
    assert words(compare(head, base))[1] == "no"


def test_an_error_beyond_its_spread_is_named_and_one_within_is_not(tmp_path: Path) -> None:
    def by(factor: float) -> Change:
        def grow(v: Verdict, case: Case) -> Verdict:
            grown = (replace(g, value=g.value * factor) if g.kind == "band" else g for g in v.gates)
            return replace(v, gates=tuple(grown))

        return grow

    assert changed(tmp_path, by(1.05)).kernels[0].quiet
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "b.jsonl").unlink()
    found = changed(tmp_path, by(1.2))
    assert words(found) == ["no", "yes", "nothing"]
    assert {m.what for m in found.kernels[0].gates} == {"band of out under accuracy"}


@pytest.mark.parametrize("kept", [(), ("ceiling",)])
def test_a_gate_that_is_no_longer_there_is_a_loss_of_coverage(tmp_path: Path, kept: tuple[str, ...]) -> None:
    def fewer(v: Verdict, case: Case) -> Verdict:
        return replace(v, gates=tuple(g for g in v.gates if g.kind in kept))

    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl", fewer)
    found = compare(base, head)
    assert words(found)[1] == "yes"
    assert {(m.what, m.after, m.loss) for m in found.kernels[0].gates} == {
        (f"{kind} of out under accuracy", "no such gate", True) for kind in ("ceiling", "band") if kind not in kept
    }
    assert words(compare(head, base))[1] == "no"


def test_a_loosened_limit_is_a_loss_and_a_tightened_one_is_only_said(tmp_path: Path) -> None:
    def limits(v: Verdict, case: Case) -> Verdict:
        return replace(v, gates=tuple(replace(g, limit=1.2) if g.kind == "ceiling" else g for g in v.gates))

    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl", limits)
    (moved,) = told(compare(base, head).kernels[0].limits)
    assert (moved.what, moved.loss, moved.cases) == ("limit of ceiling of out under accuracy", True, len(CASES))
    assert not any(moved.loss for moved in compare(head, base).kernels[0].limits)


def test_a_contract_that_moved_is_shown_with_both_sides(tmp_path: Path) -> None:
    found = changed(tmp_path, contract={**CONTRACT, "order (bf16)": "out any"})
    (moved,) = found.kernels[0].contract
    assert (moved.what, moved.before, moved.after) == ("order (bf16)", "out fixed", "out any")
    # A promise that is weaker is a fall; any other line is said on the first screen all the same.
    assert words(found)[1] == "yes"
    (tmp_path / "b.jsonl").unlink()
    (tmp_path / "a.jsonl").unlink()
    found = changed(tmp_path, contract={**CONTRACT, "order (bf16)": "out single", "roundings (bf16)": "none"})
    assert words(found)[1] == "no"
    assert found.answers[1].sentences == ("k on CPU promises otherwise: roundings (bf16), order (bf16)",)


def test_of_a_contract_line_only_what_moved_is_told(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl", contract={"order (bf16)": "out single, mass fixed, d_x any"})
    head = records(tmp_path / "b.jsonl", contract={"order (bf16)": "out single, mass any, d_x any"})
    assert "order (bf16): mass fixed, now mass any" in as_text(compare(base, head))


@pytest.mark.parametrize(
    ("what", "more", "less"),
    [
        ("dtypes", "fp32, bf16", "bf16"),
        ("outputs", "out, d_x", "out"),
        ("compiled", "the same bits", "not claimed"),
        ("flat caps", "out 0.001, d_x 0.5", "out 0.001"),
        ("flat caps", "out 0.001", "out 0.01"),
        ("flat caps", "out 0.001", "none"),
        ("addresses", "64 bits", "32 bits"),
        ("agrees", "d_q with stock, d_kv with stock", "d_q with stock"),
    ],
)
def test_a_contract_line_that_promises_less_is_a_loss(tmp_path: Path, what: str, more: str, less: str) -> None:
    base = records(tmp_path / "a.jsonl", contract={**CONTRACT, what: more})
    head = records(tmp_path / "b.jsonl", contract={**CONTRACT, what: less})
    assert [(m.what, m.loss) for m in compare(base, head).kernels[0].contract] == [(what, True)]
    assert [(m.what, m.loss) for m in compare(head, base).kernels[0].contract] == [(what, False)]


def test_a_promise_of_every_dtype_is_told_once(tmp_path: Path) -> None:
    lines = {f"order ({dtype})": "out fixed, d_x any" for dtype in ("fp32", "bf16")}
    base = records(tmp_path / "a.jsonl", contract={**lines, "roundings (fp32)": "none"})
    now = {what: said.replace("fixed", "any") for what, said in lines.items()}
    found = compare(base, records(tmp_path / "b.jsonl", contract={**now, "roundings (fp32)": "out bf16"}))
    assert "  order (fp32, bf16): out fixed, now out any" in as_text(found).splitlines()
    assert len(found.kernels[0].contract) == 3
    assert found.answers[1].sentences[0] == "k on CPU: order (fp32, bf16): out fixed, now out any"


def fails(v: Verdict, case: Case) -> Verdict:
    """Both gates of `out` beyond their limits, and so its verdict."""
    if v.law != "accuracy":
        return v
    outputs = {**v.outputs, "out": OutputVerdict(Status.FAIL, "beyond")}
    return replace(v, outputs=outputs, gates=tuple(replace(g, value=9.0) for g in v.gates))


def test_an_output_that_fell_is_told_by_its_verdict_and_then_by_its_gates_together(tmp_path: Path) -> None:
    found = changed(tmp_path, fails)
    assert found.answers[1].sentences == (
        "k on CPU: accuracy, over all Cases: PASS, now FAIL",
        "k on CPU: out under accuracy: PASS, now FAIL in 3 Cases",
    )
    lines = [line.split(" in {")[0].strip() for line in as_text(found).splitlines() if line.startswith("  ")]
    assert lines[-3:] == [
        "accuracy, over all Cases: PASS, now FAIL",
        "out under accuracy: PASS, now FAIL",
        "ceiling of out under accuracy (also band): 0.5 (at most 1), now 9 (at most 1)",
    ]
    assert '"D":31}' in as_text(found).splitlines()[-4], "the smallest Case stands for all"


def test_what_fails_on_both_sides_is_no_fall_and_is_said(tmp_path: Path) -> None:
    base, head = records(tmp_path / "a.jsonl", fails), records(tmp_path / "b.jsonl", fails)
    found = compare(base, head)
    assert found.held
    assert found.answers[1].sentences == ("k on CPU: accuracy: FAIL, as on the base's side",)
    assert found.verdict.endswith("1 claim did not hold on either side")
    new = compare(replace(base, kernels={}), head)
    assert not new.judged
    both = replace(head, kernels={**head.kernels, **records(tmp_path / "c.jsonl", fails, spec="other").kernels})
    added = compare(base, both)
    assert added.answers[1].sentences[0] == "other on CPU, which the base does not have: accuracy FAIL"
    assert added.answers[1].word == "yes"
    assert not added.held


def test_draws_that_a_failure_cut_short_were_not_run(tmp_path: Path) -> None:
    def run(name: str, cases: tuple[Case, ...], change: Change = lambda v, case: v) -> Baseline:
        named, drawn = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.draws.jsonl"
        records(named, change, laws=("accuracy",))
        records(drawn, change, laws=("accuracy",), cases=cases, phase="draw")
        return of(read([named, drawn]))

    draws = tuple(Case.of(S=1, H=1, D=d, seed=d) for d in (7, 8, 9))
    base = run("base", draws)
    assert words(compare(base, run("same", draws)))[2] == "nothing"
    cut = compare(base, run("cut", draws[:1], fails)).answers[2]
    assert cut.sentences == (
        "k on CPU under accuracy: 2 of 3 Cases that the base drew: after a failure nothing more is drawn",
    )
    # A profile that draws anew each time draws other Cases: of their number only that it is far smaller says something.
    anew = tuple(Case.of(S=2, H=1, D=d) for d in (5, 6))
    assert words(compare(base, run("anew", anew)))[2] == "nothing"
    few = compare(base, run("few", anew[:1])).answers[2]
    assert few.sentences == ("k on CPU under accuracy: 3 Cases drawn by the base, 1 by the head",)


def test_the_page_says_held_of_the_run_and_of_the_comparison(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl", lambda v, case: replace(v, hashes={**v.hashes, "out": "0" * 16}))
    page = parse(render_html(read(tmp_path / "b.jsonl"), base))
    assert page.one("h1").text == "Did not hold against the base"
    assert "Against the base it does not hold: bits changed" in page.one("p", cls="lede").text
    assert not page.all("header", cls="v-held")
    same = parse(render_html(read(tmp_path / "a.jsonl"), base))
    assert same.one("h1").text == "Held"
    assert "Against the base it held: no bits changed" in same.one("p", cls="lede").text
    assert "1 kernel with no change seen in 3 Cases" in same.one("section", id="answers").text


def test_markdown_has_a_replay_line_for_each_output_that_moved(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl", lambda v, case: fails(replace(v, hashes={**v.hashes, "d_x": "0" * 16}), case))
    told = render_markdown(read(tmp_path / "b.jsonl"), base, brief=True)
    assert "- Other bits: d\\_x in " in told
    typed = [shlex.split(line) for line in told.splitlines() if line.startswith("numcheck replay")]
    assert [(t[:2], t[-2], Case.from_json(json.loads(t[-1]))) for t in typed] == [
        (["numcheck", "replay"], law, CASES[0]) for law in ("accuracy", "bitwise")
    ]


def test_more_memory_is_a_loss(tmp_path: Path) -> None:
    def more(v: Verdict, case: Case) -> Verdict:
        return replace(v, figures={"measured": 128, "formula": 128}) if v.law == "memory" else v

    found = changed(tmp_path, more)
    assert {m.what for m in found.kernels[0].losses} == {"workspace formula", "workspace measured"}


def test_named_cases_that_vanish_are_a_fall_and_drawn_ones_are_not(tmp_path: Path) -> None:
    assert words(changed(tmp_path, cases=CASES[:2])) == ["no", "yes", "something"]
    (tmp_path / "b.jsonl").unlink()
    drawn = records(tmp_path / "c.jsonl", phase="draw")
    found = compare(drawn, records(tmp_path / "b.jsonl", cases=CASES[:2]))
    assert words(found) == ["no", "no", "something"]
    assert found.answers[2].sentences[0] == "k on CPU under bitwise: 1 of 3 Cases that the base drew"


def test_a_law_that_judges_fewer_cases_is_a_fall_though_another_law_still_runs_them(tmp_path: Path) -> None:
    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl")
    (key, known), = head.kernels.items()  # fmt: skip

    def without(seen: Seen) -> Seen:
        kept = {law: status for law, status in seen.status.items() if law != "accuracy"}
        return replace(seen, status=kept, outputs={law: seen.outputs[law] for law in kept}, gates={})

    cases = {name: seen if seen.case["D"] == 31 else without(seen) for name, seen in known.cases.items()}
    found = compare(base, replace(head, kernels={key: replace(known, cases=cases)}))
    assert words(found)[1] == "yes"
    assert not found.held
    (moved,) = told(found.kernels[0].cases)
    assert (moved.what, moved.before, moved.after, moved.cases) == ("accuracy of a named Case", "PASS", "not judged", 2)


def test_cases_that_the_base_does_not_have_are_said_where_nothing_changed(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl", cases=CASES[:2])
    found = compare(base, records(tmp_path / "b.jsonl"))
    assert found.answers[0].sentences == ("2 of 3 Cases compared, 1 not in the base",)
    assert "1 kernel on both sides, 1 with no change seen in 2 Cases" in as_text(found)
    assert "k on CPU: 1 named Case no longer runs" in compare(found.head, base).answers[1].sentences


def test_a_kernel_that_is_gone_is_a_fall_but_not_where_nothing_ran_on_its_device(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    other = records(tmp_path / "b.jsonl", spec="other")
    assert words(compare(base, other))[1] == "yes"
    gpu = records(tmp_path / "c.jsonl", device="cuda")
    apart = compare(base, gpu)
    assert words(apart) == ["unknown", "unknown", "something"]
    assert not apart.held
    assert "nothing was compared" in as_text(apart)
    assert apart.answers[0].sentences[0].startswith("the base ran on CPU, the head on NVIDIA H200: ")


def test_a_new_skip_is_a_fall_of_coverage_and_is_listed_as_not_run(tmp_path: Path) -> None:
    found = changed(tmp_path, unavailable="edges")
    assert words(found) == ["no", "yes", "something"]
    assert "needs a GPU" in " ".join(found.answers[2].sentences)


def test_a_kernel_that_cannot_run_at_all_is_told_once_and_has_no_bits_to_compare(tmp_path: Path) -> None:
    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl", cases=(), unavailable="")
    (key, known), = base.kernels.items()  # fmt: skip
    gone = Known(known.subject, skipped=dict.fromkeys(known.laws, "needs a GPU"))
    found = compare(base, replace(head, kernels={key: gone}))
    assert words(found) == ["unknown", "yes", "something"]
    assert [(m.what, m.before, m.after) for m in found.kernels[0].losses] == [
        (law, "PASS", "could not run: needs a GPU") for law in known.laws
    ]
    assert found.kernels[0].incomparable == ""
    back = compare(replace(head, kernels={key: gone}), base)
    assert words(back) == ["unknown", "no", "nothing"]
    assert {m.what for m in back.kernels[0].skips} == set(known.laws)


def test_bits_from_other_versions_are_not_compared_and_that_is_said(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    (key, known), = base.kernels.items()  # fmt: skip
    moved = replace(base, kernels={key: replace(known, machine={**known.machine, "torch": "2.12.0"})})
    found = compare(moved, records(tmp_path / "b.jsonl", lambda v, case: replace(v, hashes={"out": "0" * 16})))
    assert words(found)[0] == "unknown"
    assert "torch 2.12.0 against 2.13.0+cpu" in found.kernels[0].incomparable
    assert found.kernels[0].time is None
    # Another machine is no failure, and no proof either.
    assert found.held
    assert as_text(found).endswith("held but for bits: bits not compared")
    assert as_json(found)["bits_compared"] is False


@pytest.mark.parametrize("fact", ["driver", "cuda", "cudnn", "cudnn-frontend"])
def test_what_compiles_for_a_gpu_is_part_of_its_machine(tmp_path: Path, fact: str) -> None:
    base = records(tmp_path / "a.jsonl", device="cuda")
    (key, known), = base.kernels.items()  # fmt: skip
    moved = replace(base, kernels={key: replace(known, machine={**known.machine, fact: "other"})})
    assert known.machine[fact] in compare(moved, base).kernels[0].incomparable


def test_a_contract_that_was_superseded_is_no_promise_any_more(tmp_path: Path) -> None:
    records(tmp_path / "a.jsonl", contract={**CONTRACT, "order (fp32)": "out any"})
    (known,) = records(tmp_path / "a.jsonl", run="20260302T103000Z-b").kernels.values()
    assert known.declared == CONTRACT


def test_a_time_ratio_has_an_interval_that_holds_it(tmp_path: Path) -> None:
    time = changed(tmp_path, seconds=1.5).kernels[0].time
    assert time is not None
    assert time.clear
    assert time.low <= 1.5 <= time.high < 1.51


@pytest.mark.parametrize("seconds", [5e-324, 1e308])
def test_seconds_that_nobody_measured_end_no_comparison(tmp_path: Path, seconds: float) -> None:
    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl")
    (key, known), = head.kernels.items()  # fmt: skip
    extremes = iter((seconds, 1.0, 1e308))
    cases = {k: replace(s, seconds=dict.fromkeys(s.seconds, next(extremes))) for k, s in known.cases.items()}
    time = compare(base, replace(head, kernels={key: replace(known, cases=cases)})).kernels[0].time
    assert time is not None
    assert math.isfinite(time.high)


def test_the_interval_of_three_cases_is_students_and_laws_of_a_case_are_one_figure(tmp_path: Path) -> None:
    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl")
    (key, known), = head.kernels.items()  # fmt: skip
    factors = dict(zip(known.cases, (1.0, 1.2, 1.44), strict=True))
    cases = {
        name: replace(seen, seconds={law: s * factors[name] for law, s in seen.seconds.items()})
        for name, seen in known.cases.items()
    }
    time = compare(base, replace(head, kernels={key: replace(known, cases=cases)})).kernels[0].time
    assert time is not None
    assert time.cases == 3
    assert time.ratio == pytest.approx(1.2)
    # Student's t with 2 degrees of freedom at 95 %, from any table; of a normal it would be 1.96.
    assert time.high / time.ratio == pytest.approx(1.2 ** (4.302653 / 3**0.5))
    assert not time.clear


def test_a_kernel_of_which_only_the_time_moved_is_told_where_times_are(tmp_path: Path) -> None:
    found = changed(tmp_path, seconds=1.5)
    assert found.kernels[0].quiet
    assert "k on CPU 1.50 [1.50 to 1.50]" in as_text(found)
    head = read(tmp_path / "b.jsonl")
    assert "| k on CPU | 1.5 | 1.5 to 1.5 | 3 |" in render_markdown(head, load(tmp_path / "a.jsonl"))


def test_a_part_is_compared_with_the_same_part(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    head = records(tmp_path / "b.jsonl")
    (key, known), = head.kernels.items()  # fmt: skip
    part = replace(head, kernels={key: replace(known, laws={"bitwise": "PASS"}, cases=dict(known.cases))})
    assert words(compare(base, part))[1] == "yes"
    assert words(compare(narrowed(base, part), part))[1] == "no"


def test_a_run_of_one_module_is_compared_with_that_module(tmp_path: Path) -> None:
    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl")
    (known,) = base.kernels.values()
    other = replace(known, subject=replace(known.subject, kernel=Kernel("others.py", "k")))
    both = replace(base, kernels={**base.kernels, other.subject.key: other})
    assert words(compare(both, head))[1] == "yes"
    assert words(compare(within(both, ("kernels",)), head)) == ["no", "no", "nothing"]


def test_a_baseline_file_gives_back_what_it_was_made_from(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    path = tmp_path / "baseline.json"
    path.write_text(text(base))
    assert text(load(path)) == text(base)
    assert compare(load(path), base).held
    assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no row"),
        ("hello", "not a numcheck records file"),
        ('{"format":"other"}', "not a numcheck baseline"),
        ('{"format":"numcheck baseline","version":9}', "install a newer numcheck"),
        ('{"format":"numcheck baseline","version":1,"kernels":[{}]}', "a damaged baseline"),
        ('{"format":"numcheck baseline","version":1,', "neither records nor a baseline"),
    ],
)
def test_a_file_that_is_no_baseline_is_a_clear_error(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    if not content:
        assert said in " ".join(load(path).unfinished)
        return
    with pytest.raises(BadRecords, match=said):
        load(path)


@pytest.mark.parametrize("place", ["laws", "status", "outputs"])
def test_a_status_that_is_none_is_said_when_the_file_is_read(tmp_path: Path, place: str) -> None:
    data = plain(records(tmp_path / "a.jsonl"))
    (kernel,) = data["kernels"]
    at = kernel if place == "laws" else kernel["cases"][0]
    at[place] = {"bitwise": {"out": "PASSED"} if place == "outputs" else "PASSED"}
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(BadRecords, match=r"'PASSED' of .* under bitwise; allowed: PASS, .*; restore it"):
        load(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("version",), True),
        (("when",), 3),
        (("accepted",), [{"reason": 1, "when": "", "commit": "", "changed": ""}]),
        (("kernels", 0, "place"), ["0", "CPU"]),
        (("kernels", 0, "machine"), {"torch": 2}),
        (("kernels", 0, "skipped"), {"bitwise": None}),
        (("kernels", 0, "declared"), {"order (fp32)": 1}),
        (("kernels", 0, "cases", 0, "bytes"), ["64", 64]),
        (("kernels", 0, "cases", 0, "hashes"), {"bitwise": {"out": 7}}),
        (("kernels", 0, "cases", 0, "gates"), {"accuracy out cieling": [1.0, 2.0]}),
        (("kernels", 0, "cases", 0, "gates"), {"accuracy out ceiling": [10**400, 2.0]}),
    ],
)
def test_a_tampered_baseline_is_said_when_it_is_read(tmp_path: Path, place: tuple[Any, ...], value: Any) -> None:
    data = json.loads(text(records(tmp_path / "a.jsonl")))
    at = data
    for step in place[:-1]:
        at = at[step]
    at[place[-1]] = value
    (tmp_path / "x.json").write_text(json.dumps(data))
    with pytest.raises(BadRecords, match=r"x\.json: "):
        load(tmp_path / "x.json")


def test_an_output_whose_name_has_spaces_comes_back(tmp_path: Path) -> None:
    def named(v: Verdict, case: Case) -> Verdict:
        return replace(v, gates=tuple(replace(g, output="grad of x") for g in v.gates))

    base = records(tmp_path / "a.jsonl", named)
    (tmp_path / "x.json").write_text(text(base))
    assert compare(load(tmp_path / "x.json"), base).held
    assert text(load(tmp_path / "x.json")) == text(base)


def test_a_torn_base_is_said(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "a.jsonl").write_text("".join(lines[:-1]))
    said = compare(load(tmp_path / "a.jsonl"), base).answers[2].sentences
    assert any(line.startswith("on the base's side: ") and "no end row" in line for line in said)


def torn(path: Path) -> Baseline:
    """A run that judged its Cases twice, with other bits of `out` the second time."""
    flips = iter(range(10**6))
    return records(path, lambda v, case: replace(v, hashes={**v.hashes, "out": f"{next(flips):016x}"}), cases=CASES * 2)


def test_a_head_with_two_hashes_of_one_case_has_other_bits(tmp_path: Path) -> None:
    head = torn(tmp_path / "a.jsonl")
    assert words(compare(head, head))[0] == "yes"
    assert "out has 2 different hashes" in compare(head, head).answers[0].sentences[0]
    assert words(compare(head, replace(head, torn=())))[0] == "unknown"
    (tmp_path / "b.json").write_text(text(head))
    assert load(tmp_path / "b.json").torn == head.torn


def test_text_and_json_hold_what_moved(tmp_path: Path) -> None:
    found = changed(tmp_path, lambda v, case: replace(v, hashes={**v.hashes, "out": "0" * 16}))
    assert "out: other bits in 3 of 3 Cases" in as_text(found)
    (kernel,) = as_json(found)["kernels"]
    assert kernel["bits"][0]["changed"][0]["sizes"]["D"] == 31
    ceiling = {"law": "accuracy", "output": "out", "kind": "ceiling", "cases": 3, "then": 2.0, "now": 2.0}
    assert ceiling in kernel["headroom"]


def test_an_output_without_bits_is_unknown_and_not_the_same(tmp_path: Path) -> None:
    """A kernel that no longer runs in some Case gives nothing to hash there."""

    def dead(v: Verdict, case: Case) -> Verdict:
        return replace(v, hashes={}) if case["D"] == 257 else v

    found = changed(tmp_path, dead)
    assert words(found) == ["unknown", "no", "nothing"]
    assert not found.held
    assert "k on CPU: out has no bits in 1 Case that the base hashed" in found.answers[0].sentences
    assert not found.kernels[0].quiet
    assert [(b.output, b.same, len(b.unhashed)) for b in found.kernels[0].bits] == [("out", 2, 1), ("d_x", 2, 1)]
    assert "out: no bits in 1 Case that" in as_text(found)


def test_a_kernel_that_no_longer_launches_is_compared(tmp_path: Path) -> None:
    """Its machine is the same: that it ran without a backend is what changed."""

    def host(v: Verdict, case: Case) -> Verdict:
        return replace(v, hashes={**v.hashes, "out": "0" * 16})

    base, head = records(tmp_path / "a.jsonl"), records(tmp_path / "b.jsonl", host)
    (key, known), = base.kernels.items()  # fmt: skip
    base = replace(base, kernels={key: replace(known, machine={**known.machine, "backend": "interpreter"})})
    (key, known), = head.kernels.items()  # fmt: skip
    without = {name: fact for name, fact in known.machine.items() if name != "backend"}
    assert words(compare(base, replace(head, kernels={key: replace(known, machine=without)})))[0] == "yes"
    device = {**known.machine, "backend": "device"}
    assert words(compare(base, replace(head, kernels={key: replace(known, machine=device)})))[0] == "unknown"


def test_a_kernel_that_can_no_longer_run_has_a_card_that_says_so(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl", cases=(), unavailable="accuracy")
    page = parse(render_html(read(tmp_path / "b.jsonl"), base))
    (card,) = page.all("article", cls="moved-card")
    assert "could not run: needs a GPU" in card.one("table", cls="changes").text
    assert [a for a in page.one("section", id="answers").all("a") if a.attrs["href"] == f"#{card.attrs['id']}"]


def test_every_replay_line_of_a_comparison_can_be_typed_as_it_stands(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl", lambda v, case: replace(v, hashes={**v.hashes, "out": "0" * 16}))
    page = parse(render_html(read(tmp_path / "b.jsonl"), base))
    lines = [code.text for code in page.one("section", cls="against").all("code")]
    assert len(lines) == len(CASES)
    typed = [shlex.split(line) for line in lines]
    assert {tuple(words[:2]) for words in typed} == {("numcheck", "replay")}
    assert {Case.from_json(json.loads(words[-1])) for words in typed} == set(CASES)


def test_a_law_that_is_gone_is_a_fall_though_it_failed(tmp_path: Path) -> None:
    def fails(v: Verdict, case: Case) -> Verdict:
        outputs = {**v.outputs, "out": OutputVerdict(Status.FAIL, "wrong")}
        return replace(v, outputs=outputs) if v.law == "accuracy" and case["D"] == 31 else v

    base = records(tmp_path / "a.jsonl", fails)
    found = compare(base, records(tmp_path / "b.jsonl", laws=("bitwise", "memory")))
    assert not found.held
    (moved,) = found.kernels[0].claims
    assert (moved.what, moved.before, moved.loss) == ("accuracy, over all Cases", "FAIL", True)
    # A skip that both sides have explains nothing: the base judged the law beside it.
    skipped = [replace(known, skipped={"accuracy": "needs a GPU"}) for known in (*base.kernels.values(),)]
    then = replace(base, kernels={k.subject.key: k for k in skipped})
    head = records(tmp_path / "c.jsonl", laws=("bitwise", "memory"))
    now = replace(head, kernels={key: replace(k, skipped=skipped[0].skipped) for key, k in head.kernels.items()})
    assert not compare(then, now).held


def test_bits_that_one_law_no_longer_has_are_missing(tmp_path: Path) -> None:
    """That another law hashed the output says nothing of the runs that this one made."""
    found = changed(tmp_path, lambda v, case: replace(v, hashes={}) if v.law == "bitwise" else v)
    assert {b.output: len(b.unhashed) for b in found.kernels[0].bits} == {"out": len(CASES), "d_x": len(CASES)}
    assert not found.held


def test_a_head_that_was_cut_off_does_not_hold(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    found = compare(base, replace(records(tmp_path / "b.jsonl"), unfinished=("accuracy of k was begun",)))
    assert not found.held
    assert found.verdict.startswith("does not hold: the head's run was cut off")


def test_compare_reads_the_head_once_for_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl")
    opened: list[str] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: (opened.append(self.name), whole(self))[1])
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "a.jsonl", "b.jsonl", "-o", "r.html"]) == 0
    assert [name for name in opened if name.endswith(".jsonl")] == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize("odd", ["", 0, None, "nan", []])
def test_facts_of_another_shape_are_no_facts(odd: object) -> None:
    assert machine({"device": odd, "versions": odd, "cpu": odd}, "")["device"] == ""


def test_figures_over_all_cases_are_compared_where_the_cases_are_the_same(tmp_path: Path) -> None:
    """After a failure no more Cases are drawn, and the pool of fewer has another band and another limit."""
    base, key = records(tmp_path / "a.jsonl"), ("accuracy", "out", "band")

    def pooled(side: Baseline, value: float) -> Baseline:
        kernels = {
            k: replace(known, pooled={key: Figure(value, 1.5, 0.0, 0.01, False)}) for k, known in side.kernels.items()
        }
        return replace(side, kernels=kernels)

    same = compare(pooled(base, 0.2), pooled(records(tmp_path / "b.jsonl"), 0.5)).kernels[0]
    assert [moved.before[:3] for moved in same.gates if moved.case is None] == ["0.2"]
    fewer = compare(pooled(base, 0.2), pooled(records(tmp_path / "c.jsonl", cases=CASES[:2]), 0.5)).kernels[0]
    assert not [moved for moved in (*fewer.gates, *fewer.limits) if moved.case is None]
