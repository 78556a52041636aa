"""Operators on what a kernel computes: precision, sums, signs, factors, functions, constants and branches."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from numcheck.mutate.sites import Scope, called, keyword, memory_call, names_in
from numcheck.mutate.tiles import OPPOSITES

Changes = Iterator[ast.AST | str]

WIDE = ("float32", "float64", "fp32", "fp64")
WIDENING = ("float", "double")
# A function and the one that is taken for it.
FUNCTIONS = {
    "exp": "exp2",
    "exp2": "exp",
    "log": "log2",
    "log2": "log",
    "sqrt": "rsqrt",
    "rsqrt": "sqrt",
    "maximum": "minimum",
    "minimum": "maximum",
    "max": "min",
    "min": "max",
    "amax": "amin",
    "amin": "amax",
}
REDUCTIONS = ("sum", "max", "min", "mean", "argmax", "argmin", "amax", "cumsum")
# Added to a denominator, a number below this is there to keep it from zero.
TINY = 1e-2


def drop_upcast(node: ast.AST, scope: Scope) -> Changes:
    """Arithmetic in the data's own dtype, where it should be in a wider one."""
    if not isinstance(node, ast.Call):
        return
    if called(node) == "cast" and len(node.args) == 2 and _widens(node.args[1]):
        yield node.args[0]
    elif isinstance(node.func, ast.Attribute) and upcast(node) and not _promoted(node, scope):
        yield node.func.value


def upcast(node: ast.AST) -> bool:
    """Whether a node is x.to(float32), x.float() or the like."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    to = called(node) == "to" and len(node.args) == 1 and _widens(node.args[0])
    return to or (called(node) in WIDENING and not node.args and not node.keywords)


def _widens(dtype: ast.expr) -> bool:
    return isinstance(dtype, ast.Attribute) and dtype.attr in WIDE


def _promoted(node: ast.AST, scope: Scope) -> bool:
    """Whether a kernel's upcast value only ever meets others that are upcast: those promote it, exactly."""
    parent = scope.parents.get(node)
    if not scope.jitted or not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return False
    name = parent.targets[0].id
    uses = [
        n for n in ast.walk(scope.function.node) if isinstance(n, ast.Name) and n.id == name and n not in parent.targets
    ]
    after = [use for use in uses if use.lineno > (parent.end_lineno or 0)]
    return bool(after) and all(_meets_wide(use, scope, name) for use in after)


def _meets_wide(use: ast.expr, scope: Scope, name: str) -> bool:
    node: ast.AST = use
    parent = scope.parents.get(node)
    if isinstance(parent, ast.Subscript) and parent.value is node:
        node, parent = parent, scope.parents.get(parent)
    if not isinstance(parent, ast.BinOp):
        return False
    other = parent.right if parent.left is node else parent.left
    other = other.value if isinstance(other, ast.Subscript) else other
    assigned = (n.value for n in ast.walk(scope.function.node) if isinstance(n, ast.Assign) and _sets(n, other))
    return isinstance(other, ast.Name) and other.id != name and any(upcast(value) for value in assigned)


def _sets(assignment: ast.Assign, target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and any(
        isinstance(t, ast.Name) and t.id == target.id for t in assignment.targets
    )


def drop_width(node: ast.AST, scope: Scope) -> Changes:
    """An address in 32 bits, which overflows beyond 2^31 elements."""
    if called(node) == "to" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        dtype = node.args[0]
        if isinstance(dtype, ast.Attribute) and dtype.attr == "int64" and scope.jitted:
            yield node.func.value


def narrow_sum(node: ast.AST, scope: Scope) -> Changes:
    """A running sum that is kept in bf16; terms that are rounded to bf16 before they are summed."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
        name, term = node.target.id, ast.unparse(node.value)
        if scope.tensorial and name not in scope.addresses and not isinstance(node.value, ast.Constant):
            yield f"{name} = {_narrowed(f'({name} + ({term}))', scope)}"
    if called(node) in ("sum", "dot") and isinstance(node, ast.Call) and scope.jitted and node.args:
        changed = copy.deepcopy(node)
        changed.args[0] = ast.parse(_narrowed(f"({ast.unparse(node.args[0])})", scope), mode="eval").body
        yield changed


def _narrowed(text: str, scope: Scope) -> str:
    language = scope.language
    return f"{text}.to({language}.bfloat16).to({language}.float32)" if scope.jitted else f"{text}.bfloat16().float()"


def sum_to_mean(node: ast.AST, scope: Scope) -> Changes:
    """A sum that is divided by its length; a mean that is not."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if called(node) == "sum" and scope.jitted and node.args:
        axis = keyword(node, "axis") or (node.args[1] if len(node.args) > 1 else ast.Constant(0))
        terms = f"({ast.unparse(node.args[0])})"
        yield f"{ast.unparse(node)} / {terms}.shape[{ast.unparse(axis)}]"
    elif called(node) in ("sum", "mean") and not scope.jitted:
        changed = copy.deepcopy(node)
        assert isinstance(changed.func, ast.Attribute)
        changed.func.attr = "mean" if called(node) == "sum" else "sum"
        yield changed


def wrong_sign(node: ast.AST, scope: Scope) -> Changes:
    """Plus for minus, or a minus forgotten, in a value."""
    if not scope.tensorial or scope.is_address(node):
        return
    signs: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
    if isinstance(node, ast.BinOp) and type(node.op) in signs:
        yield ast.BinOp(node.left, signs[type(node.op)](), node.right)
    if isinstance(node, ast.AugAssign) and type(node.op) in signs and _is_value(node.target, scope):
        yield ast.AugAssign(node.target, signs[type(node.op)](), node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield node.operand


def _is_value(target: ast.expr, scope: Scope) -> bool:
    return not (names_in(target) & scope.addresses)


def round_product(node: ast.AST, scope: Scope) -> Changes:
    """A product that is rounded to bf16 before it is added to others."""
    if scope.jitted and isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and not scope.is_address(node):
        yield _narrowed(f"({ast.unparse(node)})", scope)


def drop_factor(node: ast.AST, scope: Scope) -> Changes:
    """A factor or a divisor forgotten, in a value."""
    if not scope.tensorial or scope.is_address(node) or not isinstance(node, ast.BinOp):
        return
    if isinstance(node.op, ast.Mult | ast.Div):
        yield node.left
    if isinstance(node.op, ast.Mult):
        yield node.right


def wrong_eps(node: ast.AST, scope: Scope) -> Changes:
    """The small number that keeps a denominator from zero: forgotten, or of another size."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for small, rest in ((node.right, node.left), (node.left, node.right)):
            if _is_tiny(small):
                yield rest
                yield ast.BinOp(rest, ast.Add(), ast.BinOp(small, ast.Mult(), ast.Constant(2.0)))


def _is_tiny(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    number = isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < abs(node.value) < TINY
    return number or "eps" in name.lower()


def wrong_function(node: ast.AST, scope: Scope) -> Changes:
    """A function of the wrong base, or the opposite one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not scope.is_address(node):
        other = FUNCTIONS.get(node.func.attr)
        if other is not None and scope.tensorial:
            changed = copy.deepcopy(node)
            assert isinstance(changed.func, ast.Attribute)
            changed.func.attr = other
            yield changed


def wrong_axis(node: ast.AST, scope: Scope) -> Changes:
    """A reduction over the other of two axes."""
    if called(node) not in REDUCTIONS or not isinstance(node, ast.Call):
        return
    for word in node.keywords:
        if word.arg in ("axis", "dim") and isinstance(word.value, ast.Constant) and word.value.value in (0, 1):
            yield copy.deepcopy(node, {id(word.value): ast.Constant(1 - word.value.value)})


def wrong_constant(node: ast.AST, scope: Scope) -> Changes:
    """A number of another size in a value; a fill that is not neutral."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, float) or scope.is_address(node):
        return
    parent = scope.parents.get(node)
    if isinstance(parent, ast.keyword) and parent.arg == "other":
        return  # drop-other poisons those lanes, which shows more
    if called(parent) in ("full", "where", "maximum", "minimum") if parent is not None else False:
        yield ast.Constant(node.value + 1.0)
    elif node.value != 0.0:
        yield ast.Constant(node.value * 2.0)


def drop_select(node: ast.AST, scope: Scope) -> Changes:
    """A `where` that takes its first branch everywhere."""
    if called(node) == "where" and isinstance(node, ast.Call) and len(node.args) == 3:
        yield node.args[1]


def other_branch(node: ast.AST, scope: Scope) -> Changes:
    """The branch that a condition does not ask for."""
    parent = scope.parents.get(node)
    if not isinstance(parent, ast.If | ast.IfExp) or node is not parent.test:
        return
    # A check that is turned round refuses what is right; a comparison has an operator of its own.
    raises = isinstance(parent, ast.If) and isinstance(parent.body[-1], ast.Raise)
    if raises or (isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES):
        return
    negated = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
    yield node.operand if negated and isinstance(node, ast.UnaryOp) else ast.UnaryOp(ast.Not(), node)


def dot_precision(node: ast.AST, scope: Scope) -> Changes:
    """TF32 for FP32 in a matrix product."""
    if called(node) == "dot" and isinstance(node, ast.Call) and scope.jitted:
        changed = copy.deepcopy(node)
        changed.keywords = [k for k in changed.keywords if k.arg not in ("input_precision", "allow_tf32")]
        changed.keywords.append(ast.keyword("input_precision", ast.Constant("tf32")))
        yield changed


def drop_barrier(node: ast.AST, scope: Scope) -> Changes:
    """Threads that do not wait for each other."""
    if isinstance(node, ast.Expr) and "barrier" in called(node.value) and not memory_call(node.value):
        yield "pass"


OPERATORS: dict[str, Callable[[ast.AST, Scope], Changes]] = {
    "drop-upcast": drop_upcast,
    "drop-width": drop_width,
    "narrow-sum": narrow_sum,
    "sum-to-mean": sum_to_mean,
    "wrong-sign": wrong_sign,
    "round-product": round_product,
    "drop-factor": drop_factor,
    "wrong-eps": wrong_eps,
    "wrong-function": wrong_function,
    "wrong-axis": wrong_axis,
    "wrong-constant": wrong_constant,
    "drop-select": drop_select,
    "other-branch": other_branch,
    "dot-precision": dot_precision,
    "drop-barrier": drop_barrier,
}
