"""Copies: an author's modules loaded anew from changed source, under private names, beside the originals.

Only the changed module and those that import it are loaded again; imports among them lead to the copies, everything
else is shared with the originals. Nothing of what users import is touched, and afterwards no copy is left behind.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import itertools
import linecache
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from numcheck.errors import InvalidSpec
from numcheck.mutate.reach import WRAPPED, Own, is_jitted, parsed, source_of, unwrapped
from numcheck.spec import KernelSpec

# Private names start with this, so that no import statement can meet one.
PREFIX = "_numcheck_mutant"
_numbers = itertools.count()


@contextmanager
def rebuilt(spec: KernelSpec, module: str, source: str) -> Iterator[KernelSpec]:
    """`spec` as it would be if `module` had this source: its kernels, and those that must run, made from copies.

    Oracle, Contract and all else stay those of `spec`. Raises whatever the changed source raises when it is loaded,
    and InvalidSpec where a kernel of the spec cannot be found again in the copies.
    """
    sources = {**_importers(spec, module), module: source}
    copies = Copies(f"{PREFIX}_{next(_numbers)}", sources)
    try:
        try:
            broken = copies.spec(spec)
        except (ImportError, AttributeError):
            # Modules that import each other in a circle load in Python's own order alone, which takes longer.
            copies.forget()
            copies = Copies(copies.name, sources, packages_first=True)
            broken = copies.spec(spec)
        yield broken
    finally:
        copies.forget()


def _importers(spec: KernelSpec, changed: str) -> dict[str, str]:
    """The source of each of the author's modules that imports `changed`, directly or through another."""
    sources = {name: source for name in Own.of(spec).modules() if (source := source_of(name)) is not None}
    imports = {name: _imported(name, source) for name, source in sources.items()}
    found, size = {changed}, 0
    while len(found) > size:
        size = len(found)
        found |= {name for name, names in imports.items() if names & found}
    return {name: sources[name] for name in found - {changed}}


@functools.lru_cache(maxsize=1024)
def _imported(module: str, source: str) -> frozenset[str]:
    """Dotted names that a module's source imports, relative ones made absolute."""
    package = getattr(sys.modules[module], "__package__", "") or ""
    names: set[str] = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node.module or "", package, node.level)
            names |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return frozenset(names)


def _absolute(name: str, package: str, level: int) -> str:
    return importlib.util.resolve_name("." * level + name, package) if level else name


@dataclass
class Copies:
    """Private modules, made from `sources` (name of the original -> text) when they are first asked for.

    packages_first: a package is loaded before what lies in it, as Python does.
    """

    name: str
    sources: Mapping[str, str]
    packages_first: bool = False
    modules: dict[str, ModuleType] = field(default_factory=dict)
    made: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def module(self, original: str) -> ModuleType:
        """The copy of the module called `original`."""
        package = original.rpartition(".")[0]
        if self.packages_first and package in self.sources and package not in self.modules:
            self.module(package)
        if original in self.modules:
            return self.modules[original]
        real, private = sys.modules[original], f"{self.name}.{original}"
        file = f"<{private}>"
        lines = self.sources[original].splitlines(keepends=True)
        # Triton, tracebacks and inspect read source through linecache; an entry without a time is never checked.
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)
        copy = ModuleType(private, real.__doc__)
        package = getattr(real, "__package__", "") or ""
        vars(copy).update(__file__=file, __package__=package, __builtins__=self._builtins(package))
        if hasattr(real, "__path__"):
            copy.__path__ = real.__path__
        self.modules[original] = sys.modules[private] = copy
        exec(compile(self.sources[original], file, "exec"), vars(copy))
        return copy

    def spec(self, spec: KernelSpec) -> KernelSpec:
        """`spec` with its kernels, and those that must run, from the copies."""
        return spec.but(
            forward=self.of(spec.forward),
            vjp=self.of(spec.vjp),
            must_run=tuple(self.of(kernel) for kernel in spec.must_run),
            pins=tuple((self.of(kernel), index) for kernel, index in spec.pins),
        )

    def forget(self) -> None:
        """Leave nothing behind: modules, source lines, Triton's rewritten functions."""
        interpreter = sys.modules.get("triton.runtime.interpreter")
        rewritten = interpreter.InterpretedFunction.rewritten_fn if interpreter is not None else {}
        for function in [f for f in rewritten if f.__module__.startswith(f"{self.name}.")]:
            del rewritten[function]
        for original in self.modules:
            sys.modules.pop(f"{self.name}.{original}", None)
            linecache.cache.pop(f"<{self.name}.{original}>", None)

    def _builtins(self, package: str) -> dict[str, Any]:
        """Python's builtins with an import statement that finds the copies first."""

        def import_(
            name: str,
            globals: Mapping[str, object] | None = None,
            locals: Mapping[str, object] | None = None,
            fromlist: Sequence[str] | None = (),
            level: int = 0,
        ) -> Any:
            builtins.__import__(name, globals, locals, fromlist or (), level)
            full = _absolute(name, package, level)
            return self._from(full, fromlist) if fromlist else self._dotted(full)

        return {**vars(builtins), "__import__": import_}

    def _from(self, full: str, names: Sequence[str]) -> ModuleType:
        """What `from full import names` reads its names from: the module or its copy, with copies of submodules."""
        module = self.module(full) if full in self.sources else sys.modules[full]
        children = {name: f"{full}.{name}" for name in names if f"{full}.{name}" in sys.modules}
        copied = {name: self.module(child) for name, child in children.items() if child in self.sources}
        # A package that is being copied has not got those of its submodules that stay as they are.
        shared = {name: sys.modules[child] for name, child in children.items() if not hasattr(module, name)}
        return _view(module, {**shared, **copied})

    def _dotted(self, full: str) -> ModuleType:
        """What `import a.b.c` binds to `a`: a tree that leads to each copy loaded so far, that of c among them."""
        parts = full.split(".")
        for prefix in (".".join(parts[:count]) for count in range(1, len(parts) + 1)):
            if prefix in self.sources:
                self.module(prefix)
        return self._tree(parts[0])

    def _tree(self, full: str) -> ModuleType:
        module = self.module(full) if full in self.sources else sys.modules[full]
        children = {name[len(full) + 1 :].partition(".")[0] for name in self.modules if name.startswith(f"{full}.")}
        return _view(module, {child: self._tree(f"{full}.{child}") for child in sorted(children)})

    def of(self, thing: Any) -> Any:
        """What `thing` is among the copies; `thing` itself where it is not made from any of them."""
        if id(thing) not in self.made:
            # Kept with its copy: an id means something only while its object lives.
            self.made[id(thing)] = (thing, self._copy(thing))
        return self.made[id(thing)][1]

    def _copy(self, thing: Any) -> Any:
        if thing is None or isinstance(thing, str | int | float):
            return thing
        if isinstance(thing, ModuleType):
            return self.module(thing.__name__) if thing.__name__ in self.sources else thing
        if isinstance(thing, type):
            return self._by_name(thing.__module__, thing.__qualname__, thing)
        home = getattr(unwrapped(thing)[0], "__module__", "")
        # Where it is defined comes first: others that imported it need not be loaded again.
        for original in sorted(self.sources, key=lambda name: name != home):
            for name, value in list(vars(sys.modules[original]).items()):
                if value is thing and hasattr(self.module(original), name):
                    return getattr(self.module(original), name)
        if isinstance(thing, functools.partial):
            keywords = {name: self.of(value) for name, value in thing.keywords.items()}
            return functools.partial(self.of(thing.func), *map(self.of, thing.args), **keywords)
        if isinstance(thing, MethodType):
            return MethodType(self.of(thing.__func__), self.of(thing.__self__))
        if isinstance(thing, FunctionType):
            return self._function(thing)
        if isinstance(thing, tuple | list | dict):
            return self._container(thing)
        return self._instance(thing)

    def _container(self, thing: Any) -> Any:
        values = list(thing.values()) if isinstance(thing, dict) else list(thing)
        copied = [self.of(value) for value in values]
        if all(a is b for a, b in zip(values, copied, strict=True)) or type(thing) not in (tuple, list, dict):
            return thing
        return dict(zip(thing, copied, strict=True)) if isinstance(thing, dict) else type(thing)(copied)

    def _function(self, function: FunctionType) -> Any:
        """A function that is no module's own global: found by its qualified name, or made anew from its code."""
        module = function.__module__
        if module not in self.sources:
            return function
        if "<" not in function.__qualname__:
            return self._by_name(module, function.__qualname__, function)
        code = self._code(module, function)
        cells = tuple(CellType(self.of(cell.cell_contents)) for cell in function.__closure__ or ())
        defaults = tuple(map(self.of, function.__defaults__ or ())) or None
        copy = FunctionType(code, vars(self.module(module)), function.__name__, defaults, cells)
        copy.__kwdefaults__ = function.__kwdefaults__
        copy.__qualname__ = function.__qualname__
        return copy

    def _code(self, module: str, function: FunctionType) -> CodeType:
        """The code in the copy of a function within a function, by its qualified name and turn among those of it."""
        before = _codes(sys.modules[module], source_of(module) or "", function.__code__.co_qualname)
        after = _codes(self.module(module), self.sources[module], function.__code__.co_qualname)
        turns = [code.co_firstlineno for code in before]
        if function.__code__.co_firstlineno not in turns or len(after) != len(before):
            raise InvalidSpec(f"{function.__qualname__} of {module} cannot be found in its source again")
        code = after[turns.index(function.__code__.co_firstlineno)]
        if code.co_freevars != function.__code__.co_freevars:
            raise InvalidSpec(f"{function.__qualname__} of {module} takes other variables from around it in the mutant")
        return code

    def _by_name(self, module: str, qualname: str, thing: Any) -> Any:
        if module not in self.sources:
            return thing
        found: Any = self.module(module)
        for part in qualname.split("."):
            found = getattr(found, part, None)
        if found is None:
            raise InvalidSpec(
                f"{qualname} of {module} cannot be found in its copy; define it at the module's top level"
            )
        return found

    def _instance(self, thing: Any) -> Any:
        """A callable object, or a wrapper of Triton's, whose parts come from the copies; else `thing` itself."""
        kind = self.of(type(thing))
        inner = next((name for name in WRAPPED if name in getattr(thing, "__dict__", {})), None)
        if is_jitted(thing):
            function = self.of(thing.fn)
            return thing if function is thing.fn else type(thing)(function)
        if kind is type(thing) and (inner is None or self.of(getattr(thing, inner)) is getattr(thing, inner)):
            return thing
        copy = object.__new__(kind)
        vars(copy).update({name: self.of(value) for name, value in vars(thing).items()})
        return copy


def _view(module: ModuleType, changed: Mapping[str, ModuleType]) -> ModuleType:
    """The module itself, or one that looks like it but for the changed submodules."""
    if all(vars(module).get(name) is child for name, child in changed.items()):
        return module
    view = ModuleType(module.__name__)
    vars(view).update({**vars(module), **changed})
    return view


def _codes(module: ModuleType, source: str, qualname: str) -> list[CodeType]:
    """Codes of that qualified name in a module's source, in the order of their lines."""
    found: list[CodeType] = []
    left = [compile(source, module.__file__ or "", "exec")]
    while left:
        code = left.pop(0)
        found += [code] if code.co_qualname == qualname else []
        left += [const for const in code.co_consts if isinstance(const, CodeType)]
    return sorted(found, key=lambda code: code.co_firstlineno)
