"""The baseline file: small JSON, one Case a line, kept in a repository with the reasons why it was accepted."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from numcheck.baseline.gather import of
from numcheck.baseline.known import Acceptance, Baseline, Figure, GateKey, Known, Seen, Subject
from numcheck.case import Case
from numcheck.errors import BadRecords, NumcheckError
from numcheck.gate import GATE_KINDS
from numcheck.record import read
from numcheck.selection import Kernel, Place
from numcheck.verdict import Status

FORMAT = "numcheck baseline"
VERSION = 1
# Significant digits that the file keeps of a figure: a change of a gate that matters is far larger.
DIGITS = 6
# What a Gate's row ends in where nothing else is said: no lower limit, no spread, not vacuous.
USUAL = (None, None, "-inf", 0.0, False)


def load(path: Path) -> Baseline:
    """The Baseline in `path`: a baseline file, or records that are summarised now.

    Raises BadRecords for a file that is neither.
    """
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
        return of(read(path))
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")), str(path))
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
    """A plain JSON object; `parse` is its inverse, up to `DIGITS` digits of each figure."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "when": baseline.when,
        "commit": baseline.commit,
        "accepted": [vars(a) for a in baseline.accepted],
        "unfinished": list(baseline.unfinished),
        "torn": list(baseline.torn),
        "kernels": [_known_json(k) for k in baseline.kernels.values()],
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
        known = [_known(k) for k in data["kernels"]]
        return Baseline(
            {k.subject.key: k for k in known},
            _text(data["when"], "when"),
            _text(data["commit"], "commit"),
            tuple(Acceptance(**_texts(a, "accepted")) for a in data["accepted"]),
            tuple(_text(line, "unfinished") for line in data["unfinished"]),
            tuple(_text(line, "torn") for line in data.get("torn", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, NumcheckError) as error:
        raise BadRecords(
            f"{file}: a damaged baseline ({type(error).__name__}: {error}); restore it from the repository, or "
            "accept the records again"
        ) from None


def _short(value: float) -> float | str:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def _known_json(known: Known) -> dict[str, Any]:
    kernel, place = known.subject.kernel, known.subject.place
    return {
        "specs": kernel.specs,
        "spec": kernel.spec,
        "place": [place.rank, place.name],
        "laws": dict(known.laws),
        "pooled": _gates_json(known.pooled),
        "declared": dict(known.declared),
        "skipped": dict(known.skipped),
        "machine": dict(known.machine),
        "cases": [_seen_json(seen) for seen in known.cases.values()],
    }


def _known(data: Mapping[str, Any]) -> Known:
    rank, place = data["place"]
    if type(rank) is not int:
        raise ValueError(f"place {data['place']!r}; allowed: a rank and a name")
    kernel = Kernel(_text(data["specs"], "specs"), _text(data["spec"], "spec"))
    subject = Subject(kernel, Place(rank, _text(place, "place")))
    cases = [_seen(row) for row in data["cases"]]
    for law, status in data["laws"].items():
        _allowed(status, f"{data['spec']} under {law}")
    return Known(
        subject,
        dict(data["laws"]),
        _gates(data["pooled"]),
        _texts(data["declared"], "declared"),
        _texts(data["skipped"], "skipped"),
        {seen.case.key: seen for seen in cases},
        _texts(data["machine"], "machine"),
    )


def _allowed(status: object, where: str) -> None:
    """Raises ValueError for what is no status: everything that reads a baseline looks them up by name."""
    if status not in Status.__members__:
        raise ValueError(f"status {status!r} of {where}; allowed: {', '.join(Status.__members__)}")


def _seen_json(seen: Seen) -> dict[str, Any]:
    outputs = {law: {o: s for o, s in by.items() if s != "PASS"} for law, by in seen.outputs.items()}
    return {
        "case": seen.case.to_json(),
        "phase": seen.phase,
        "status": dict(seen.status),
        "names": {law: list(by) for law, by in seen.outputs.items()},
        "outputs": {law: by for law, by in outputs.items() if by},
        "hashes": _hashes_json(seen.hashes),
        "gates": _gates_json(seen.gates),
        "seconds": {law: _short(s) for law, s in seen.seconds.items()},
        "bytes": [seen.measured_bytes, seen.formula_bytes],
    }


def _seen(data: Mapping[str, Any]) -> Seen:
    outputs = {
        law: {name: data["outputs"].get(law, {}).get(name, "PASS") for name in names}
        for law, names in data["names"].items()
    }
    for law, status in data["status"].items():
        _allowed(status, f"a Case under {law}")
    for law, by in outputs.items():
        for name, status in by.items():
            _allowed(status, f"{name} under {law}")
    return Seen(
        Case.from_json(data["case"]),
        _text(data["phase"], "phase"),
        dict(data["status"]),
        outputs,
        _hashes(data["hashes"]),
        _gates(data["gates"]),
        {law: float(s) for law, s in data["seconds"].items()},
        *_bytes(data["bytes"]),
    )


def _text(value: object, what: str) -> str:
    """Raises ValueError for what is no text: it would be compared, sorted and printed as one."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} as {what}; allowed: text")
    return value


def _texts(values: Mapping[str, object], what: str) -> dict[str, str]:
    return {name: _text(value, f"{name} of {what}") for name, value in values.items()}


def _bytes(row: list[object]) -> tuple[int | None, int | None]:
    """Measured and by the formula; either may be unknown."""
    measured, formula = row
    for count in row:
        if count is not None and (type(count) is not int or count < 0):
            raise ValueError(f"{count!r} bytes; allowed: a whole number from 0, or null")
    return cast("int | None", measured), cast("int | None", formula)


def _hashes_json(hashes: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """By law; laws that agree share one entry, whose key names them."""
    shared: dict[str, list[str]] = {}
    for law, by in hashes.items():
        if by:
            shared.setdefault(json.dumps(by, sort_keys=True), []).append(law)
    return {" ".join(laws): json.loads(by) for by, laws in shared.items()}


def _hashes(data: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    return {law: _texts(by, "hashes") for laws, by in data.items() for law in laws.split(" ")}


def _gates_json(gates: Mapping[GateKey, Figure]) -> dict[str, list[Any]]:
    return {" ".join(key): _figure_json(figure) for key, figure in gates.items()}


def _gates(data: Mapping[str, list[Any]]) -> dict[GateKey, Figure]:
    return {_gate_key(key): _figure(figure) for key, figure in data.items()}


def _gate_key(key: str) -> GateKey:
    # An output's name may hold spaces, a law's or a kind's never does.
    law, rest = key.split(" ", 1)
    output, kind = rest.rsplit(" ", 1)
    if kind not in GATE_KINDS:
        raise ValueError(f"gate kind {kind!r} of {output} under {law}; allowed: {', '.join(GATE_KINDS)}")
    return law, output, kind


def _figure_json(figure: Figure) -> list[Any]:
    """[value, limit, lower, spread, vacuous], cut where the rest is what is usual."""
    row = [*map(_short, (figure.value, figure.limit, figure.lower, figure.spread)), figure.vacuous]
    while len(row) > 2 and row[-1] == USUAL[len(row) - 1]:
        row.pop()
    return row


def _figure(row: list[Any]) -> Figure:
    value, limit, lower, spread, vacuous = row + list(USUAL[len(row) :])
    return Figure(float(value), float(limit), float(lower), float(spread), bool(vacuous))
