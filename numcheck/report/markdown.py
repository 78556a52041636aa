"""The report as Markdown: the same verdict, failures and sections as the page; `brief` writes what fits a comment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numcheck.report.failures import Failure
from numcheck.report.markdown_against import compared
from numcheck.report.marks import code, plain, table
from numcheck.report.page import Page
from numcheck.report.sections import sections
from numcheck.report.summary import Cell
from numcheck.report.text import GLYPHS, count

# Failures told in full: the HTML page has the rest.
FAILURES = 10


def write(page: Page) -> str:
    """The whole text."""
    shown = {failure.replay for failure in page.failures[:FAILURES]}
    blocks = [*_head(page), *compared(page.comparison, shown), *_failures(page.failures), *sections(page)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _head(page: Page) -> Iterator[str]:
    s = page.summary
    yield f"# {s.headline}"
    places = ", ".join(s.places) or "nothing ran"
    yield (
        plain("; ".join(s.sentences) + ".")
        + " "
        + plain(f"{count(s.kernels, 'kernel')}, {count(len(s.laws), 'law')}, {count(s.cases, 'Case')}; {places}.")
    )
    for cell in s.failed[:FAILURES]:
        yield f"- **{cell.status}** {plain(cell.kernel.spec)} under {plain(cell.law)} ({plain(cell.place.name)})"
    yield table(
        ["Kernel", "Ran as", *map(plain, s.laws)],
        [[line.kernel.spec, line.ran, *map(_cell, line.cells)] for line in s.lines],
    )
    if page.troubles:
        yield f"{count(len(page.troubles), 'problem')} in the records, listed below."


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return "not asked"
    parts = ", ".join(f"{n} {s}" for s, n in cell.parts) if len(cell.parts) > 1 else str(cell.cases or "")
    return f"{GLYPHS[cell.status]} {cell.status} {parts}".strip()


def _failures(found: Sequence[Failure]) -> Iterator[str]:
    if found:
        yield "## Failures"
    for failure in found[:FAILURES]:
        yield from _failure(failure)
    if len(found) > FAILURES:
        yield f"{len(found) - FAILURES} more in the HTML page."


def _failure(f: Failure) -> Iterator[str]:
    yield f"### {f.status}: {plain(f.kernel.spec)} under {plain(f.law)}{', pooled' if f.pooled and f.judged else ''}"
    if f.claim:
        yield f"Claimed: {plain(f.claim)}"
    if f.judged and not f.pooled:
        yield f"{f.failed} of {count(f.judged, 'Case')} failed, {plain(f.ran)}."
    for name, status, where, why in f.outputs:
        yield f"- {plain(name)} {status}: {plain(why)}" + (f"\n  {plain(where)}" if where else "")
    yield table(
        ["Output", "Gate", "Value", "Allowed", "Why"],
        [[g.output, g.kind, g.value, g.allowed, g.reason] for g in f.gates],
    )
    if f.facts:
        rows = [["shrunk", *(fact.shrunk for fact in f.facts)]] if f.shrunk else []
        yield table(
            ["Case", *(plain(fact.name) for fact in f.facts)], [*rows, ["first", *(fact.first for fact in f.facts)]]
        )
    if f.replay:
        yield code(f.replay)
