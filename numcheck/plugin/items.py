"""Generated tests: one pytest Item for each kernel and law, without any file being copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from numcheck.load import faults, folder, load
from numcheck.plugin.session import Session
from numcheck.spec import KernelSpec


class Generated(pytest.Item):
    """One generated test; `body` judges, and fails or skips as a test function would."""

    def __init__(self, *, body: Callable[[], None], mark: str = "", **node: Any) -> None:
        super().__init__(**node)
        self.body = body
        if mark:
            self.add_marker(mark)

    def runtest(self) -> None:
        """Judge."""
        self.body()

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where the test stands in a listing: the source of its kernels, then its own name."""
        return self.path, None, self.name


class Source(pytest.Collector):
    """One --numcheck-specs, as the parent of its tests."""

    def __init__(self, *, source: str, judging: Session, mutants: bool, **node: Any) -> None:
        super().__init__(**node)
        self.source, self.judging, self.mutants = source, judging, mutants

    def collect(self) -> Iterator[pytest.Item]:
        """One test for each kernel and law that speaks of it, each declared fault, and each oracle."""
        from numcheck.laws import LAWS
        from numcheck.plugin.scoring import mutable

        specs = load(self.source)
        for law in LAWS:
            for spec in specs:
                if law.applies(spec) is None:
                    yield self._test(f"{law.name}[{spec.name}]", self._judging(law.name, spec), law.name)
        for fault in faults(self.source):
            yield self._test(f"faults[{fault.spec.name}]", partial(self.judging.caught, fault), "faults")
        for spec in specs if self.mutants else ():
            for function in mutable(spec, self.judging.device):
                body = partial(self.judging.killed, spec, function)
                yield self._test(f"mutants[{spec.name}:{function}]", body, "faults")
        for oracle in {id(spec.oracle): spec.oracle for spec in specs}.values():
            yield self._test(f"certificate[{oracle.name}]", partial(self.judging.certify, oracle))

    def _test(self, name: str, body: Callable[[], None], mark: str = "") -> pytest.Item:
        return Generated.from_parent(self, name=name, body=body, mark=mark)

    def _judging(self, law: str, spec: KernelSpec) -> Callable[[], None]:
        return partial(self.judging.judge, law, spec, self.source, _kept(self.source), loaded=True)


def _kept(source: str) -> list[Path]:
    """Where a source's regression Cases may be: beside it, or in the properties/ beside its folder."""
    own = folder(source)
    return [own, own.parent / "properties"] if own else []


def generate(
    session: pytest.Session, sources: tuple[str, ...], judging: Session, mutants: bool = False
) -> list[pytest.Item]:
    """The tests of all sources, in their order; mutants: one more for each function of each kernel."""
    found: list[pytest.Item] = []
    for source in sources:
        parent = Source.from_parent(
            session, name=source, nodeid=source, source=source, judging=judging, mutants=mutants
        )
        found += session.genitems(parent)
    return found
