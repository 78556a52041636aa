"""Operators: each makes one small, plausible mistake at a place in a kernel's source.

An operator is a function (node, scope) that yields what the node might wrongly have been: source text, or a syntax
tree.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from numcheck.mutate import host, tiles, values
from numcheck.mutate.sites import Scope

Change = ast.AST | str
Operator = Callable[[ast.AST, Scope], Iterator[Change]]

OPERATORS: dict[str, Operator] = {**tiles.OPERATORS, **values.OPERATORS, **host.OPERATORS}


@dataclass(frozen=True)
class Edit:
    """One change of a source text: an operator puts `after` where `before` stands.

    start, end: the place in the module's source, in characters. line: its number, from 1.
    branch: the same for the start of the compile-time branch that it stands in, if it stands in one.
    """

    operator: str
    start: int
    end: int
    line: int
    before: str
    after: str
    branch: tuple[int, int] | None = None


def edits(scope: Scope, source: str) -> Iterator[Edit]:
    """Every change that an operator makes to the function of `scope`, in the order of the source."""
    starts = _line_starts(source)
    seen: set[tuple[int, int, str]] = set()
    for node in sorted(scope.nodes(), key=lambda n: (getattr(n, "lineno", 0), getattr(n, "col_offset", 0))):
        if not isinstance(node, ast.expr | ast.stmt):
            continue
        (start, end), branch = _span(source, starts, node), scope.branch(node)
        around = _span(source, starts, branch) if isinstance(branch, ast.expr | ast.stmt) else None
        for name, operator in OPERATORS.items():
            for change in operator(node, scope):
                after = _text(change, node)
                if (start, end, after) not in seen and after != source[start:end]:
                    seen.add((start, end, after))
                    yield Edit(name, start, end, node.lineno, source[start:end], after, around)


def span(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Where a node stands in a source text, in characters."""
    return _span(source, _line_starts(source), node)


def _text(change: Change, node: ast.AST) -> str:
    text = change if isinstance(change, str) else ast.unparse(ast.fix_missing_locations(change))
    if isinstance(node, ast.stmt):
        return text
    made = ast.parse(text, mode="eval").body
    return text if isinstance(made, ast.Call | ast.Name | ast.Attribute | ast.Subscript | ast.Constant) else f"({text})"


def _line_starts(source: str) -> list[int]:
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _span(source: str, starts: list[int], node: ast.expr | ast.stmt) -> tuple[int, int]:
    last = node.end_lineno or node.lineno
    return (
        _offset(source, starts, node.lineno, node.col_offset),
        _offset(source, starts, last, node.end_col_offset or node.col_offset),
    )


def _offset(source: str, starts: list[int], line: int, column: int) -> int:
    """The place in characters of a line and a column, which Python counts in UTF-8 bytes."""
    text = source[starts[line - 1] : starts[line]]
    return starts[line - 1] + len(text.encode()[:column].decode())
