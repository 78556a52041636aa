"""The page as a value: everything that a reviewer reads, in order, before it is HTML or Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from numcheck.finding import findings
from numcheck.record import Records
from numcheck.report import failures, gates, ladder, ledger, provenance, summary
from numcheck.report.selection import Kernel, Selection, select


@dataclass(frozen=True)
class Page:
    """The sections of a report, top down."""

    when: str
    runs: list[str]
    summary: summary.Summary
    notes: list[tuple[Kernel, str, str]]
    failures: list[failures.Failure]
    kernels: list[gates.KernelView]
    ladders: list[ladder.Ladder]
    order_dependent: list[ladder.OrderDependent]
    vacuous: list[ledger.Vacuous]
    vacuous_gates: list[ledger.Vacuous]
    skips: list[ledger.Skip]
    near: list[gates.Near]
    beside: list[ledger.Beside]
    certificates: list[provenance.Certificate]
    fingerprints: list[provenance.Fingerprint]
    environments: tuple[list[str], list[provenance.EnvironmentRow]]
    seconds: list[tuple[str, float]]
    troubles: list[provenance.Trouble]
    rows: int


def build(records: Records) -> Page:
    """The page that these records make."""
    chosen = select(records)
    found = findings(records)
    views, near = gates.kernels(chosen)
    empty, empty_gates = ledger.vacuous(chosen)
    return Page(
        when=chosen.last,
        runs=list(dict.fromkeys(row["run"] for row in chosen.runs)),
        summary=summary.summarise(chosen, found),
        notes=_notes(chosen),
        failures=failures.failures(chosen),
        kernels=views,
        ladders=ladder.ladders(chosen),
        order_dependent=ladder.order_dependent(chosen),
        vacuous=empty,
        vacuous_gates=empty_gates,
        skips=ledger.skips(chosen),
        near=near,
        beside=ledger.side_by_side(chosen),
        certificates=provenance.certificates(records),
        fingerprints=provenance.fingerprints(chosen),
        environments=provenance.environments(chosen),
        seconds=provenance.seconds(chosen),
        troubles=provenance.troubles(records, found, chosen),
        rows=len(records.rows),
    )


def _notes(chosen: Selection) -> list[tuple[Kernel, str, str]]:
    return [(kernel, law, note) for kernel, law, _, row in chosen.outcomes for note in row.get("notes", [])]
