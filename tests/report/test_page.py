"""The page tells a reviewer what the records say, in the order in which a reviewer asks."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from numcheck.case import Case
from numcheck.gate import Gate
from numcheck.record import Records, Writer, read, replay_line
from numcheck.report import render_html
from numcheck.report.headroom import headroom
from numcheck.report.svg import LIMIT
from numcheck.verdict import OutputVerdict, Rung, Status, Verdict
from tests.report import scene
from tests.report.tree import Node, parse, table_rows

ROOT = Path(__file__).resolve().parents[2]
SHRUNK = Case.of(S=1, H=2, D=31, dtype="bf16", regime="normal", seed=0)


def page(path: Path) -> Node:
    return parse(render_html(read(path)))


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return page(scene.write(tmp_path_factory.mktemp("clean") / "r.jsonl"))


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return page(scene.write(tmp_path_factory.mktemp("failing") / "r.jsonl", failing=True))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Node:
    path = tmp_path_factory.mktemp("both") / "r.jsonl"
    return page(scene.write(path, count=6, failing=True, devices=("cpu", "cuda")))


def section(tree: Node, name: str) -> Node:
    return tree.one("section", id=name)


def test_a_run_that_held_says_so_first(clean: Node) -> None:
    assert clean.one("h1").text == "Held"
    assert clean.one("p", cls="lede").text == "34 of 42 claims held."
    assert clean.one("p", cls="also").text.startswith("1 proved nothing (VACUOUS). 7 could not run here")
    facts = {dt.text: dd.text for dt, dd in zip(clean.all("dt"), clean.all("dd"), strict=True)}
    assert (facts["Kernels"], facts["Laws"], facts["Cases"]) == ("6", "7", "340")
    assert facts["Ran as"] == "interpreter on the CPU torch on the CPU".replace("CPU torch", "CPUtorch")
    assert not clean.all("section", id="failures")
    assert not clean.all("section", id="records")


def test_sections_stand_in_the_order_of_a_reviewers_questions(both: Node) -> None:
    order = ["matrix", "failures", "records", "kernels", "ladder", "order", "vacuous", "skips", "cases", "near"]
    order += ["beside", "certificates", "fingerprints", "environment", "words"]
    sections = [node for node in both.one("main").children if isinstance(node, Node) and node.tag == "section"]
    assert [node.attrs["id"] for node in sections] == order


def test_a_run_that_did_not_hold_names_what_broke_first(failing: Node) -> None:
    assert failing.one("h1").text == "Did not hold"
    assert [li.text for li in failing.one("ul", cls="broken").all("li")] == [
        "! ERROR eager under edges CPU",
        "✕ FAIL triton under accuracy CPU",
    ]


@pytest.mark.parametrize(
    ("status", "headline"),
    [
        ("PASS", "Held"),
        ("ORDER_DEPENDENT", "Held"),
        ("VACUOUS", "Nothing was proven"),
        ("UNAVAILABLE", "Nothing was proven"),
        ("FAIL", "Did not hold"),
        ("ERROR", "Did not hold"),
    ],
)
def test_the_headline_of_one_verdict(tmp_path: Path, status: str, headline: str) -> None:
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        writer.case("kernels", SHRUNK, Verdict("k", "bitwise", "", {"out": OutputVerdict(Status[status])}), "grid")
    assert page(tmp_path / "r.jsonl").one("h1").text == headline


def test_no_records_are_no_pass() -> None:
    assert parse(render_html(Records(()))).one("h1").text == "Nothing was judged"


def test_an_unfinished_worker_is_no_pass(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "r.jsonl", "run")
    writer.case("kernels", SHRUNK, scene.judge("bitwise", "triton", SHRUNK), "grid")
    writer.started("kernels", "triton", "bitwise", SHRUNK.but(D=33), "grid")
    writer.close()
    tree = page(tmp_path / "r.jsonl")
    assert tree.one("h1").text == "Did not finish"
    assert "D 33" in section(tree, "records").text


def test_bits_that_differ_between_workers_are_no_pass(tmp_path: Path) -> None:
    verdict = scene.judge("bitwise", "triton", SHRUNK)
    for worker, digest in (("gw0", "aa"), ("gw1", "bb")):
        with Writer(tmp_path / "r.jsonl", "run", worker) as writer:
            changed = Verdict(**{**verdict.__dict__, "hashes": {"out": digest}})
            writer.case("kernels", SHRUNK, changed, "grid")
    tree = page(tmp_path / "r.jsonl")
    assert tree.one("h1").text == "Did not hold"
    assert "out has 2 different hashes" in section(tree, "records").text


def test_a_test_that_judged_no_case_is_no_pass(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        writer.case("kernels", SHRUNK, scene.judge("bitwise", "triton", SHRUNK), "grid")
        writer.outcome("kernels", "eager", "edges", "ERROR", reason="no Case was judged: none was legal")
        writer.outcome("kernels", "triton", "bitwise", "PASS", notes=["drawing stopped at its 5 s"])
    tree = page(tmp_path / "r.jsonl")
    assert tree.one("h1").text == "Did not hold"
    assert "no Case was judged: none was legal" in section(tree, "failures").text
    assert "triton under bitwise: drawing stopped at its 5 s" in section(tree, "matrix").text


def test_an_oracle_that_failed_its_certificate_is_no_pass(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        writer.case("kernels", SHRUNK, scene.judge("bitwise", "triton", SHRUNK), "grid")
        writer.certificate({"oracle": "mhc_post", "status": "FAILED", "worst": 1e-3})
    tree = page(tmp_path / "r.jsonl")
    assert tree.one("h1").text == "Did not hold"
    assert "the oracle mhc_post FAILED its certificate" in tree.one("p", cls="lede").text


def test_faults_are_claims_too(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        writer.outcome("kernels", "lost_update", "faults", "PASS", reason="caught by bitwise: load, add, store")
    assert page(tmp_path / "r.jsonl").one("h1").text == "Held"
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        writer.outcome("kernels", "early_cast", "faults", "FAIL", reason="SURVIVOR: early_cast is broken")
    tree = page(tmp_path / "r.jsonl")
    assert tree.one("h1").text == "Did not hold"
    assert "SURVIVOR: early_cast is broken" in section(tree, "failures").text
    assert "caught by bitwise" in section(tree, "matrix").text


def test_the_matrix_shows_each_claim_and_how_its_cases_fell(failing: Node) -> None:
    rows = table_rows(section(failing, "matrix"))
    by_kernel = {row[0]: row[1:] for row in rows}
    assert list(by_kernel) == [
        "eagertorch, CPU",
        "tritoninterpreter, CPU",
        "eager_bf16_roundingtorch, CPU",
        "triton_split_atomicinterpreter, CPU",
        "triton_split_orderedinterpreter, CPU",
        "cudnn_sm90CPU",
    ]
    assert by_kernel["tritoninterpreter, CPU"][1] == "✕ FAIL 24 Cases 8 FAIL, 16 PASS"
    assert by_kernel["triton_split_atomicinterpreter, CPU"][0].startswith("⇄ ORDER_DEPENDENT 24 Cases")
    assert by_kernel["cudnn_sm90CPU"] == ["– UNAVAILABLE no NVIDIA device here"] * 7  # noqa: RUF001


def test_a_failure_reads_in_the_order_of_the_house(failing: Node) -> None:
    card = next(a for a in failing.all("article", cls="failure") if "accuracy" in a.one("h3").text)
    told = card.text
    line = replay_line("kernels", "triton", "accuracy", SHRUNK)
    steps = ["every output lies within", "got=0.00390625 expected=0.0030059814453125 at [0, 1, 17]"]
    steps += ["Gates that did not hold", scene.REASONS["match"], "The shrunk Case beside the first failing one", line]
    places = [told.index(step) for step in steps]
    assert places == sorted(places)
    assert "8 of 24 Cases failed" in told


def test_the_shrunk_case_is_the_smallest_that_failed_beside_the_first(failing: Node) -> None:
    card = next(a for a in failing.all("article", cls="failure") if "accuracy" in a.one("h3").text)
    table = card.one("table", cls="facts-table")
    names = [th.text for th in table.one("thead").all("th")]
    shrunk, first = (dict(zip(names, row[1:], strict=True)) for row in table_rows(table))
    assert (shrunk["S"], shrunk["H"], shrunk["D"], shrunk["seed"]) == ("1", "2", "31", "0")
    assert first["seed"] == "1"
    moved = [names[i] for i, cell in enumerate(table.all("td")[-len(names) :]) if cell.attrs.get("class") == "moved"]
    assert moved == [name for name in names if shrunk[name] != first[name]]


def test_a_failure_is_told_by_the_cases_that_the_test_itself_told(tmp_path: Path) -> None:
    """Tries on the way are failures too, some of them smaller and otherwise; and a failure may be shrunk to no try."""
    named = [Case.of(S=1, H=2, D=d, seed=d) for d in (2053, 257, 31)]
    other = Case.of(S=1, H=1, D=1)

    def told(first: Case, shrunk: Case) -> tuple[str, str]:
        path = tmp_path / f"{first.key}{shrunk.key}.jsonl"
        with Writer(path, "r", clock=scene.Clock()) as writer:
            for case in named:
                writer.case("kernels", case, scene.broken("k", case), "grid")
            writer.case("kernels", other, scene.broken("k", other), "shrink")
            finding = {"status": "FAIL", "first": first.to_json(), "shrunk": shrunk.to_json()}
            writer.outcome("kernels", "k", "accuracy", "FAIL", findings=[finding])
        card = parse(render_html(read(path))).one("article", cls="failure")
        return card.all("code")[0].text, card.all("p", cls="soft")[0].text

    assert told(named[1], named[2])[0] == replay_line("kernels", "k", "accuracy", named[2])
    assert "Told by the shrunk Case" in told(named[0], named[2])[1]
    assert told(named[1], named[1])[0] == replay_line("kernels", "k", "accuracy", named[1])
    assert "Not shrunk" in told(named[2], named[2])[1]


def test_every_failing_case_can_be_replayed(failing: Node) -> None:
    card = next(a for a in failing.all("article", cls="failure") if "accuracy" in a.one("h3").text)
    lines = [code.text for code in card.all("code")]
    assert len(lines) == len(set(lines)) == 1 + 7
    assert all(line.startswith("numcheck replay --specs kernels triton accuracy '{") for line in lines)


def marks(svg: Node, name: str) -> list[tuple[int, int]]:
    """Where the marks of a picture are."""
    paths = [node for node in svg.all("path") if node.attrs["class"] == name]
    return [(int(x), int(y)) for path in paths for x, y in re.findall(r"M(\d+) (\d+)", path.attrs["d"])]


def test_a_strip_shows_each_case_on_its_side_of_the_limit(failing: Node) -> None:
    strips = failing.all("svg", cls="strip")
    seen = 0
    for svg in strips:
        label = svg.attrs["aria-label"]
        found = re.search(r": (\d+) Cases?, (\d+) beyond the limit", label)
        if found is None:
            continue
        cases, beyond = int(found[1]), int(found[2])
        held, failed = marks(svg, "held"), marks(svg, "failed")
        assert all(x > LIMIT for x, _ in held), label
        assert all(x < LIMIT for x, _ in failed), label
        assert (len(failed) > 0) == (beyond > 0), label
        assert len(held) + len(failed) <= cases
        seen += len(held) + len(failed) == cases
    assert seen > 10


def test_headroom_by_shape_has_a_panel_for_each_gate_and_fact_that_varies(clean: Node) -> None:
    trellis = section(clean, "kernels").all("article", cls="card")[0].one("table", cls="trellis")
    axes = [th.text for th in trellis.one("thead").all("th")]
    assert axes == ["S", "H", "D", "dtype", "regime"]
    rows = trellis.one("tbody").all("tr")
    names = [row.one("th").text for row in rows]
    assert names == ["accuracy, ceiling", "accuracy, match", "accuracy, band", "accuracy, bias"]
    panel = rows[0].all("svg")[2]
    assert [t.text for t in panel.all("text")[5:]] == ["31", "257", "2053", "4096"]
    assert 10 < len(marks(panel, "held")) <= 24
    assert panel.attrs["aria-label"].startswith("accuracy, ceiling: headroom of 24 Cases by D; the lowest is 1.0")


def test_several_figures_of_one_case_are_not_counted_as_cases(tmp_path: Path) -> None:
    gates = tuple(Gate("ceiling", "out", value, 1.0, "relation") for value in (0.1, 0.2, 0.4))
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        for seed in (1, 2):
            verdict = Verdict("k", "invariance", "", {"out": OutputVerdict(Status.PASS)}, gates)
            writer.case("kernels", SHRUNK.but(seed=seed), verdict, "grid")
    svg = page(tmp_path / "r.jsonl").one("svg", cls="strip")
    assert "6 figures, 0 beyond the limit, lowest headroom 2.5, median 5" in svg.attrs["aria-label"]
    assert len(marks(svg, "held")) == 6


def test_many_sizes_are_gathered_by_octaves(tmp_path: Path) -> None:
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        for size in (0, *(2**k for k in range(13))):
            gate = Gate("ceiling", "out", 0.5, 1.0, "")
            verdict = Verdict("k", "accuracy", "", {"out": OutputVerdict(Status.PASS)}, (gate,))
            writer.case("kernels", Case.of(D=size), verdict, "draw")
    panel = page(tmp_path / "r.jsonl").one("svg", cls="panel")
    assert [t.text for t in panel.all("text")[5:]] == ["≥0", "≥2", "≥8", "≥32", "≥128", "≥512", "≥2048"]


@pytest.mark.parametrize(
    ("gate", "expected"),
    [
        (("ceiling", 0.5, 1.0, -math.inf), 2.0),
        (("ceiling", 0.0, 1.0, -math.inf), math.inf),
        (("exact", 0.0, 0.0, -math.inf), math.inf),
        (("exact", 3.0, 0.0, -math.inf), 0.0),
        (("bias", -3.0, 6.0, -6.0), 2.0),
        (("bias", -9.0, 6.0, -6.0), 6 / 9),
        (("band", 1.1, 1.21, 1 / 1.21), 2.0),
        (("band", 1 / 1.1, 1.21, 1 / 1.21), 2.0),
        (("band", 0.1, 1.21, -math.inf), math.inf),
        (("match", math.nan, 4.0, -math.inf), 0.0),
        (("cap", math.inf, 1.0, -math.inf), 0.0),
    ],
)
def test_headroom_is_how_much_larger_a_value_might_be(gate: tuple[str, float, float, float], expected: float) -> None:
    room = headroom(*gate)
    assert room == pytest.approx(expected)
    assert (room >= 1) == (gate[3] <= gate[1] <= gate[2])


def ladder(tree: Node) -> dict[str, dict[str, Node]]:
    """Kernel -> rung -> its cell."""
    table = section(tree, "ladder").one("table", cls="ladder")
    names = [th.text for th in table.one("thead").all("th")][1:]
    rows = table.one("tbody").all("tr")
    return {
        row.one("th").all("span")[0].text: dict(zip(names, row.all("div", cls="rung"), strict=True)) for row in rows
    }


def test_the_ladder_says_what_its_repeats_can_tell(clean: Node) -> None:
    rungs = ladder(clean)["triton_split_atomic"]
    assert list(rungs)[:3] == ["same process", "permuted order", "new allocation, dirty memory"]
    assert "r-still" in rungs["same process"].attrs["class"]
    # 48 runs: 1 - 0.05^(1/48) = 6.05 %; 2 runs: 77.6 %.
    assert "no flip in 48 runs rates up to 6.1 % over 24 Cases, or 78 % in one Case (2 runs), stay unseen" in (
        rungs["same process"].text.replace("runsrates", "runs rates")
    )
    assert "r-order" in rungs["permuted order"].attrs["class"]
    assert "d_post flipped in 36 runs" in rungs["permuted order"].text
    unclimbed = (
        "autograd modes, compiled, new addresses, other work on the device, late inputs on a stream, graph replay."
    )
    assert f"Climbed by no kernel here: {unclimbed}" in section(clean, "ladder").text


def test_a_flip_of_a_promised_output_is_shown_as_one(tmp_path: Path) -> None:
    verdict = scene.judge("bitwise", "triton_split_atomic", Case.of(S=1, H=1, D=4096))
    outputs = {**verdict.outputs, "d_post": OutputVerdict(Status.FAIL, "promised fixed")}
    skipped = Rung("compiled", 0, note="the spec does not claim it")
    with Writer(tmp_path / "r.jsonl", "run") as writer:
        changed = Verdict(**{**verdict.__dict__, "outputs": outputs, "rungs": (*verdict.rungs, skipped)})
        writer.case("kernels", SHRUNK, changed, "grid")
    rungs = ladder(page(tmp_path / "r.jsonl"))["triton_split_atomic"]
    assert [name for name, cell in rungs.items() if "r-flip" in cell.attrs["class"]] == ["permuted order"]
    assert "r-unclimbed" in rungs["compiled"].attrs["class"]
    assert "the spec does not claim it" in rungs["compiled"].text
    assert rungs["permuted order"].all("code")[0].text == replay_line(
        "kernels", "triton_split_atomic", "bitwise", SHRUNK
    )
    assert rungs["same process"].all("code") == []


def test_order_dependent_outputs_are_findings_and_no_failures(clean: Node) -> None:
    rows = table_rows(section(clean, "order"))
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("triton_split_atomic", "d_post", "12 of 24"),
        ("triton_split_atomic", "d_comb", "12 of 24"),
    ]


def test_what_was_vacuous_everywhere_comes_first(clean: Node) -> None:
    rows = table_rows(section(clean, "vacuous").all("table")[0])
    assert rows[0][:3] == ["eager_bf16_rounding", "cancellation", "out"]
    assert rows[0][4] == "all 4"
    assert "does not promise survival" in rows[0][5]


def test_the_skip_ledger_says_why_and_what_it_needs(clean: Node) -> None:
    rows = table_rows(section(clean, "skips"))
    assert ["no NVIDIA device here", "sm90", "CPU", "cudnn_sm90 under every law", "all"] in rows
    assert ["graph replay needs a GPU", "gpu", "CPU", "triton under bitwise", "all"] in rows


def test_the_nearest_cases_come_first_with_their_replay(clean: Node) -> None:
    rows = table_rows(section(clean, "near"))
    rooms = [float(row[0]) for row in rows]
    assert rooms == sorted(rooms)
    assert all("numcheck replay" in row[6] for row in rows if not row[6].startswith("pooled"))


def test_interpreter_and_device_stand_side_by_side(both: Node) -> None:
    rows = {(row[0], row[1]): row for row in table_rows(section(both, "beside"))}
    assert rows["triton", "accuracy"][2:4] == ["interpreter on the CPU", "device NVIDIA H200"]
    assert rows["triton", "accuracy"][4:6] == ["6", "4"]
    assert "✕ FAIL ✓ PASS" in rows["triton", "accuracy"][7]
    assert rows["triton", "bitwise"][4:7] == ["6", "6", "6 of 6"]
    assert rows["triton", "bitwise"][7] == "nowhere"


def test_one_device_has_nothing_beside_it(clean: Node) -> None:
    assert not clean.all("section", id="beside")


def test_certificates_and_fingerprints(clean: Node) -> None:
    rows = table_rows(section(clean, "certificates"))
    assert rows[0][:6] == ["mhc_post", "CERTIFIED", "3.1e-16", "1e-14", "analytic", "8"]
    assert rows[1][:3] == ["rmsnorm", "UNCERTIFIED", "NaN"]
    prints = table_rows(section(clean, "fingerprints"))
    assert ["eager_bf16_rounding", "CPU", "bf16 coefficients", "bf16 mix", "280", "24"] in [row[:6] for row in prints]


def test_environments_stand_side_by_side_and_differences_are_named(both: Node) -> None:
    table = section(both, "environment").one("table")
    rows = {row[0]: row[1:] for row in table_rows(table)}
    assert rows["device.name differs".replace(" ", "")] == ["Intel(R) Xeon(R) Platinum 8468", "NVIDIA H200"]
    assert rows["device.memory_bytesdiffers"][1] == "140.4 GiB"
    assert rows["cpu.model"] == ["Intel(R) Xeon(R) Platinum 8468"] * 2


def test_earlier_code_is_superseded_and_the_same_code_never(tmp_path: Path) -> None:
    fail = Verdict("k", "bitwise", "", {"out": OutputVerdict(Status.FAIL)})
    good = Verdict("k", "bitwise", "", {"out": OutputVerdict(Status.PASS)})
    clock = scene.Clock()
    for run, commit, verdict in (("run1", "old", fail), ("run2", "new", good)):
        with Writer(tmp_path / f"{commit}.jsonl", run, clock=clock) as writer:
            writer.environment({**scene.environment(), "id": commit, "code": {"commit": commit, "dirty": False}})
            writer.case("kernels", SHRUNK, verdict, "grid")
    tree = parse(render_html(read([tmp_path / "old.jsonl", tmp_path / "new.jsonl"])))
    assert tree.one("h1").text == "Held"
    assert "1 FAIL" in section(tree, "records").text
    with Writer(tmp_path / "new.jsonl", "run3", clock=clock) as writer:
        writer.environment({**scene.environment(), "id": "new", "code": {"commit": "new", "dirty": False}})
        writer.case("kernels", SHRUNK, fail, "grid")
    with Writer(tmp_path / "new.jsonl", "run4", clock=clock) as writer:
        writer.environment({**scene.environment(), "id": "new", "code": {"commit": "new", "dirty": False}})
        writer.case("kernels", SHRUNK, good, "grid")
    # No retry until green: the failure of the same code stands, whatever came after it.
    assert page(tmp_path / "new.jsonl").one("h1").text == "Did not hold"


def test_rendering_is_pure_and_needs_no_torch(tmp_path: Path) -> None:
    path = scene.write(tmp_path / "r.jsonl", count=4, failing=True)
    code = f"""
import sys
from numcheck.record import read
from numcheck.report import render_html, render_markdown
one, two = (render_html(read({str(path)!r})) + render_markdown(read({str(path)!r})) for _ in range(2))
print(one == two, [name for name in ("torch", "triton", "hypothesis", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True []"
