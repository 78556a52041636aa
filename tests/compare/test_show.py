"""A line changed in a kernel: the page names that kernel and those outputs, and nothing else."""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from kernels import ALL
from numcheck import KernelSpec
from numcheck.baseline import of
from numcheck.case import Case
from numcheck.execute import Run, execute
from numcheck.laws.accuracy import ACCURACY
from numcheck.mutate import Mutant, built, mutants
from numcheck.mutate.copies import rebuilt
from numcheck.profile import profile
from numcheck.record import Records, Writer, read
from numcheck.report import render_html
from numcheck.sample import sample
from tests.report import scene
from tests.report.tree import Node, parse

ROOT = Path(__file__).resolve().parents[2]
SPECS = {spec.name: spec for spec in ALL}
MHC, MLA = "mhc_post.triton", "sparse_mla.triton_ordered"
# Beside the two, kernels of the same problems that nobody changes.
JUDGED = (MHC, "mhc_post.eager", MLA, "sparse_mla.triton_forward")
# In bf16 the order of FP32 sums seldom shows behind the last rounding; in FP32 it does. d_kv has one row here.
MHC_CASES = tuple(Case.of(S=1, H=4, D=d, dtype=t, regime="wide", seed=d) for d, t in ((33, "fp32"), (257, "bf16")))
ONE_ROW, TINY = SPECS[MLA].oracle.space.tiny[:2]
MLA_CASES = (ONE_ROW.but(S_q=5, H=2, D=3, D_v=2), TINY)
CASES = {"mhc_post": MHC_CASES, "sparse_mla": MLA_CASES}
LOOP = "for s in tl.static_range(H):\n            weight"
EDITS = re.compile(r"^\$ (sed -i '.*' (kernels/\S+\.py))$", re.MULTILINE)

# Outputs by kernel.
Named = dict[str, list[str]]


def judged(path: Path, specs: Iterable[KernelSpec], cases: Mapping[str, Iterable[Case]] = CASES) -> Records:
    """A few Cases of each, under accuracy."""
    with Writer(path, f"run-{path.stem}", clock=scene.Clock()) as writer:
        writer.environment(scene.environment())
        for spec in specs:
            for case in cases[spec.oracle.name]:
                writer.case("kernels", case, ACCURACY.judge(spec, case, profile("quick")), "grid")
    return read(path)


def named(page: Node) -> Named:
    """What the page says changed."""
    return {
        card.one("h3").text.split(" as ")[0]: [li.one("b").text for li in card.all("li", cls="otherwise")]
        for card in page.all("article", cls="moved-card")
    }


def moved(page: Node) -> set[str]:
    """What the tables of the cards that moved say is otherwise."""
    tables = page.all("table", cls="changes")
    return {row.one("th").text for table in tables for row in table.one("tbody").all("tr")}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return judged(tmp_path_factory.mktemp("show") / "base.jsonl", [SPECS[name] for name in JUDGED])


def edited(folder: Path, line: str, file: str) -> tuple[str, str]:
    """The module and the source that a line of the README makes of a copy of `file`."""
    before = (ROOT / file).read_text(encoding="utf-8")
    copy = folder / file
    copy.parent.mkdir(parents=True)
    copy.write_text(before, encoding="utf-8")
    subprocess.run(line, shell=True, cwd=folder, check=True)
    after = copy.read_text(encoding="utf-8")
    changed = [a for a, b in zip(before.splitlines(), after.splitlines(), strict=True) if a != b]
    assert len(changed) == 1, f"{line} has to change one line of {file}, not {len(changed)}"
    return file.removesuffix(".py").replace("/", "."), after


def test_the_readmes_two_changes_are_named_in_their_places_and_nothing_else(base: Records, tmp_path: Path) -> None:
    lines = EDITS.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert [file.split("/")[1] for _, file in lines] == ["mhc_post", "sparse_mla"]
    with ExitStack() as copies:
        changed = [
            copies.enter_context(rebuilt(SPECS[name], *edited(tmp_path, line, file)))
            for name, (line, file) in zip((MHC, MLA), lines, strict=True)
        ]
        specs = {**SPECS, **{spec.name: spec for spec in changed}}
        head = judged(tmp_path / "head.jsonl", [specs[name] for name in JUDGED])
    page = parse(render_html(head, of(base)))
    assert named(page) == {MHC: ["out"], MLA: ["d_kv"]}
    bits, fell, _ = (answer.text for answer in page.all("li", cls="answer"))
    assert f"{MHC} on CPU: out in " in bits
    assert f"{MLA} on CPU: d_kv in " in bits
    assert f"{MHC} on CPU: " in fell
    assert MLA not in fell
    assert all("out" in what or what.startswith("accuracy, over all") for what in moved(page))


@pytest.mark.parametrize(
    ("old", "new", "output"),
    [
        (LOOP, LOOP.replace("s in", "r in").replace("weight", "s = H - 1 - r\n            weight"), "out"),
        ("x_sum += ", "x_sum = x_sum.to(tl.bfloat16).to(tl.float32) + ", "d_x"),
    ],
    ids=["the order of a loop", "a rounding of the backward"],
)
def test_another_line_is_named_too(base: Records, tmp_path: Path, old: str, new: str, output: str) -> None:
    source = (ROOT / "kernels/mhc_post/fused.py").read_text(encoding="utf-8")
    assert source.count(old) == 1
    with rebuilt(SPECS[MHC], "kernels.mhc_post.fused", source.replace(old, new)) as changed:
        head = judged(tmp_path / "head.jsonl", [changed])
    page = parse(render_html(head, of(base)))
    assert named(page) == {MHC: [output]}
    assert all(f"{output} under" in what or what.startswith("accuracy, over all") for what in moved(page))


def test_no_change_says_nothing(base: Records, tmp_path: Path) -> None:
    page = parse(render_html(judged(tmp_path / "head.jsonl", [SPECS[name] for name in JUDGED]), of(base)))
    assert named(page) == {}
    assert page.all("li", cls="answer")[0].one("b").text.endswith("No")


# The other families' kernels of which every output has one order. Chance, not the author of the page, takes from each
# some of the mistakes that its own source could hold.
OTHERS = ("balance_loss_map.triton", "grouped_srelu.triton_slots")
SEED, TAKEN, FEW = 6, 6, 3


def drawn(name: str) -> list[Mutant]:
    return random.Random(f"{SEED} {name}").sample(mutants(SPECS[name]), TAKEN)


def bits(run: Run) -> dict[str, list[int]]:
    """Each output as whole numbers: equal bits, and nothing else, are equal."""
    found = {**run.outputs}
    return {name: list(t.detach().contiguous().flatten().view(torch.uint8).tolist()) for name, t in found.items()}


@pytest.mark.parametrize("name", OTHERS)
def test_whatever_else_changes_is_named_as_far_as_its_bits_say(tmp_path: Path, name: str) -> None:
    spec = SPECS[name]
    cases = [case for case in spec.oracle.space.tiny if spec.illegal(case) is None][:FEW]
    some = {spec.oracle.name: cases}
    samples = [sample(spec.oracle, case) for case in cases]
    right = [bits(execute(spec, given)) for given in samples]
    base = of(judged(tmp_path / "base.jsonl", [spec], some))
    seen = set()
    for number, mutant in enumerate(drawn(name)):
        with built(spec, mutant) as changed:
            runs = [execute(changed, given) for given in samples]
            head = judged(tmp_path / f"{number}.jsonl", [changed], some)
        page = parse(render_html(head, base))
        both = [(then, bits(run)) for then, run in zip(right, runs, strict=True) if not run.error]
        expected = sorted({o for then, now in both for o in then if o in now and then[o] != now[o]})
        told = named(page)
        # What a law could not take for the kernel's own result has no bits there; the page then says so.
        lost = [li.one("b").text for li in page.all("li", cls="unhashed")]
        assert set(told.get(name, [])) <= set(expected) <= {*told.get(name, []), *lost}, mutant.id
        assert bool(expected or any(run.error or run.findings for run in runs)) == bool(told), mutant.id
        seen.add(bool(expected))
    assert True in seen, "chance took only mistakes that change no bit here"
