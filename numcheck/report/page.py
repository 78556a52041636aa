"""The page as a value: everything that a reviewer reads, in order, before it is HTML or Markdown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from numcheck.baseline import Baseline, Subject, of
from numcheck.compare import Comparison, compare
from numcheck.cycles import left_alone
from numcheck.finding import findings
from numcheck.record import Records
from numcheck.report import cards, cases, failures, faults, gates, headroom, ladder, ledger, near, provenance, summary
from numcheck.report.near import Near
from numcheck.report.sources import Sources, sources
from numcheck.report.summary import Cell
from numcheck.report.text import count
from numcheck.selection import Kernel, Selection, select


@dataclass(frozen=True)
class Page:
    """The sections of a report, top down."""

    when: str
    runs: list[str]
    summary: summary.Summary
    notes: list[tuple[Kernel, str, str]]
    failures: list[failures.Failure]
    kernels: list[gates.KernelView]
    cards: list[cards.Card]
    cases: cases.Cases
    ladders: list[ladder.Ladder]
    rungs: tuple[list[str], list[str]]
    order_dependent: list[ladder.OrderDependent]
    vacuous: list[ledger.Vacuous]
    vacuous_gates: list[ledger.Vacuous]
    skips: list[ledger.Skip]
    near: list[Near]
    beside: list[ledger.Beside]
    certificates: list[provenance.Certificate]
    fingerprints: list[provenance.Fingerprint]
    environments: tuple[list[str], list[provenance.EnvironmentRow]]
    seconds: list[tuple[str, float]]
    faults: faults.Faults | None
    troubles: list[provenance.Trouble]
    rows: int
    comparison: Comparison | None
    anchors: frozenset[str]
    sources: Sources

    def link(self, cell: Cell) -> str:
        """Where a cell of the matrix leads: to its failure, or to its kernel's card; "" where there is neither."""
        failure = failures.claim_anchor(cell.kernel, cell.law, cell.place)
        card = gates.kernel_anchor(cell.kernel, cell.place)
        return next((wanted for wanted in (failure, card) if wanted in self.anchors), "")

    @property
    def verdict(self) -> str:
        """What the comparison comes to, in a sentence with one reason: the answers below it have the others."""
        if self.comparison is None:
            return ""
        reason, *others = self.summary.sentences[-1].split("; ")
        more = f"; {count(len(others), 'more reason')} below" if others and not self.comparison.held else ""
        return f"{reason[:1].upper()}{reason[1:]}{more or ''.join(f'; {other}' for other in others)}"

    def order(self, subject: Subject) -> int:
        """Where a kernel stands among the cards; after all of them, where it has none."""
        subjects = [(card.kernel, card.place) for card in self.cards]
        key = subject.kernel, subject.place
        return subjects.index(key) if key in subjects else len(subjects)

    def card(self, subject: Subject) -> str:
        """Where the card of a compared kernel is, or ""."""
        found = gates.kernel_anchor(subject.kernel, subject.place)
        return found if found in self.anchors else ""


@left_alone()
def build(records: Records, base: Baseline | Comparison | None = None) -> Page:
    """The page that these records make; base: what they are compared with, or the comparison, made before."""
    chosen = select(records)
    found = findings(records)
    tally, lowest = headroom.tally(chosen)
    views = gates.kernels(chosen, tally, lowest)
    certificates = provenance.certificates(records)
    climbed = ladder.ladders(chosen)
    broken = failures.failures(chosen)
    empty, empty_gates = ledger.vacuous(chosen)
    broken_on_purpose = faults.faults(records)
    comparison = compare(base, of(records, chosen, found)) if isinstance(base, Baseline) else base
    uncertified = [c.oracle for c in certificates if c.status == "FAILED"]
    said = _with_faults(summary.summarise(chosen, found, uncertified), broken_on_purpose)
    said = _with_base(said, comparison)
    shown = cards.cards(records, chosen, said.lines, views, comparison)
    return Page(
        when=chosen.last,
        runs=list(dict.fromkeys(row["run"] for row in chosen.runs)),
        summary=said,
        notes=_notes(chosen),
        failures=broken,
        kernels=views,
        cards=shown,
        cases=cases.cases(chosen, comparison),
        ladders=climbed,
        rungs=ladder.columns(climbed),
        order_dependent=ladder.order_dependent(chosen),
        vacuous=empty,
        vacuous_gates=empty_gates,
        skips=ledger.skips(chosen),
        near=near.nearest(tally),
        beside=ledger.side_by_side(chosen),
        certificates=certificates,
        fingerprints=provenance.fingerprints(chosen),
        environments=provenance.environments(chosen),
        seconds=provenance.seconds(chosen),
        faults=broken_on_purpose,
        troubles=provenance.troubles(records, found, chosen),
        rows=len(records.rows),
        comparison=comparison,
        anchors=frozenset([f.anchor for f in broken[: failures.SHOWN]] + [card.anchor for card in shown]) - {""},
        sources=sources(records),
    )


def _with_faults(said: summary.Summary, found: faults.Faults | None) -> summary.Summary:
    """The first screen with what was said of broken kernels, which may be all that these records hold."""
    if found is None:
        return said
    alone = not said.cases and not said.claims
    sentences = [*([] if alone else said.sentences), *found.sentences]
    if not found.held:
        return replace(said, word="failed", headline="Did not hold", sentences=sentences)
    if alone:
        return replace(said, word="held", headline="Held", sentences=sentences)
    return replace(said, sentences=sentences)


def _with_base(said: summary.Summary, comparison: Comparison | None) -> summary.Summary:
    """The first screen with what the comparison comes to: "Held" is said of both, as the exit code is of a run."""
    if comparison is None:
        return said
    verdict = comparison.verdict if comparison.at else f"against the base it {comparison.verdict}"
    sentences = [*said.sentences, verdict]
    if said.word == "held":
        word, headline = ("held" if comparison.held else "failed"), comparison.conclusion.headline
        return replace(said, word=word, headline=headline, sentences=sentences)
    return replace(said, sentences=sentences)


def _notes(chosen: Selection) -> list[tuple[Kernel, str, str]]:
    # Runs of the same code say the same of each test, each time.
    said = ((kernel, law, note) for kernel, law, _, row in chosen.outcomes for note in row.get("notes", []))
    return list(dict.fromkeys(said))
