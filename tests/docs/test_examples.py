"""The documentation's examples are the files that users run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from numcheck.cli import COMMANDS
from numcheck.commands.init import template

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# A fenced block that quotes a file says which: ```python docs/examples/rmsnorm.py#oracle
QUOTE = re.compile(r"^```python (?P<path>\S+?)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (?P<n>\d+) \|[^|]*\|(?P<tests>[^|]*)\|$", re.MULTILINE)
LINK = re.compile(r"\]\((?P<target>[^)#\s]+)(?:#[^)]*)?\)")


def test_init_writes_the_tutorial_s_first_example() -> None:
    assert template() == (ROOT / "docs" / "examples" / "my_mhc.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_quoted_code_stands_in_the_file_that_it_quotes(page: Path) -> None:
    for quote in QUOTE.finditer(page.read_text()):
        source = (ROOT / quote["path"]).read_text()
        assert quote["code"].strip() in source, f"{page.name} quotes code that {quote['path']} does not have"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for link in LINK.finditer(page.read_text()):
        target = link["target"]
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_every_false_pass_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "false-passes.md").read_text()
    rows = {int(row["n"]): re.findall(r"`(test_\w+)`", row["tests"]) for row in ROW.finditer(page)}
    assert sorted(rows) == list(range(1, 25))
    meta = "\n".join(path.read_text() for path in (ROOT / "tests" / "meta").glob("test_*.py"))
    for number, tests in rows.items():
        assert tests, f"row {number} names no test"
        for test in tests:
            assert f"def {test}(" in meta, f"row {number} names {test}, which is not in tests/meta"


def test_the_readme_names_every_command() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## The command\n")[1].split("\n## ")[0]
    named = re.findall(r"`(?:numcheck )?(\w+)`", section)
    assert sorted(named) == sorted(command.name for command in COMMANDS)
