"""The rows of a baseline file: a kernel, a Case, a Gate, a certificate as JSON and back, each value checked.

Keys that a version added are left out where nothing is known, and unknown where they are left out: a file that was
written before them still reads.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, cast

from numcheck.baseline.known import Certified, Draws, Figure, GateKey, Known, Seen, Subject
from numcheck.case import Case
from numcheck.gate import GATE_KINDS
from numcheck.selection import Kernel, Place
from numcheck.verdict import Status

# Significant digits that the file keeps of a figure: a change of a gate that matters is far larger.
DIGITS = 6
# What a Gate's row ends in where nothing else is said: no lower limit, no spread, not vacuous.
USUAL = (None, None, "-inf", 0.0, False)


def _short(value: float) -> float | str:
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else str(value)


def known_json(known: Known) -> dict[str, Any]:
    """One kernel; `known` is the inverse."""
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
        **({"oracle": known.oracle} if known.oracle else {}),
        **({"drawn": {law: dict(by) for law, by in known.drawn.items()}} if known.drawn is not None else {}),
        **({"stopped": list(known.stopped)} if known.stopped else {}),
        "cases": [_seen_json(seen) for seen in known.cases.values()],
    }


def known(data: Mapping[str, Any]) -> Known:
    """The kernel that `known_json` wrote. Raises KeyError, TypeError, ValueError or InvalidCase for any other."""
    rank, place = data["place"]
    if type(rank) is not int:
        raise ValueError(f"place {data['place']!r}; allowed: a rank and a name")
    kernel = Kernel(text_of(data["specs"], "specs"), text_of(data["spec"], "spec"))
    subject = Subject(kernel, Place(rank, text_of(place, "place")))
    cases = [_seen(row) for row in data["cases"]]
    for law, status in data["laws"].items():
        _allowed(status, f"{data['spec']} under {law}")
    return Known(
        subject,
        dict(data["laws"]),
        _gates(data["pooled"]),
        texts_of(data["declared"], "declared"),
        texts_of(data["skipped"], "skipped"),
        {seen.case.key: seen for seen in cases},
        texts_of(data["machine"], "machine"),
        text_of(data.get("oracle", ""), "oracle"),
        None if data.get("drawn") is None else {law: _draws(by) for law, by in data["drawn"].items()},
        tuple(text_of(law, "stopped") for law in data.get("stopped", ())),
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
        **({"rungs": {law: dict(by) for law, by in seen.rungs.items()}} if seen.rungs is not None else {}),
        **({"order": seen.order} if seen.order else {}),
        **({"why": {law: dict(by) for law, by in seen.why.items()}} if seen.why else {}),
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
        text_of(data["phase"], "phase"),
        dict(data["status"]),
        outputs,
        _hashes(data["hashes"]),
        _gates(data["gates"]),
        {law: float(s) for law, s in data["seconds"].items()},
        *_bytes(data["bytes"]),
        None if data.get("rungs") is None else {law: _counts(by, "rungs") for law, by in data["rungs"].items()},
        {law: texts_of(by, "why") for law, by in data.get("why", {}).items()},
        text_of(data.get("order", ""), "order"),
    )


def _draws(data: Mapping[str, Mapping[str, object]]) -> Draws:
    return {what: _counts(by, f"drawn {what}") for what, by in data.items()}


def _counts(data: Mapping[str, object], what: str) -> dict[str, int]:
    return {name: _count(value, f"{name} of {what}") for name, value in data.items()}


def _count(value: object, what: str) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} as {what}; allowed: a whole number from 0")
    return value


def certified_json(certificates: Mapping[str, Certified] | None) -> dict[str, Any] | None:
    """By oracle; None where nothing is known of any."""
    if certificates is None:
        return None
    return {name: {**vars(c), "limit": _short(c.limit), "outputs": list(c.outputs)} for name, c in certificates.items()}


def certified(data: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Certified] | None:
    """The inverse of `certified_json`."""
    if data is None:
        return None
    return {
        name: Certified(
            text_of(row["status"], f"status of {name}"),
            text_of(row["vjp"], f"vjp of {name}"),
            float(row["limit"]),
            _count(row["cases"], f"cases of {name}"),
            tuple(text_of(output, f"outputs of {name}") for output in row["outputs"]),
        )
        for name, row in data.items()
    }


def text_of(value: object, what: str) -> str:
    """Raises ValueError for what is no text: it would be compared, sorted and printed as one."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} as {what}; allowed: text")
    return value


def texts_of(values: Mapping[str, object], what: str) -> dict[str, str]:
    """`values`, each of them text."""
    return {name: text_of(value, f"{name} of {what}") for name, value in values.items()}


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
    return {law: texts_of(by, "hashes") for laws, by in data.items() for law in laws.split(" ")}


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
