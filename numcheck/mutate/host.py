"""Operators on the host's side of a kernel: grids, strides, memory that is set up, arguments that are checked."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator

from numcheck.mutate.sites import Scope, called
from numcheck.mutate.tiles import exchanged, minus_one

Changes = Iterator[ast.AST | str]

UNSET = {"zeros": "empty", "zeros_like": "empty_like", "new_zeros": "new_empty", "full": "", "ones": "empty"}
# Methods that may be forgotten: what is left is a tensor of the same kind, or nearly.
FORGOTTEN = ("contiguous", "clone", "t", "transpose", "permute", "detach")


def drop_check(node: ast.AST, scope: Scope) -> Changes:
    """A wrong argument that is not refused."""
    if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Raise):
        yield "pass"


def unset_memory(node: ast.AST, scope: Scope) -> Changes:
    """Memory that is taken as it comes where it should be zero."""
    if scope.jitted:
        return
    if isinstance(node, ast.Expr) and called(node.value) in ("zero_", "fill_"):
        yield "pass"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and UNSET.get(node.func.attr):
        changed = copy.deepcopy(node)
        assert isinstance(changed.func, ast.Attribute)
        changed.func.attr = UNSET[node.func.attr]
        yield changed


def drop_last_program(node: ast.AST, scope: Scope) -> Changes:
    """A grid that is one program short along an axis."""
    parent = scope.parents.get(node)
    launched = isinstance(parent, ast.Subscript) and parent.slice is node and _is_launch(parent, scope)
    named = isinstance(parent, ast.Assign) and parent.value is node and _is_grid(parent, scope)
    if isinstance(node, ast.Tuple) and (launched or named):
        for place, extent in enumerate(node.elts):
            if not (isinstance(extent, ast.Constant) and extent.value == 1):
                yield ast.Tuple([minus_one(e) if i == place else e for i, e in enumerate(node.elts)], ast.Load())


def _is_launch(node: ast.Subscript, scope: Scope) -> bool:
    parent = scope.parents.get(node)
    return isinstance(parent, ast.Call) and parent.func is node


def _is_grid(assignment: ast.Assign, scope: Scope) -> bool:
    names = {t.id for t in assignment.targets if isinstance(t, ast.Name)}
    launches = (n for n in ast.walk(scope.function.node) if isinstance(n, ast.Subscript) and _is_launch(n, scope))
    return any(isinstance(launch.slice, ast.Name) and launch.slice.id in names for launch in launches)


def wrong_strides(node: ast.AST, scope: Scope) -> Changes:
    """A tensor walked as if it were contiguous; two of its strides in each other's place."""
    if scope.jitted or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if called(node) == "stride":
        arguments = ", ".join(map(ast.unparse, node.args))
        yield f"{ast.unparse(node.func.value)}.contiguous().stride({arguments})"
        if node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value in (0, 1):
            yield ast.Call(node.func, [ast.Constant(1 - node.args[0].value)], [])


def swap_index(node: ast.AST, scope: Scope) -> Changes:
    """An index at the place of its neighbour: x[:, s] for x[s, :]."""
    if scope.jitted or not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Tuple):
        return
    for first, second in itertools.pairwise(node.slice.elts):
        if isinstance(first, ast.Slice) != isinstance(second, ast.Slice) and ast.unparse(first) != ast.unparse(second):
            yield exchanged(node, first, second)


def forget_method(node: ast.AST, scope: Scope) -> Changes:
    """A copy or a transposition forgotten."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in FORGOTTEN:
        yield node.func.value
    if isinstance(node, ast.Attribute) and node.attr == "mT" and not scope.jitted:
        yield node.value


OPERATORS: dict[str, Callable[[ast.AST, Scope], Changes]] = {
    "drop-check": drop_check,
    "unset-memory": unset_memory,
    "drop-last-program": drop_last_program,
    "wrong-strides": wrong_strides,
    "swap-index": swap_index,
    "forget-method": forget_method,
}
