"""One browser for all tests of this folder, and the pages that they look at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from numcheck.baseline import Acceptance, of
from numcheck.compare import compare
from numcheck.record import read
from numcheck.report import render_html
from tests.browser.chromium import Browser, browser, executable
from tests.report import scene

REASON = "FP32 coefficients, as the pull request says"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    program = executable()
    if program is None:
        pytest.skip("no Chromium on PATH; `apt-get install chromium`, and the page is tested in it")
    with browser(program) as one:
        yield one


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run that held, one that did not, one against its accepted base, one that fell, a repair, a small one of all."""
    folder = tmp_path_factory.mktemp("pages")
    clean = read(scene.write(folder / "clean.jsonl"))
    failing = read(scene.write(folder / "failing.jsonl", failing=True))
    base = of(clean)
    accepted = (Acceptance(REASON, "2026-03-01 10:00 UTC", base.commit, "bits changed: yes"),)
    few = read(scene.write(folder / "few.jsonl", count=6, failing=True))
    texts = {
        "clean": render_html(clean),
        "failing": render_html(failing),
        "compared": render_html(scene.moved(clean), replace(base, accepted=accepted)),
        "fell": render_html(failing, base),
        "fixed": render_html(clean, compare(of(scene.failed(clean)), of(clean), "main")),
        "few": render_html(scene.moved(few), replace(of(few), accepted=accepted)),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}
