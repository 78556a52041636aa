"""The report as Markdown: a verdict short enough for a comment first, then the same sections as the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from numcheck.report.failures import Failure
from numcheck.report.faults import Faults
from numcheck.report.markdown_against import compared
from numcheck.report.marks import ROWS, code, plain, table
from numcheck.report.page import Page
from numcheck.report.summary import Cell
from numcheck.report.text import GLYPHS, count

# Failures told in full: a comment is read, not searched; the HTML page has the rest.
FAILURES = 10
# GitHub takes comments of up to 65,536 characters; what is over it is refused whole.
COMMENT = 65_000
LEFT_OUT = "The rest is in the HTML page."


def write(page: Page, brief: bool = False) -> str:
    """The whole text; or, brief, as much of its beginning as a comment on a pull request takes."""
    blocks = [*_head(page, brief), *compared(page.comparison), *_failures(page.failures)]
    if brief:
        return _fitting([block for block in blocks if block])
    return "\n\n".join(block for block in (*blocks, *_rest(page)) if block) + "\n"


def _fitting(blocks: Sequence[str]) -> str:
    """The blocks that fit into a comment, whole, and a word where some do not."""
    kept: list[str] = []
    size = len(LEFT_OUT)
    for block in blocks:
        size += len(block) + 2
        if size > COMMENT:
            return "\n\n".join([*kept, LEFT_OUT]) + "\n"
        kept.append(block)
    return "\n\n".join(kept) + "\n"


def _head(page: Page, brief: bool) -> Iterator[str]:
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
        where = "in the HTML page" if brief else "below"
        yield f"{count(len(page.troubles), 'problem')} in the records, listed {where}."


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


def _rest(page: Page) -> Iterator[str]:
    for title, text in (*_faults(page.faults), *_sections(page)):
        if text:
            yield f"## {title}"
            yield text


def _faults(found: Faults | None) -> Iterator[tuple[str, str]]:
    if found is None:
        return
    yield (
        "Fault by law",
        table(
            ["Kernel", "Mutants", "Killed", "Share", "Raised", "Explained", "Survivors", "allclose catches"],
            [
                [x.name, x.judged, x.dead, x.share, x.raised, x.statuses["EQUIVALENT"], x.alive, x.usual]
                for x in found.specs
            ],
        )
        or plain("; ".join(found.sentences)),
    )
    yield (
        "Declared faults",
        table(
            ["Fault", "Named law", "Status", "Case", "allclose"],
            [
                [x.name, x.expected, next(iter(x.statuses)), x.case, "catches" if x.caught else "passes"]
                for x in found.declared
            ],
        ),
    )
    yield (
        "Source mutants by operator",
        table(
            ["Operator", "Mutants", *found.laws, "Explained", "Survivors", "allclose catches"],
            [
                [x.name, x.judged, *(x.killed[law] for law in found.laws), x.statuses["EQUIVALENT"], x.alive, x.usual]
                for x in found.operators
            ],
        ),
    )
    yield (
        "Survivors",
        table(
            ["Mutant", "Kernel", "Line", "Was", "Is", "Why"],
            [
                [m.id, m.spec, m.where, m.before, m.after, m.reason or m.why]
                for m in (*found.survivors, *found.reasoned, *found.refuted)
            ],
        ),
    )
    yield "Laws that caught nothing", plain(found.idleness)


def _sections(page: Page) -> Iterator[tuple[str, str]]:
    yield (
        "Problems in the records",
        "\n".join(f"- {plain(t.what)}: {plain(t.text)} {plain(t.case)}".rstrip() for t in page.troubles[:ROWS]),
    )
    yield (
        "Gates",
        table(
            ["Kernel", "Device", "Law", "Output", "Gate", "Figures", "Beyond", "Vacuous", "Lowest headroom", "Median"],
            [
                [
                    v.kernel.spec,
                    v.place.name,
                    r.law,
                    r.output,
                    r.kind,
                    r.figures,
                    r.failed,
                    r.vacuous,
                    r.lowest,
                    r.median,
                ]
                for v in page.kernels
                for r in v.rows
            ],
        ),
    )
    yield (
        "Repeat ladder",
        table(
            ["Kernel", "Ran as", "Rung", "What happened", "Power at 95 % confidence"],
            [[x.kernel.spec, x.ran, r.name, r.told, r.power] for x in page.ladders for r in x.rungs.values()],
        ),
    )
    yield (
        "Order-dependent outputs",
        table(
            ["Kernel", "Output", "Device", "Differed", "Cases", "Rungs", "First seen"],
            [
                [o.kernel.spec, o.output, o.place.name, o.differed, o.cases, o.rungs, o.why]
                for o in page.order_dependent
            ],
        ),
    )
    yield (
        "What could not have failed",
        table(
            ["Kernel", "Law", "Output", "Gate", "Device", "Vacuous", "Cases", "Why, most often"],
            [
                [v.kernel.spec, v.law, v.output, v.what, v.place.name, v.vacuous, v.cases, v.why]
                for v in (*page.vacuous, *page.vacuous_gates)
            ],
        ),
    )
    yield (
        "Skip ledger",
        table(
            ["Reason", "Needs", "On", "Claims that wait", "Cases"],
            [
                [k.reason, k.needs or "not said", k.place.name, ", ".join(k.claims), k.cases or "all"]
                for k in page.skips
            ],
        ),
    )
    yield (
        "Nearest to a limit",
        table(
            ["Headroom", "Kernel", "Law", "Gate", "Value", "Allowed", "Case"],
            [
                [n.headroom, n.kernel.spec, n.law, f"{n.kind} of {n.output}", n.value, n.allowed, n.case]
                for n in page.near
            ],
        ),
    )
    yield (
        "Interpreter and device, side by side",
        table(
            ["Kernel", "Law", "Left", "Right", "Cases", "Same status", "Same bits"],
            [
                [b.kernel.spec, b.law, b.left, b.right, b.cases, b.agree, f"{b.bits} of {b.compared}"]
                for b in page.beside
            ],
        ),
    )
    yield (
        "Oracle certificates",
        table(
            ["Oracle", "Status", "Worst", "Limit", "VJP", "Cases"],
            [[c.oracle, c.status, c.worst, c.limit, c.vjp, c.cases] for c in page.certificates],
        ),
    )
    yield (
        "Policy fingerprints",
        table(
            ["Kernel", "Device", "Best", "Next", "Next over best", "Explains"],
            [
                [f.kernel.spec, f.place.name, f.best, f.second, f.gap, "yes" if f.explained else "no"]
                for f in page.fingerprints
            ],
        ),
    )
    ids, facts = page.environments
    yield "Environment", table(["Fact", *map(plain, ids)], [[fact.name, *fact.values] for fact in facts])
