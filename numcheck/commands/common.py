"""What several commands share: choosing the device, loading kernels, finding one by name."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from numcheck.capability import Device
from numcheck.case import Case
from numcheck.errors import BadRecords, InvalidCase, InvalidSpec
from numcheck.target import spare_others

if TYPE_CHECKING:
    from numcheck.laws.law import Law
    from numcheck.spec import KernelSpec

T = TypeVar("T")

DEFAULT_SPECS = ("kernels",)


def prepare(options: argparse.Namespace) -> Device:
    """The device to judge on; on a CPU, Triton's interpreter is chosen here, before any kernel is imported."""
    from numcheck.device import choose

    return choose(options.device)


def specs(options: argparse.Namespace) -> tuple[KernelSpec, ...]:
    """The kernels that `--specs` names; a module is also looked for in the current folder, as `python -m` does."""
    from numcheck.load import load

    # An installed script starts sys.path with its own folder: without this, the lines that a report prints for
    # `--specs kernels` would replay under `python -m numcheck` alone.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return load(options.specs or DEFAULT_SPECS)
    except InvalidSpec as error:
        if options.specs:
            raise
        raise InvalidSpec(f"without --specs, {', '.join(DEFAULT_SPECS)} is judged: {error}") from None


def one_spec(options: argparse.Namespace) -> KernelSpec:
    """The kernel called SPEC; raises InvalidSpec with the names there are."""
    return by_name(specs(options), options.spec, "kernel")


def one_law(options: argparse.Namespace) -> Law:
    """The law called LAW; raises InvalidSpec with the names there are."""
    from numcheck.laws import LAWS

    return by_name(LAWS, options.law, "law")


def one_case(options: argparse.Namespace, spec: KernelSpec, law: Law) -> Case:
    """The CASE; raises InvalidCase where it has not the sizes of the spec's problem, or facts that nobody reads.

    A misspelled fact would otherwise be left unread, and another Case judged than the one that was meant.
    """
    case, space = Case.from_json(options.case), spec.oracle.space
    named = (*space.edges, *space.tiny, *law.cases(spec))
    sizes = {*space.sizes, *space.choices}
    facts = {*space.facts, *(name for own in named for name, _ in own.facts)}
    _only("size", {name for name, _ in case.sizes}, sizes | {n for own in named for n, _ in own.sizes}, spec)
    _only("fact", {name for name, _ in case.facts}, facts, spec)
    missing = sizes - {name for name, _ in case.sizes}
    if missing:
        raise InvalidCase(f"the Case lacks {', '.join(sorted(missing))}, which {spec.oracle.name} needs")
    return case


def _only(noun: str, given: set[str], known: set[str], spec: KernelSpec) -> None:
    strange = given - known
    if strange:
        there = ", ".join(sorted(known)) or "none"
        raise InvalidCase(f"{spec.oracle.name} has no {noun} {', '.join(sorted(strange))}; it has {there}")


def by_name(things: Sequence[T], name: str, noun: str) -> T:
    """The one of `things` whose `name` is `name`."""
    for thing in things:
        if getattr(thing, "name", None) == name:
            return thing
    names = ", ".join(str(getattr(thing, "name", thing)) for thing in things) or "none"
    raise InvalidSpec(f"no {noun} {name!r}; there is {names}")


def writable(options: argparse.Namespace) -> None:
    """Raises BadRecords, before anything runs, where --records or --report would go over a file of another kind."""
    report: str = getattr(options, "report", None) or ""
    records: str = options.records or (str(Path(report).with_suffix(".jsonl")) if report else "")
    if report:
        spare_others(report, "report")
        spare(report, records)
    if records:
        spare_others(records, "records")


def spare(output: str, *inputs: str | None) -> None:
    """Raises BadRecords where `output` would be written over one of `inputs`, by whatever name it goes."""
    for given in filter(None, inputs):
        if _same(Path(output), Path(given)):
            raise BadRecords(f"{output} would be written over {given}, which is read; name another file for the output")


def _same(one: Path, other: Path) -> bool:
    return one.samefile(other) if one.exists() and other.exists() else one.resolve() == other.resolve()


def print_json(data: object) -> None:
    """One JSON document on standard output."""
    print(json.dumps(data, indent=2, default=str))


@contextmanager
def progress(items: Iterable[T], total: int, label: str) -> Iterator[Iterable[T]]:
    """`items` with a progress bar on standard error, where that is a terminal."""
    with ticking(total, label) as tick:
        yield _ticked(items, tick)


@contextmanager
def ticking(total: int, label: str) -> Iterator[Callable[[int], None]]:
    """A function to call with each number of things done, which moves a progress bar where there is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.advance(task, done)


def _ticked(items: Iterable[T], tick: Callable[[int], None]) -> Iterator[T]:
    for item in items:
        yield item
        tick(1)
