"""Operators on how a kernel walks its data: masks, bounds, tiles, programs, strides, stores and atomics."""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator

from numcheck.mutate.sites import Scope, called, keyword, memory_call

Changes = Iterator[ast.AST | str]

BOUNDS: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
RANGES = ("range", "static_range")


def without(call: ast.Call, *names: str) -> ast.Call:
    """The call less some keywords."""
    changed = copy.deepcopy(call)
    changed.keywords = [k for k in changed.keywords if k.arg not in names]
    return changed


def minus_one(node: ast.expr) -> ast.expr:
    """The expression less one."""
    return ast.BinOp(copy.deepcopy(node), ast.Sub(), ast.Constant(1))


def drop_mask(node: ast.AST, scope: Scope) -> Changes:
    """A load, store or atomic without its mask."""
    if isinstance(node, ast.Call) and memory_call(node) and keyword(node, "mask") is not None:
        yield without(node, "mask", "other")


def drop_conjunct(node: ast.AST, scope: Scope) -> Changes:
    """One half of a mask forgotten, or one part of a condition."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd) and scope.jitted:
        yield from (kept for kept, lost in ((node.left, node.right), (node.right, node.left)) if not scope.always(lost))
    if isinstance(node, ast.BoolOp):
        for index in range(len(node.values)):
            left = [value for i, value in enumerate(node.values) if i != index]
            yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def drop_other(node: ast.AST, scope: Scope) -> Changes:
    """A masked load that leaves its masked-off lanes undefined."""
    if isinstance(node, ast.Call) and called(node) == "load" and keyword(node, "other") is not None:
        yield without(node, "other")


def wrong_bound(node: ast.AST, scope: Scope) -> Changes:
    """`<` for `<=`, and the like."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in BOUNDS and not scope.always(node):
        yield ast.Compare(node.left, [BOUNDS[type(node.ops[0])](), *node.ops[1:]], node.comparators)


def opposite(node: ast.AST, scope: Scope) -> Changes:
    """`==` for `!=`, and the like."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES:
        yield ast.Compare(node.left, [OPPOSITES[type(node.ops[0])](), *node.ops[1:]], node.comparators)


def off_by_one(node: ast.AST, scope: Scope) -> Changes:
    """A bound, or the start of a loop, that is one off."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in BOUNDS and len(node.ops) == 1:
        yield ast.Compare(node.left, node.ops, [minus_one(node.comparators[0])])
    if called(node) in RANGES and isinstance(node, ast.Call) and len(node.args) > 1:
        start = ast.BinOp(copy.deepcopy(node.args[0]), ast.Add(), ast.Constant(1))
        yield ast.Call(node.func, [start, *node.args[1:]], node.keywords)


def drop_last_tile(node: ast.AST, scope: Scope) -> Changes:
    """A loop that ends one trip early; a count of tiles that is rounded down."""
    if isinstance(node, ast.Call) and called(node) in RANGES and node.args:
        place = 0 if len(node.args) == 1 else 1
        arguments = [minus_one(a) if i == place else a for i, a in enumerate(node.args)]
        yield ast.Call(node.func, arguments, node.keywords)
    if called(node) == "cdiv" and isinstance(node, ast.Call) and len(node.args) == 2:
        yield ast.BinOp(node.args[0], ast.FloorDiv(), node.args[1])
    # -(-a // b) rounds up without a function.
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.BinOp):
        division = node.operand
        if isinstance(division.op, ast.FloorDiv) and isinstance(division.left, ast.UnaryOp):
            yield ast.BinOp(division.left.operand, ast.FloorDiv(), division.right)


def ignore_program(node: ast.AST, scope: Scope) -> Changes:
    """A program that takes itself for the first of its axis."""
    if called(node) == "program_id" and scope.jitted:
        yield f"{ast.unparse(node)} * 0"


def swap_program(node: ast.AST, scope: Scope) -> Changes:
    """A program that asks for the wrong axis of the grid."""
    if called(node) == "program_id" and isinstance(node, ast.Call) and scope.jitted:
        axis = node.args[0] if node.args else keyword(node, "axis")
        others = sorted(_axes(scope.function.node) - {getattr(axis, "value", None)})
        if isinstance(axis, ast.Constant) and others:
            yield ast.Call(node.func, [ast.Constant(others[0])], [])


def _axes(function: ast.AST) -> set[int]:
    """The axes of the grid that a kernel asks for by number."""
    calls = (n for n in ast.walk(function) if called(n) == "program_id" and isinstance(n, ast.Call) and n.args)
    arguments = (call.args[0] for call in calls)
    return {a.value for a in arguments if isinstance(a, ast.Constant) and isinstance(a.value, int)}


def swap_strides(node: ast.AST, scope: Scope) -> Changes:
    """Two strides of one address in each other's place."""
    if not (scope.jitted and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
        return
    parent = scope.parents.get(node)
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Add):
        return  # the whole sum is the site
    strides = [term.right for term in _terms(node) if _is_stride(term, scope)]
    for first, second in itertools.pairwise(strides):
        names = (ast.unparse(first), ast.unparse(second))
        if names[0] != names[1] and scope.is_address(node):
            yield exchanged(node, first, second)


def _terms(node: ast.expr) -> list[ast.BinOp]:
    """The products that a sum adds up."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) else []


def _is_stride(term: ast.BinOp, scope: Scope) -> bool:
    """index * stride, with the stride among the function's parameters and in lower case, as sizes are not."""
    name = term.right
    return isinstance(name, ast.Name) and name.id in scope.parameters() and not name.id.isupper()


def exchanged(node: ast.expr, first: ast.expr, second: ast.expr) -> ast.expr:
    """A copy of `node` in which two of its parts stand in each other's place."""
    return copy.deepcopy(node, {id(first): copy.copy(second), id(second): copy.copy(first)})


def swap_axes(node: ast.AST, scope: Scope) -> Changes:
    """[:, None] for [None, :]: a vector laid along the other axis."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) and not scope.is_address(node):
        parts = node.slice.elts
        if scope.jitted and len(parts) == 2 and {_is_none(p) for p in parts} == {True, False}:
            yield ast.Subscript(node.value, ast.Tuple([parts[1], parts[0]], ast.Load()), ast.Load())


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def atomic_to_store(node: ast.AST, scope: Scope) -> Changes:
    """An atomic add as load, add and store, where programs lose each other's sums; and as a plain store."""
    if not (isinstance(node, ast.Expr) and called(node.value) == "atomic_add" and isinstance(node.value, ast.Call)):
        return
    call = node.value
    language = ast.unparse(call.func).removesuffix(".atomic_add")
    if len(call.args) < 2:
        return
    at, value = (ast.unparse(a) for a in call.args[:2])
    mask = keyword(call, "mask") or (call.args[2] if len(call.args) > 2 else None)
    masked = f", mask={ast.unparse(mask)}" if mask is not None else ""
    yield f"{language}.store({at}, {language}.load({at}{masked}) + {value}{masked})"
    yield f"{language}.store({at}, {value}{masked})"


def drop_store(node: ast.AST, scope: Scope) -> Changes:
    """Memory that is left unwritten."""
    if isinstance(node, ast.Expr) and called(node.value) in ("store", "atomic_add") and scope.jitted:
        yield "pass"


OPERATORS: dict[str, Callable[[ast.AST, Scope], Changes]] = {
    "drop-mask": drop_mask,
    "drop-conjunct": drop_conjunct,
    "drop-other": drop_other,
    "wrong-bound": wrong_bound,
    "opposite": opposite,
    "off-by-one": off_by_one,
    "drop-last-tile": drop_last_tile,
    "ignore-program": ignore_program,
    "swap-program": swap_program,
    "swap-strides": swap_strides,
    "swap-axes": swap_axes,
    "atomic-to-store": atomic_to_store,
    "drop-store": drop_store,
}
