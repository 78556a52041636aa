"""A Law: one function from (spec, Case) to a Verdict, and one from all its Cases to a pooled Verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numcheck.case import Case
from numcheck.profile import Profile
from numcheck.spec import KernelSpec
from numcheck.verdict import Verdict

Judged = Sequence[tuple[Case, Verdict]]


def covered(spec: KernelSpec, judged: Judged) -> tuple[str, ...]:
    """Names of the outputs that some Case was judged by: optional ones that none had are left out."""
    seen = {name for _, verdict in judged for name in verdict.outputs}
    return tuple(name for name in spec.judged if name in seen)


def _no_cases(spec: KernelSpec) -> tuple[Case, ...]:
    return ()


def _no_pool(spec: KernelSpec, judged: Judged) -> Verdict | None:
    return None


def _any_spec(spec: KernelSpec) -> str | None:
    return None


@dataclass(frozen=True)
class Law:
    """What is asked of every kernel.

    judge(spec, case, profile): walks the stages sample, run, judge in order. It is pure in (spec, case, profile) and
      never raises for what the kernel does: an exception of the kernel is an ERROR verdict.
    pool(spec, judged): judged once after the last Case of a generated test, never in replay or shrink.
    cases(spec): Cases that this law always tries besides the problem's named grid (edges, cancellations).
    applies(spec): None, or why the law says nothing of the spec (no generated test then).
    drawn: whether the named grid and Hypothesis's Cases are tried; False: only `cases`.
    """

    name: str
    doc: str
    judge: Callable[[KernelSpec, Case, Profile], Verdict]
    pool: Callable[[KernelSpec, Judged], Verdict | None] = _no_pool
    cases: Callable[[KernelSpec], tuple[Case, ...]] = _no_cases
    applies: Callable[[KernelSpec], str | None] = _any_spec
    drawn: bool = True
