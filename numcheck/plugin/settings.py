"""The plugin's options: their names, their help, and what they say once checked."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from numcheck.capability import TIERS
from numcheck.errors import BadRecords, InvalidSpec
from numcheck.profile import Profile, profile
from numcheck.target import Kind, spare_others

DEVICES = ("auto", "cpu", "cuda")
REPORTS = (".html", ".htm", ".md")
MARKS = {
    "bitwise": "the same Case gives the same bits",
    "accuracy": "errors within what the Contract's roundings explain",
    "cancellation": "a small result made of large terms survives",
    "invariance": "exact and bounded relations between Cases",
    "edges": "empty and boundary shapes, poison, guards, bad arguments",
    "memory": "peak bytes against the Contract's formula",
    "evidence": "the intended kernel ran",
    "faults": "every declared fault is caught by the law that it names",
}


@dataclass(frozen=True)
class Settings:
    """What the options ask for."""

    specs: tuple[str, ...] = ()
    profile: str = "quick"
    device: str = "auto"
    records: Path | None = None
    report: Path | None = None
    require: str = ""
    baseline: Path | None = None
    helpers: int = 0

    @property
    def effort(self) -> Profile:
        """The Profile, on the CPU until a device is chosen."""
        return profile(self.profile)


def add_options(parser: pytest.Parser) -> None:
    """Every option starts at None, so that a run which gives none is recognised."""
    group = parser.getgroup("numcheck", "judging compute kernels")
    add: Any = group.addoption
    add(
        "--numcheck-specs",
        action="append",
        metavar="MODULE[:NAME]|PATH",
        help="judge the kernels found there: one test is generated for each kernel and law; may be given again",
    )
    add("--numcheck-profile", metavar="quick|ci|deep", help="how hard to look (default: quick)")
    add("--numcheck-device", metavar="auto|cpu|cuda", help="where to run (default: auto); on a CPU, Triton interprets")
    add("--numcheck-records", metavar="FILE", help="append the records to this file (JSON Lines)")
    add("--numcheck-report", metavar="FILE", help="write the report to this file (.html or .md)")
    add("--numcheck-baseline", metavar="FILE", help="compare with this baseline, or these records; the report shows it")
    add("--numcheck-helpers", metavar="N", help="processes that judge the Cases of each test (default: none)")
    add(
        "--numcheck-require",
        metavar="TIER",
        help="cpu, gpu, sm90 or sm100: what cannot run there is an error, not a skip",
    )


def settings(options: argparse.Namespace, folder: Path) -> Settings:
    """The checked options, paths absolute from `folder`. Raises pytest.UsageError with what to do instead."""
    given = {name: getattr(options, f"numcheck_{name}", None) for name in _NAMES}
    try:
        profile(given["profile"] or "quick")
    except InvalidSpec as error:
        raise pytest.UsageError(f"--numcheck-profile: {error}") from None
    _one_of("--numcheck-device", given["device"], DEVICES)
    _one_of("--numcheck-require", given["require"], TIERS)
    report = folder / given["report"] if given["report"] else None
    if report is not None and report.suffix not in REPORTS:
        raise pytest.UsageError(f"--numcheck-report {given['report']}: a report is an .html or an .md file")
    records = folder / given["records"] if given["records"] else None
    if report is not None and records is None:
        records = report.with_suffix(".jsonl")
    if given["baseline"] and records is None:
        raise pytest.UsageError(
            "--numcheck-baseline compares records: add --numcheck-records FILE or --numcheck-report FILE "
            "(of `numcheck run`: --records or --report)"
        )
    if given["baseline"] is not None and not given["baseline"].strip():
        raise pytest.UsageError("--numcheck-baseline is empty; give a file, or leave the option out")
    _writable("--numcheck-records", records, "records")
    _writable("--numcheck-report", report, "report")
    baseline = folder / given["baseline"] if given["baseline"] else None
    _apart({"--numcheck-records": records, "--numcheck-report": report, "--numcheck-baseline": baseline})
    if baseline is not None and not baseline.is_file():
        raise pytest.UsageError(
            f"--numcheck-baseline {given['baseline']}: no such file; `numcheck accept RECORDS --reason TEXT` writes one"
        )
    return Settings(
        specs=tuple(given["specs"] or ()),
        profile=given["profile"] or "quick",
        device=given["device"] or "auto",
        records=records,
        report=report,
        require=given["require"] or "",
        baseline=baseline,
        helpers=_count("--numcheck-helpers", given["helpers"]),
    )


_NAMES = ("specs", "profile", "device", "records", "report", "baseline", "require", "helpers")


def _one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise pytest.UsageError(f"{option} {value}: allowed are {', '.join(allowed)}")


def _count(option: str, value: str | None) -> int:
    """A number of processes; none where the option is left out."""
    if value is not None and not (value.isascii() and value.isdigit()):
        raise pytest.UsageError(f"{option} {value}: give a number of processes, 0 or more")
    return int(value or 0)


def _apart(given: Mapping[str, Path | None]) -> None:
    """Raise pytest.UsageError where two options name one file: a run that is its own baseline always holds."""
    named = {option: path.resolve() for option, path in given.items() if path is not None}
    for (one, path), (other, same) in combinations(named.items(), 2):
        if path == same:
            raise pytest.UsageError(f"{one} and {other} name one file, {path}; name another for either")


def _writable(option: str, path: Path | None, kind: Kind) -> None:
    """Raise pytest.UsageError where `path` cannot be written, or is a file of another kind, before anything has run.

    Nothing is left behind.
    """
    import tempfile

    if path is None:
        return
    try:
        if path.is_dir():
            raise IsADirectoryError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
        spare_others(path, kind)
    except BadRecords as error:
        raise pytest.UsageError(f"{option}: {error}") from None
    except OSError as error:
        raise pytest.UsageError(
            f"{option} {path} cannot be written: {error.strerror or error}; give a file in a folder that can"
        ) from None
