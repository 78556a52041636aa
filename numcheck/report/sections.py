"""The sections of the page below its verdict, as Markdown tables."""

from __future__ import annotations

from collections.abc import Iterator

from numcheck.report.faults import Faults
from numcheck.report.marks import ROWS, plain, table
from numcheck.report.page import Page


def sections(page: Page) -> Iterator[str]:
    """Each that has something to say, under its title."""
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
    for title, marks in (
        ("Survivors", (*found.survivors, *found.reasoned, *found.refuted)),
        ("Hung, judged by no law", found.hung),
    ):
        rows = [[m.id, m.spec, m.where, m.before, m.after, m.reason or m.why] for m in marks]
        yield title, table(["Mutant", "Kernel", "Line", "Was", "Is", "Why"], rows)
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
