"""Marks of Markdown: plain text in which no reader, not GitHub either, finds a mark, link or mention; code; tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from numcheck.harmless import clean
from numcheck.report.text import count

# Rows of a table: a comment is read, not searched; the HTML page has the rest.
ROWS = 40
# Leaves no mark and joins what is around it: an address or a mention with one in it is none.
JOINER = "\u2060"
# Bare addresses, mentions and numbers of issues become links and calls after all else was read, escaped or not.
_LINKED = re.compile(r"www(?=\.)|:(?=//)|@|#|gh-(?=\d)", re.IGNORECASE)
# What GitHub may take for a commit and link to: seven hex digits or more, of which a whole number is none.
_COMMIT = re.compile(r"(?<![0-9A-Za-z])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,64}(?![0-9A-Za-z])")


def plain(text: object) -> str:
    """`text` so that Markdown and HTML read nothing into it, on one line."""
    flat = clean(str(text)).replace("\n", " ").replace("\t", " ")
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        flat = flat.replace(mark, entity)
    for mark in "\\`*_{}[]()#+!|~@$":
        flat = flat.replace(mark, "\\" + mark)
    flat = _LINKED.sub(lambda match: match.group() + JOINER, flat)
    return _COMMIT.sub(lambda match: f"`{match.group()}`", flat)


def span(text: str) -> str:
    """`text` as code within a line, which it cannot leave; not for a table, whose cells end at a bar even there."""
    flat = clean(text).replace("\n", " ").replace("\t", " ")
    if not flat.strip():
        return ""
    fence = "`"
    while fence in flat:
        fence += "`"
    return (
        f"{fence} {flat} {fence}" if "`" in (flat[0], flat[-1]) or flat[0] == flat[-1] == " " else fence + flat + fence
    )


def code(text: str) -> str:
    """`text` as a code block that it cannot leave."""
    flat = clean(text)
    fence = "```"
    while fence in flat:
        fence += "`"
    return f"{fence}\n{flat}\n{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; "" where there is no row. Cells are plain text."""
    body = [f"| {' | '.join(plain(cell) for cell in row)} |" for row in rows]
    if not body:
        return ""
    left = [f"... and {count(len(body) - ROWS, 'row')} more in the HTML page"] if len(body) > ROWS else []
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *body[:ROWS]]) + (
        "\n\n" + left[0] if left else ""
    )
