"""Calls: from where a kernel's helpers are called, and whether every such place is in a compile-time branch.

A helper that is called from such branches alone is in those builds of a kernel that enter one of them, and in no other.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from numcheck.mutate.operators import span
from numcheck.mutate.reach import Function
from numcheck.mutate.sites import Scope, called

# A module, and the first and the last character of a piece of its source.
Place = tuple[str, int, int]


def static_calls(
    functions: Sequence[Function], scope: Callable[[Function], Scope], source: Callable[[str], str]
) -> dict[Function, tuple[Place, ...]]:
    """For each helper that compile-time branches alone lead to: where these branches start."""
    jitted = [f for f in functions if f.jitted]
    sites: dict[str, list[tuple[Function, Place | None]]] = {}
    for caller in jitted:
        inside, text = scope(caller), source(caller.module)
        for node in ast.walk(caller.node):
            if called(node):
                branch = inside.branch(node)
                place = (caller.module, *span(text, branch)) if isinstance(branch, ast.expr | ast.stmt) else None
                sites.setdefault(called(node), []).append((caller, place))

    def leading(function: Function, above: tuple[Function, ...]) -> tuple[Place, ...]:
        """The branches that lead to `function`; () where it is reached without one."""
        found: list[Place] = []
        for caller, place in sites.get(function.name, []):
            if caller in above:
                continue
            places = (place,) if place is not None else leading(caller, (*above, function))
            if not places:
                return ()
            found += places
        return tuple(dict.fromkeys(found))

    return {function: leading(function, (function,)) for function in jitted}
