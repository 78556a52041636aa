"""What no schema can say of a row: a Case that cannot exist, a verdict that its outputs or gates contradict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numcheck.case import Case
from numcheck.errors import InvalidCase
from numcheck.schema import excerpt
from numcheck.verdict import Status, worst

# Longest part of an error shown: it quotes the value that is wrong, which may be of any length.
LONGEST = 200


def wrong(row: Mapping[str, Any]) -> str:
    """What is wrong with a row that has the shape of its kind, or ""."""
    said = _said(row)
    return f"is no {row['kind']} row: it {said}" if said else ""


def _said(row: Mapping[str, Any]) -> str:
    judged = "case" in row and row["kind"] in ("started", "case", "fault", "bench")
    if judged and (said := _impossible(row["case"])):
        return f"has a case that cannot be: {said}"
    if row["kind"] == "outcome":
        return _findings(row["status"], row.get("findings", []))
    return _verdict(row) if row["kind"] in ("case", "pooled") else ""


def _findings(status: str, found: Sequence[Mapping[str, Any]]) -> str:
    for finding in found:
        if Status[status].held and not Status[finding["status"]].held:
            return f"has status {status}, but a finding of {finding['status']}"
        for name in ("first", "shrunk"):
            if said := _impossible(finding[name]):
                return f"has a {name} Case in its findings that cannot be: {said}"
    return ""


def _impossible(case: Mapping[str, Any]) -> str:
    """Why there is no such Case, or ""."""
    try:
        Case.from_json(case)
    except InvalidCase as error:
        return str(error)[:LONGEST]
    return ""


def _verdict(row: Mapping[str, Any]) -> str:
    """`Verdict.status` is the worst of its outputs, and a gate whose figure is NaN does not hold."""
    outputs: Mapping[str, Mapping[str, Any]] = row["outputs"]
    status = worst(Status[output["status"]] for output in outputs.values()).name
    if status != row["status"]:
        return f"has status {row['status']}, but the worst of its outputs is {status}"
    for gate in row["gates"]:
        if "nan" in (gate["value"], gate["limit"], gate["lower"]) and not gate.get("vacuous"):
            said = outputs.get(gate["output"], row)["status"]
            if Status[said].shown:
                return f"has a {excerpt(gate['kind'])} gate of {excerpt(gate['output'])} at NaN, and yet {said} for it"
    figures = row["figures"]
    if row["law"] == "memory" and ("measured" in figures) != ("formula" in figures):
        return "has one of figures.measured and figures.formula without the other"
    return ""
