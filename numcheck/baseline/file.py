"""The baseline file: small JSON, one Case a line, kept in a repository with the reasons why it was accepted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from numcheck.baseline.gather import of
from numcheck.baseline.known import Acceptance, Baseline
from numcheck.baseline.rows import certified, certified_json, known, known_json, text_of, texts_of
from numcheck.cycles import left_alone
from numcheck.errors import BadRecords, NumcheckError
from numcheck.record import Records, read

FORMAT = "numcheck baseline"
VERSION = 1
# Longest part of an error shown: it quotes the value that is wrong, which may be of any length.
LONGEST = 300


def load(path: Path) -> Baseline:
    """The Baseline in `path`: a baseline file, or records that are summarised now.

    Raises BadRecords for a file that is neither.
    """
    return loaded(path)[0]


@left_alone()
def loaded(path: Path) -> tuple[Baseline, Records | None]:
    """As `load`, and the records that it was made from; None where `path` is a baseline file."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise BadRecords(
            f"{path}: no file but a pipe or a device, which can be read once alone; write it to a file first"
        )
    try:
        with path.open("rb") as file:
            start = file.read(64).lstrip()
    except OSError as error:
        raise BadRecords(f"{path}: {error.strerror or error}; give a records file or a baseline") from None
    if not start.startswith(b"{") or b'"schema"' in start:
        records = read(path)
        return of(records), records
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")), str(path)), None
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecords(f"{path}: neither records nor a baseline ({error})") from None


def text(baseline: Baseline) -> str:
    """The file's text: one kernel's Case a line, so that a change of one Case is a change of one line."""
    data = plain(baseline)
    kernels = data.pop("kernels")
    lines = [json.dumps(data, separators=(",", ":"))[:-1] + ',"kernels":[']
    for index, kernel in enumerate(kernels):
        cases = kernel.pop("cases")
        lines.append(json.dumps(kernel, separators=(",", ":"))[:-1] + ',"cases":[')
        lines += [
            json.dumps(c, separators=(",", ":")) + ("," if i < len(cases) - 1 else "") for i, c in enumerate(cases)
        ]
        lines.append("]}" + ("," if index < len(kernels) - 1 else ""))
    return "\n".join([*lines, "]}"]) + "\n"


def plain(baseline: Baseline) -> dict[str, Any]:
    """A plain JSON object; `parse` is its inverse, up to `numcheck.baseline.rows.DIGITS` digits of each figure."""
    certificates = certified_json(baseline.certificates)
    return {
        "format": FORMAT,
        "version": VERSION,
        "when": baseline.when,
        "commit": baseline.commit,
        "accepted": [vars(a) for a in baseline.accepted],
        "unfinished": list(baseline.unfinished),
        "torn": list(baseline.torn),
        "profiles": list(baseline.profiles),
        **({"certificates": certificates} if certificates is not None else {}),
        "kernels": [known_json(k) for k in baseline.kernels.values()],
    }


def parse(data: object, file: str = "baseline") -> Baseline:
    """The Baseline that `plain` wrote. Raises BadRecords for anything else."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise BadRecords(f"{file}: not a numcheck baseline; `numcheck accept RECORDS --reason TEXT` writes one")
    if type(data.get("version")) is not int or not 1 <= data["version"] <= VERSION:
        raise BadRecords(
            f"{file}: baseline version {data.get('version')!r}, but this numcheck reads up to {VERSION}; "
            "install a newer numcheck"
        )
    try:
        kernels = [known(k) for k in data["kernels"]]
        return Baseline(
            {k.subject.key: k for k in kernels},
            text_of(data["when"], "when"),
            text_of(data["commit"], "commit"),
            tuple(Acceptance(**texts_of(a, "accepted")) for a in data["accepted"]),
            tuple(text_of(line, "unfinished") for line in data["unfinished"]),
            tuple(text_of(line, "torn") for line in data.get("torn", ())),
            tuple(text_of(name, "profiles") for name in data.get("profiles", ())),
            certified(data.get("certificates")),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, NumcheckError) as error:
        raise BadRecords(
            f"{file}: a damaged baseline ({type(error).__name__}: {str(error)[:LONGEST]}); restore it from the "
            "repository, or accept the records again"
        ) from None
