"""Source mutants: any Triton or torch kernel with one small mistake, made from its own source.

`mutants(spec)` lists them without running anything; `built(spec, mutant)` is the spec with that mistake in it. The
author's modules stay as they are: the changed one is loaded anew under a private name, with whatever imports it.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from numcheck.capability import Device
from numcheck.errors import InvalidSpec
from numcheck.mutate.calls import Place, static_calls
from numcheck.mutate.copies import rebuilt
from numcheck.mutate.operators import Edit, edits
from numcheck.mutate.reach import Function, parsed, reached, source_of
from numcheck.mutate.sites import DEVICE_ONLY, Scope
from numcheck.spec import KernelSpec

__all__ = ["REACHED", "Mutant", "Place", "built", "functions", "mutants"]

# Digits of the digest in an id: a function has a few hundred mutants at most, so that two rarely share them.
DIGITS = 8
# A name that nothing defines: to evaluate it is an error that tells where a kernel has been.
REACHED = "numcheck_was_here"


@dataclass(frozen=True)
class Mutant:
    """One mistake in one function.

    id: operator, function and a digest of the line's own text, so that it outlives edits elsewhere in the file.
    module, function: where; file and line: the place to look at; text: the line as it is.
    calls: where a kernel's helper is called from, if each of these places is in a compile-time branch.
    """

    id: str
    operator: str
    module: str
    function: str
    file: str
    line: int
    text: str
    edit: Edit
    calls: tuple[Place, ...] = ()

    def marked(self) -> tuple[Mutant, ...]:
        """Mutants that say so, by REACHED, where a compile-time branch is entered that leads to this one.

        That is the branch that it stands in, or one that its function is called from; () where it is in every build.
        """
        places = self.calls if self.edit.branch is None else ((self.module, *self.edit.branch),)
        return tuple(self._marked(*place) for place in places)

    def _marked(self, module: str, start: int, end: int) -> Mutant:
        edit = replace(self.edit, start=start, end=end, before=_source(module)[start:end], after=REACHED)
        return replace(self, module=module, edit=edit)

    @property
    def before(self) -> str:
        """What stands in the source, on one line."""
        return " ".join(self.edit.before.split())

    @property
    def after(self) -> str:
        """What the mutant has instead, on one line."""
        return " ".join(self.edit.after.split())


def mutants(spec: KernelSpec, device: Device = "cpu") -> tuple[Mutant, ...]:
    """Every mutant of a spec's own functions, in the order of its source; the same on every run.

    device: mistakes that only a device shows (TF32, barriers) are left out for the CPU. Raises InvalidSpec where the
    spec has no function with source.
    """
    found: list[Mutant] = []
    places: set[tuple[str, int, int, str]] = set()
    counts: Counter[str] = Counter()
    functions = reached(spec)
    calls = static_calls(functions, _scope, _source)
    for function in functions:
        for edit in _edits(function):
            place = (function.module, edit.start, edit.end, edit.after)
            # A function within another is reached twice, its text but once.
            if place in places or (device == "cpu" and edit.operator in DEVICE_ONLY):
                continue
            places.add(place)
            mutant = _mutant(function, edit)
            counts[mutant.id] += 1
            found.append(replace(_numbered(mutant, counts[mutant.id]), calls=calls.get(function, ())))
    return tuple(found)


def functions(spec: KernelSpec) -> tuple[str, ...]:
    """The functions that a spec's mutants are made of, as their ids name them, each once."""
    return tuple(dict.fromkeys(_name(function) for function in reached(spec)))


def built(spec: KernelSpec, mutant: Mutant) -> AbstractContextManager[KernelSpec]:
    """`with built(spec, mutant) as broken`: the spec with the mutant's mistake in it, for as long as the block lasts.

    Raises what loading the changed source raises, SyntaxError and TypeError among them.
    """
    source, edit = _source(mutant.module), mutant.edit
    if source[edit.start : edit.end] != edit.before:
        raise InvalidSpec(f"{mutant.file} has changed since {mutant.id} was made from it; start again")
    return rebuilt(spec, mutant.module, source[: edit.start] + edit.after + source[edit.end :])


def _edits(function: Function) -> list[Edit]:
    return list(edits(_scope(function), _source(function.module)))


def _scope(function: Function) -> Scope:
    return Scope.of(function, _language(_source(function.module)))


def _source(module: str) -> str:
    source = source_of(module)
    if source is None:
        raise InvalidSpec(f"the source of {module} cannot be read")
    return source


def _language(source: str) -> str:
    """The name by which a module knows triton.language."""
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if base + alias.name == "triton.language":
                    return alias.asname or alias.name
    return "tl"


def _mutant(function: Function, edit: Edit) -> Mutant:
    file = getattr(sys.modules[function.module], "__file__", None) or function.module
    text = _source(function.module).splitlines()[edit.line - 1].strip()
    said = "|".join(" ".join(part.split()) for part in (text, edit.before, edit.after))
    digest = hashlib.sha256(said.encode()).hexdigest()[:DIGITS]
    return Mutant(
        f"{_name(function)}:{edit.operator}:{digest}",
        edit.operator,
        function.module,
        function.name,
        file,
        edit.line,
        text,
        edit,
    )


def _name(function: Function) -> str:
    file = getattr(sys.modules[function.module], "__file__", None) or function.module
    return f"{_stem(file)}.{function.name}"


def _stem(file: str) -> str:
    path = Path(file)
    return path.parent.name if path.stem == "__init__" else path.stem


def _numbered(mutant: Mutant, turn: int) -> Mutant:
    """Equal changes of equal lines are told apart by their turn."""
    if turn == 1:
        return mutant
    return replace(mutant, id=f"{mutant.id}.{turn}")
