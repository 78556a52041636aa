"""What the terminal says: the header, the letter of each outcome, the counts, and the ledger of what could not run."""

from __future__ import annotations

import importlib.util
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pytest

from numcheck.plugin.session import PROPERTY
from numcheck.plugin.settings import Settings

Row = dict[str, Any]

# package, module: what a header names, or says is not installed.
PACKAGES = (("torch", "torch"), ("triton", "triton"), ("hypothesis", "hypothesis"), ("nvidia-cudnn-frontend", "cudnn"))
# Outcomes that are neither a plain pass nor a failure: their letter in the progress line.
LETTERS = {"ORDER_DEPENDENT": "o", "VACUOUS": "v", "UNAVAILABLE": "u"}


def header(settings: Settings, device: str) -> list[str]:
    """Device, versions, profile, and what is missing here."""
    from numcheck import __version__

    where = "cuda" if device == "cuda" else "cpu (Triton kernels run in its interpreter)"
    found: list[str] = []
    absent: list[str] = []
    for package, module in PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            (found if importlib.util.find_spec(module) else absent).append(package)
    if device == "cpu":
        absent.append("a GPU")
    lines = [
        f"numcheck {__version__}: device {where}; profile {settings.profile}",
        f"numcheck versions: {', '.join(found)}; not here: {', '.join(absent) or 'nothing'}",
    ]
    return lines + ([f"numcheck records: {settings.records}"] if settings.records else [])


def rows(report: pytest.TestReport) -> list[Row]:
    """The outcomes that a test's report carries."""
    return [value for name, value in report.user_properties if name == PROPERTY and isinstance(value, dict)]


def status(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """Category, letter and word of a report that carries an outcome other than PASS and FAIL; None for any other."""
    carried = rows(report)
    if report.when != "call" or not carried:
        return None
    word = carried[-1]["status"]
    if report.failed:
        return ("failed", "E", "ERROR") if word == "ERROR" else None
    return (word.lower(), LETTERS[word], word) if word in LETTERS else None


def write(terminal: pytest.TerminalReporter, said: Iterable[str]) -> None:
    """The numcheck section at the end of a run: counts, notes, the skip ledger, then what else is to be `said`."""
    reports = [r for category in terminal.stats.values() for r in category if isinstance(r, pytest.TestReport)]
    outcomes = [row for report in reports if report.when == "call" for row in rows(report)]
    lines = [*_counts(outcomes), *_notes(outcomes), *_ledger(outcomes), *said]
    if lines:
        terminal.section("numcheck")
    for line in lines:
        terminal.write_line(line)


def _counts(outcomes: Sequence[Row]) -> list[str]:
    by_law: dict[str, Counter[str]] = defaultdict(Counter)
    cases: dict[str, Counter[str]] = defaultdict(Counter)
    for row in outcomes:
        by_law[row["law"]][row["status"]] += 1
        cases[row["law"]].update(row["counts"])
    return [f"{law:<13}{_tally(tests)}; Cases: {_tally(cases[law])}" for law, tests in by_law.items()]


def _tally(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"


def _notes(outcomes: Sequence[Row]) -> list[str]:
    """Each note with its test; one that several tests share is said once, with the specs that it is about."""
    tests: dict[str, list[Row]] = defaultdict(list)
    for row in outcomes:
        for note in row["notes"]:
            tests[note].append(row)
    return [f"note: {_about(noted)}: {note}" for note, noted in tests.items()]


def _about(noted: Sequence[Row]) -> str:
    if len(noted) == 1:
        return f"{noted[0]['law']}[{noted[0]['spec']}]"
    return f"{', '.join(dict.fromkeys(row['spec'] for row in noted))} ({len(noted)} tests)"


def _ledger(outcomes: Sequence[Row]) -> list[str]:
    """Each reason why something could not be judged or shown, with the tests that it cost."""
    skipped: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for row in outcomes:
        test = f"{row['law']}[{row['spec']}]"
        for reason, needs, cases in row["missing"]:
            skipped["UNAVAILABLE", reason, needs].append(test + (f" ({cases} Cases)" if cases else ""))
        if row["status"] == "VACUOUS":
            skipped["VACUOUS", row["reason"], ""].append(test)
    return [
        f"{word}: {reason}{f' (needs {needs})' if needs else ''}: {', '.join(tests)}"
        for (word, reason, needs), tests in skipped.items()
    ]
