"""Sites: the places of a function that an operator may change, and what is known of each.

Which expressions are addresses matters most: a wrong sign in an address leaves the tensor and is found by any test,
a wrong sign in a value is what a mutant is for.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from numcheck.mutate.reach import Function

# Triton's operations whose first argument is an address.
MEMORY = ("load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_cas")
# Keywords of a launch that say how to run and not what to compute.
HINTS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
NUMBERS = ("int", "float", "bool", "str")
# What only a device shows: the interpreter has neither TF32 nor barriers.
DEVICE_ONLY = ("dot-precision", "drop-barrier")


@dataclass
class Scope:
    """A function that is being changed: where each node stands, and which names hold addresses.

    language: the name that Triton's language goes by in its module.
    """

    function: Function
    language: str
    parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    addresses: frozenset[str] = frozenset()

    @classmethod
    def of(cls, function: Function, language: str = "tl") -> Scope:
        """The scope of a function."""
        parents = {child: node for node in ast.walk(function.node) for child in ast.iter_child_nodes(node)}
        return cls(function, language, parents, _addresses(function.node))

    @property
    def jitted(self) -> bool:
        """Whether this is a kernel's own language."""
        return self.function.jitted

    @property
    def tensorial(self) -> bool:
        """Whether a function computes with tensors: not where every parameter is annotated as a plain number.

        A named tuple of numbers, such as the sizes of a problem, is as plain.
        """
        arguments = self.function.node.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        plain = [isinstance(a.annotation, ast.Name) and self._is_plain(a.annotation.id) for a in given]
        return self.jitted or not given or not all(plain)

    def _is_plain(self, name: str) -> bool:
        known = getattr(sys.modules.get(self.function.module), name, None)
        kinds = getattr(known, "__annotations__", {}).values() if hasattr(known, "_fields") else ()
        # Where annotations are postponed, a named tuple keeps each as a reference to its name.
        names = [getattr(kind, "__forward_arg__", getattr(kind, "__name__", "")) for kind in kinds]
        return name in NUMBERS or (bool(names) and set(names) <= set(NUMBERS))

    def nodes(self) -> Iterator[ast.AST]:
        """The nodes that may change: not those of messages, annotations, decorators and docstrings."""
        left: list[ast.AST] = list(_body(self.function.node))
        while left:
            node = left.pop(0)
            yield node
            left = [*(child for child in ast.iter_child_nodes(node) if not _silent(child, node)), *left]

    def above(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """(parent, child) from the node up to the function."""
        while node in self.parents and node is not self.function.node:
            yield self.parents[node], node
            node = self.parents[node]

    def is_address(self, node: ast.AST) -> bool:
        """Whether the node is part of an address or of what makes one."""
        for parent, child in self.above(node):
            if memory_call(parent) and isinstance(parent, ast.Call) and parent.args and parent.args[0] is child:
                return True
            if isinstance(parent, ast.Assign | ast.AugAssign) and parent.value is child:
                targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
                return any(isinstance(t, ast.Name) and t.id in self.addresses for t in targets)
        return False

    def always(self, node: ast.AST) -> bool:
        """Whether a bound holds for every lane as it stands: arange(0, N) < N, as masks are given their shape with."""
        if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.ops[0], ast.Lt):
            return False
        lanes = node.left.value if isinstance(node.left, ast.Subscript) else node.left
        extent = self.ranges().get(lanes.id) if isinstance(lanes, ast.Name) else None
        return extent is not None and extent == ast.unparse(node.comparators[0])

    def ranges(self) -> dict[str, str]:
        """Names that hold arange(0, N) and nothing else, with the text of N."""
        found: dict[str, list[str]] = {}
        for node in ast.walk(self.function.node):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(_extent(node.value))
        return {name: extents[0] for name, extents in found.items() if len(extents) == 1 and extents[0]}

    def branch(self, node: ast.AST) -> ast.AST | None:
        """Where the innermost branch starts that only some builds of a kernel have, if the node is in one.

        That is one whose condition reads compile-time parameters alone: the other builds do not contain it.
        """
        for parent, child in self.above(node):
            if isinstance(parent, ast.If | ast.IfExp) and child is not parent.test and self._is_static(parent.test):
                if isinstance(parent, ast.IfExp):
                    return child
                start = (parent.body if child in parent.body else parent.orelse)[0]
                # An `elif` has no place for a statement of its own; whether its condition is asked says the same.
                return start.test if isinstance(start, ast.If) and child in parent.orelse else start
        return None

    def _is_static(self, test: ast.expr) -> bool:
        arguments = self.function.node.args
        given = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        static = {a.arg for a in given if a.annotation is not None and "constexpr" in ast.unparse(a.annotation)}
        # A module's own compile-time constants say nothing by themselves; without a parameter a test is the same in
        # every build.
        named = names_in(test)
        return self.jitted and bool(named & static) and all(n in static or self._is_constant(n) for n in named)

    def _is_constant(self, name: str) -> bool:
        return type(getattr(sys.modules.get(self.function.module), name, None)).__name__ == "constexpr"

    def parameters(self) -> set[str]:
        """Names of the function's parameters."""
        arguments = self.function.node.args
        return {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}


def _extent(node: ast.expr) -> str:
    if called(node) == "arange" and isinstance(node, ast.Call) and len(node.args) == 2:
        return ast.unparse(node.args[1]) if ast.unparse(node.args[0]) == "0" else ""
    return ""


def _body(node: ast.AST) -> list[ast.AST]:
    body = node.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else []
    return list(body) if isinstance(body, list) else [body]


def _silent(child: ast.AST, parent: ast.AST) -> bool:
    """Text, types and hints of a launch, which no value depends on."""
    if isinstance(child, ast.Raise | ast.Assert | ast.JoinedStr | ast.arguments):
        return True
    if isinstance(child, ast.keyword) and child.arg in HINTS:
        return True
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef):
        return child not in parent.body
    return isinstance(parent, ast.AnnAssign) and child is parent.annotation


def called(node: ast.AST) -> str:
    """The last part of the name of what a call calls ("load" for tl.load(...)), or ""."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def memory_call(node: ast.AST) -> bool:
    """Whether a node is a Triton operation on memory."""
    return called(node) in MEMORY and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)


def keyword(node: ast.Call, name: str) -> ast.expr | None:
    """The value of a call's keyword, or None."""
    return next((k.value for k in node.keywords if k.arg == name), None)


def names_in(node: ast.AST) -> set[str]:
    """The names that an expression reads."""
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _addresses(function: ast.AST) -> frozenset[str]:
    """Names that make addresses, directly or through another name."""
    calls = (n for n in ast.walk(function) if memory_call(n) and isinstance(n, ast.Call) and n.args)
    found: set[str] = set().union(*(names_in(call.args[0]) for call in calls))
    made: list[tuple[str, set[str]]] = []
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            # What is loaded and then used as an index is a value until then.
            inner = set() if any(memory_call(n) for n in ast.walk(node.value)) else names_in(node.value)
            made += [(t.id, inner) for t in targets if isinstance(t, ast.Name)]
    size = -1
    while len(found) > size:
        size = len(found)
        for name, inner in made:
            found |= inner if name in found else set()
    return frozenset(found)
