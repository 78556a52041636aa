"""One line changed in a copy of a kernel: the page names that kernel and that output, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from numcheck.baseline import of
from numcheck.case import Case
from numcheck.laws.accuracy import ACCURACY
from numcheck.load import load
from numcheck.profile import profile
from numcheck.record import Records, Writer, read
from numcheck.report import render_html
from tests.report import scene
from tests.report.tree import parse

ROOT = Path(__file__).resolve().parents[2]
SPECS = """

from kernels.mhc_post import contracts, eager
from numcheck import KernelSpec
from numcheck.oracles import mhc_post

kernel = KernelSpec("kernel", mhc_post, forward=forward, vjp=vjp, contract=contracts.FUSED,
                    must_run=(mhc_post_forward, mhc_post_backward))
other = KernelSpec("other", mhc_post, forward=eager.forward, vjp=eager.vjp, contract=contracts.EAGER)
"""
# In bf16 the order of FP32 sums seldom shows behind the last rounding; in FP32 it does.
CASES = tuple(Case.of(S=1, H=4, D=d, dtype=t, regime="wide", seed=d) for d, t in ((33, "fp32"), (257, "bf16")))
LOOP = "for s in tl.static_range(H):\n            weight"
# What is changed in the copy, by what, and the only output that it may touch.
CHANGES = {
    "a rounding of the forward": (
        "total = scale[:, None] * token[None, :]",
        "total = (scale[:, None] * token[None, :]).to(tl.bfloat16).to(tl.float32)",
        "out",
    ),
    "the order of a loop": (
        LOOP,
        LOOP.replace("s in", "r in").replace("weight", "s = H - 1 - r\n            weight"),
        "out",
    ),
    "a rounding of the backward": ("x_sum += ", "x_sum = x_sum.to(tl.bfloat16).to(tl.float32) + ", "d_x"),
}


def judged(folder: Path, old: str = "", new: str = "") -> Records:
    """A few Cases of the copy and of an untouched kernel beside it, under accuracy."""
    source = (ROOT / "kernels" / "mhc_post" / "fused.py").read_text(encoding="utf-8")
    assert source.count(old) == 1 or not old
    folder.mkdir()
    (folder / "mine.py").write_text(source.replace(old, new) + SPECS if old else source + SPECS, encoding="utf-8")
    with Writer(folder / "r.jsonl", f"run-{folder.name}", clock=scene.Clock()) as writer:
        writer.environment(scene.environment())
        for spec in load([str(folder / "mine.py")]):
            for case in CASES:
                writer.case("mine.py", case, ACCURACY.judge(spec, case, profile("quick")), "grid")
    return read(folder / "r.jsonl")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return judged(tmp_path_factory.mktemp("show") / "base")


@pytest.mark.parametrize("name", CHANGES)
def test_the_page_names_the_change_in_its_place_and_nothing_else(base: Records, tmp_path: Path, name: str) -> None:
    old, new, output = CHANGES[name]
    page = parse(render_html(judged(tmp_path / "head", old, new), of(base)))
    assert page.all("li", cls="answer")[0].one("b").text.endswith("Yes")
    (card,) = page.all("article", cls="moved-card")
    assert card.one("h3").text.startswith("kernel as interpreter")
    assert [li.one("b").text for li in card.all("li", cls="otherwise")] == [output]
    moved = [row.one("th").text for table in card.all("table", cls="changes") for row in table.one("tbody").all("tr")]
    assert all(
        f"of {output} under" in what or what.startswith(f"{output} under") for what in moved if "accuracy," not in what
    )


def test_no_change_says_nothing(base: Records, tmp_path: Path) -> None:
    page = parse(render_html(judged(tmp_path / "head"), of(base)))
    assert not page.all("article", cls="moved-card")
    assert page.all("li", cls="answer")[0].one("b").text.endswith("No")
