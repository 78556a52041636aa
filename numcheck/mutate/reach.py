"""Reach: which functions of the author's own source a spec's kernels are made of.

From the forward, the vjp and the kernels that must run, names are followed through each function's globals, closure and
imports, into every module of the same package (or folder, for a file that stands alone). Oracle, Contract and numcheck
itself are never reached: a mutant changes the claim's code, not what it is judged by.
"""

from __future__ import annotations

import ast
import dis
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from numcheck.errors import InvalidSpec
from numcheck.spec import KernelSpec

# Under these names a wrapper keeps what it wraps: Triton's functions and autotuners, partials, properties, methods.
WRAPPED = ("fn", "func", "fget", "__func__", "__wrapped__")
Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True)
class Function:
    """One function that a spec runs: its module, qualified name and syntax tree.

    jitted: a Triton function, in the kernel's own language; otherwise Python on the host, with torch.
    """

    module: str
    name: str
    node: Node
    jitted: bool


def reached(spec: KernelSpec) -> tuple[Function, ...]:
    """Every function of the author's own that `spec` reaches, in the order of module and line.

    Raises InvalidSpec where not one of them has Python source.
    """
    walk = _Walk(Own.of(spec))
    for root in roots(spec):
        walk.follow(root)
    known = _used([f for f in walk.found.values() if f is not None])
    if not known:
        raise InvalidSpec(f"spec {spec.name}: none of its kernels is a Python function with source, so none can mutate")
    return tuple(sorted(known, key=lambda f: (f.module, f.node.lineno, f.name)))


def _used(found: Sequence[Function]) -> list[Function]:
    """Those that something may call: a class that is used brings methods along that nobody names."""
    said = {name for function in found for name in _said(function.node)}
    names = {function: function.name.rpartition(".")[2] for function in found}
    return [f for f, name in names.items() if "." not in f.name or "<" in f.name or name in said or _implicit(name)]


def _implicit(name: str) -> bool:
    """Whether a method is called without being named: by Python, or by torch.autograd."""
    return name.startswith("__") or name in ("forward", "backward", "setup_context", "vjp", "jvp")


def roots(spec: KernelSpec) -> tuple[object, ...]:
    """What a spec names itself: callables, kernels that must run, pinned autotuners."""
    named = (spec.forward, spec.vjp, *spec.must_run, *(kernel for kernel, _ in spec.pins))
    return tuple(thing for thing in named if thing is not None and not isinstance(thing, str))


def unwrapped(thing: Any) -> tuple[FunctionType | None, bool]:
    """The Python function below Triton's and functools' wrappers, and whether Triton's was among them."""
    jitted = False
    while not isinstance(thing, FunctionType):
        jitted = jitted or is_jitted(thing)
        inner = next((getattr(thing, name) for name in WRAPPED if hasattr(thing, name)), None)
        if inner is None or isinstance(thing, ModuleType | type):
            return None, jitted
        thing = inner
    return thing, jitted


def is_jitted(thing: object) -> bool:
    """Whether `thing` is Triton's function, compiled or interpreted."""
    return type(thing).__name__ in ("JITFunction", "InterpretedFunction")


def source_of(module: str) -> str | None:
    """The source text of a loaded module, or None where it has none."""
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return None


@dataclass(frozen=True)
class Own:
    """The author's own modules: the packages of a spec's functions, and the folders of those in no package."""

    packages: frozenset[str]
    folders: frozenset[Path]

    @classmethod
    def of(cls, spec: KernelSpec) -> Own:
        """Own to the author of `spec`."""
        functions = [unwrapped(root)[0] for root in roots(spec)]
        classes = [type(root) for root, function in zip(roots(spec), functions, strict=True) if function is None]
        homes = {thing.__module__ for thing in (*functions, *classes) if thing is not None}
        folders = {_folder(name) for name in homes} - {None}
        return cls(frozenset(name.partition(".")[0] for name in homes), frozenset(f for f in folders if f is not None))

    def __contains__(self, module: str | None) -> bool:
        return bool(module) and (str(module).partition(".")[0] in self.packages or _folder(str(module)) in self.folders)

    def modules(self) -> list[str]:
        """Those that are loaded."""
        return [name for name in list(sys.modules) if name in self]


def _folder(name: str) -> Path | None:
    """The folder of a module that stands alone, outside any package; None for any other."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    alone = "." not in name and not hasattr(module, "__path__")
    return Path(file).resolve().parent if file and alone else None


@dataclass
class _Walk:
    """Follows names; `found`: each code that was met, with its Function where that has source."""

    own: Own
    found: dict[CodeType, Function | None] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def follow(self, thing: object) -> None:
        """Follow one value, if it is a function, wraps one or is a class with some."""
        if id(thing) in self.seen:
            return
        self.seen.add(id(thing))
        for part in _parts(thing, self.own):
            self.follow(part)
        function, jitted = unwrapped(thing)
        if function is None or function.__module__ not in self.own:
            return
        if function.__code__ not in self.found:
            node = _node(function)
            known = Function(function.__module__, function.__qualname__, node, jitted) if node is not None else None
            self.found[function.__code__] = known
            for named in _named(function, node, self.own):
                self.follow(named)


def _parts(thing: object, own: Own) -> Iterator[object]:
    """What a wrapper holds beside the function that it wraps, and what a class of the author's defines."""
    if isinstance(thing, type):
        yield from vars(thing).values() if thing.__module__ in own else ()
    elif isinstance(thing, functools.partial):
        yield from (*thing.args, *thing.keywords.values())
    elif isinstance(thing, MethodType):
        yield thing.__self__
    elif hasattr(thing, "configs") or hasattr(thing, "values"):
        # Triton's autotuners and heuristics.
        values = getattr(thing, "values", None)
        yield from (*(values.values() if isinstance(values, dict) else ()), getattr(thing, "fn", None))
    elif type(thing).__module__ in own:
        yield from (type(thing), *getattr(thing, "__dict__", {}).values())


def _named(function: FunctionType, node: Node | None, own: Own) -> Iterator[object]:
    """The values that a function's code names: globals and what is taken from modules, imports, closure, defaults."""
    said = None if node is None else set(_said(node))
    names = _names(function.__code__, ("LOAD_GLOBAL", "LOAD_NAME"))
    attributes = set(function.__code__.co_names).union(*(c.co_names for c in _inner(function.__code__)))
    modules = [_imported(function, name) for name in _names(function.__code__, ("IMPORT_NAME",))]
    globals_ = (function.__globals__.get(name) for name in sorted(names) if said is None or name in said)
    for value in (*globals_, *modules, *_enclosed(function)):
        if isinstance(value, ModuleType):
            yield from _members(value, sorted(attributes if said is None else attributes & said), own, set())
        elif value is not None:
            yield value
    yield from function.__defaults__ or ()


def _enclosed(function: FunctionType) -> Iterator[object]:
    """What a function's closure holds; a cell that is not set yet holds nothing."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):
            yield cell.cell_contents


def _members(module: ModuleType, names: Sequence[str], own: Own, seen: set[str]) -> Iterator[object]:
    """What a function may take from a module of the author's, and from those that it names within that one."""
    if module.__name__ not in own or module.__name__ in seen:
        return
    seen.add(module.__name__)
    for value in (vars(module)[name] for name in names if name in vars(module)):
        if isinstance(value, ModuleType):
            yield from _members(value, names, own, seen)
        else:
            yield value


def _said(node: ast.AST) -> Iterator[str]:
    """Names that a function uses outside the messages of its errors, which no value depends on."""
    if isinstance(node, ast.Raise | ast.Assert):
        return
    if isinstance(node, ast.Name | ast.Attribute | ast.alias):
        yield node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else node.name
    for child in ast.iter_child_nodes(node):
        yield from _said(child)


def _imported(function: FunctionType, name: str) -> ModuleType | None:
    """A module that a function imports when it runs."""
    package = function.__globals__.get("__package__") or ""
    for full in (name, f"{package}.{name}"):
        if full in sys.modules:
            return sys.modules[full]
        if full.partition(".")[0] == package.partition(".")[0]:
            with suppress(Exception):
                return importlib.import_module(full)
    return None


def _inner(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield const
            yield from _inner(const)


def _names(code: CodeType, operations: tuple[str, ...]) -> set[str]:
    instructions = (i for each in (code, *_inner(code)) for i in dis.get_instructions(each))
    return {str(i.argval) for i in instructions if i.opname in operations}


def _node(function: FunctionType) -> Node | None:
    source = source_of(function.__module__)
    return find(parsed(source), function.__code__) if source is not None else None


@functools.lru_cache(maxsize=64)
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source text; never to be changed."""
    return ast.parse(source)


def find(tree: ast.AST, code: CodeType) -> Node | None:
    """The syntax tree of the function whose code this is, by its name and its first line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min((node.lineno, *(d.lineno for d in node.decorator_list)))
            if node.name == code.co_name and first == code.co_firstlineno:
                return node
        elif isinstance(node, ast.Lambda) and code.co_name == "<lambda>" and node.lineno == code.co_firstlineno:
            return node
    return None
