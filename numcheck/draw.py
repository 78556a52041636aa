"""Draw: which Cases are tried. Strategies for Hypothesis, most teeth first, and the named grid.

Facts are drawn, never tensors. The simplest value of every field is the one that makes a failure easiest to see
(FP32, "wide", the first value of a fact) or to read (the smallest size), so shrinking walks towards such a Case.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeGuard

import hypothesis
from hypothesis import strategies as st

from numcheck.case import REGIMES, Case, Fact
from numcheck.clock import timed
from numcheck.covering import pairwise
from numcheck.errors import InvalidSpec
from numcheck.oracle import CaseSpace
from numcheck.profile import Profile
from numcheck.spec import KernelSpec
from numcheck.verdict import Verdict

# Data dtypes, most teeth first: FP32 sums of 16-bit products are mostly exact, so their order hardly shows.
TEETH = ("fp32", "bf16", "fp16", "fp64")
# A drawn Case's sizes multiply to at most this, unless the profile says otherwise: 64 K elements cost a few hundred
# milliseconds to judge. Larger ones belong in the named grid, or in the deep profile.
LARGEST = 2**16
# Seeds are drawn below this: enough that two draws rarely share one, few enough to read.
SEEDS = 2**16
# In a bounded search, draws at the failing Case itself for each one that is free below it.
AT_THE_BOUND = 7


@dataclass(frozen=True)
class Field:
    """One thing that is drawn: a whole-number range (lowest, highest), or one of `values`, simplest first."""

    name: str
    lowest: int = 0
    highest: int = 0
    values: tuple[Fact, ...] = ()

    def below(self, bound: Fact) -> Field:
        """This field with nothing beyond `bound`, which itself stays possible even where nothing is drawn there."""
        if not self.values:
            return replace(self, lowest=min(self.lowest, int(bound)), highest=int(bound))
        if bound not in self.values:
            smaller = tuple(v for v in self.values if _is_size(v) and _is_size(bound) and v < bound)
            return replace(self, values=(*smaller, bound))
        return replace(self, values=self.values[: self.values.index(bound) + 1])

    @property
    def last(self) -> int:
        """The position of the least simple value; the simplest is at 0."""
        return len(self.values) - 1 if self.values else self.highest - self.lowest

    def at(self, position: int) -> Fact:
        """The value at a position."""
        return self.values[position] if self.values else self.lowest + position

    def within(self, most: int) -> Field:
        """This field with no size above `most`, or the smallest alone where that is above it."""
        if self.values:
            return replace(self, values=tuple(v for v in self.values if int(v) <= most) or self.values[:1])
        return replace(self, highest=max(self.lowest, min(self.highest, most)))


def _is_size(value: Fact) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def fields(spec: KernelSpec) -> dict[str, Field]:
    """What is drawn for `spec`, in the order of drawing: sizes, facts, dtype, regime, layout, offset, seed."""
    space = spec.oracle.space
    found = [_size(space, name) for name in sizes(space)]
    found += [Field(name, values=tuple(values)) for name, values in space.facts.items()]
    found += [
        Field("dtype", values=_dtypes(spec)),
        Field("regime", values=tuple(r for r in REGIMES if r in space.regimes)),
        Field("layout", values=space.layouts),
        Field("offset", values=space.offsets),
        Field("seed", 0, SEEDS - 1),
    ]
    return {field.name: field for field in found}


def sizes(space: CaseSpace) -> tuple[str, ...]:
    """Names of the sizes of a problem: those with a range, then those with choices alone."""
    return tuple(dict.fromkeys((*space.sizes, *space.choices)))


def _size(space: CaseSpace, name: str) -> Field:
    if name in space.choices:
        return Field(name, values=tuple(sorted(space.choices[name])))
    return Field(name, *space.sizes[name])


def _dtypes(spec: KernelSpec) -> tuple[str, ...]:
    allowed = [d for d in spec.dtypes if d in spec.oracle.space.dtypes]
    if not allowed:
        raise InvalidSpec(
            f"spec {spec.name} takes {', '.join(spec.dtypes) or 'no'} data, but {spec.oracle.name} draws "
            f"{', '.join(spec.oracle.space.dtypes)}; give its Contract `dtypes` from among these"
        )
    return tuple(sorted(allowed, key=TEETH.index))


def cases(spec: KernelSpec, largest: int = LARGEST) -> st.SearchStrategy[Case]:
    """Legal Cases of a spec whose sizes, but light ones, multiply to at most `largest`, if the smallest allow that.

    A size is a plain number: Hypothesis spreads those evenly up to 256 and by their logarithm beyond.
    """
    return _cases(spec, fields(spec), None, largest)


def below(spec: KernelSpec, case: Case) -> dict[str, Field]:
    """The fields of `case` that can be made simpler, each with nothing beyond the Case's own value.

    A fact or size that the problem's space does not know (a law's own Case) keeps its value.
    """
    own = _facts(case)
    return {name: field.below(own[name]) for name, field in fields(spec).items() if name in own}


def bounded(spec: KernelSpec, case: Case) -> st.SearchStrategy[Case]:
    """The same Cases with no field beyond that of `case`, `case` itself among them and drawn most often.

    The seed stays as it is: smaller does not mean simpler there.
    """
    return _cases(spec, {**below(spec, case), "seed": Field("seed", case.seed, case.seed)}, case, None)


@st.composite
def _cases(
    draw: st.DrawFn, spec: KernelSpec, drawn: Mapping[str, Field], bound: Case | None, largest: int | None
) -> Case:
    # At the bound every field is forced to the failing Case's value. Shrinking first sets this one number to zero:
    # the same Case, its fields now free to fall. An explicit example would never shrink.
    at_bound = bound is not None and draw(st.integers(0, AT_THE_BOUND)) > 0
    start = bound or _simplest(spec, drawn)
    forced = _facts(start) if at_bound else {}
    counted = [name for name in sizes(spec.oracle.space) if name not in spec.oracle.space.light]
    left, chosen = largest, dict[str, Fact]()
    for name, field in drawn.items():
        if left is None or name not in counted:
            chosen[name] = _draw(draw, field, forced.get(name))
        else:
            chosen[name] = size = _draw(draw, field.within(left), None)
            left //= max(1, int(size))
    case = start.but(**chosen)
    wanted = bound is None or spec.illegal(bound) is None
    if (spec.illegal(case) is None) != wanted:
        hypothesis.reject()
    return case


def _draw(draw: st.DrawFn, field: Field, forced: Fact | None) -> Fact:
    """One value, always drawn as a whole number, so that a value that was forced stays valid once it is free."""
    low, high = (0, len(field.values) - 1) if field.values else (field.lowest, field.highest)
    if forced is not None:
        low = high = field.values.index(forced) if field.values else int(forced)
    number = draw(st.integers(low, high))
    return field.values[number] if field.values else number


def _facts(case: Case) -> dict[str, Fact]:
    """All that a Case says, by name."""
    return {**dict(case.sizes), **dict(case.facts), **{name: getattr(case, name) for name in _CASE_FIELDS}}


def _simplest(spec: KernelSpec, drawn: Mapping[str, Field]) -> Case:
    first = {name: field.values[0] if field.values else field.lowest for name, field in drawn.items()}
    return _case(spec.oracle.space, first)


_CASE_FIELDS = ("dtype", "regime", "layout", "offset", "seed")


def _case(space: CaseSpace, values: Mapping[str, Fact]) -> Case:
    names = sizes(space)
    plain = {name: value for name, value in values.items() if name in _CASE_FIELDS}
    facts = {name: values[name] for name in values if name not in names and name not in plain}
    return Case.of(facts=facts, **{name: int(values[name]) for name in names}, **plain)  # type: ignore[arg-type]


@timed("draw")
def grid(spec: KernelSpec, profile: Profile) -> tuple[Case, ...]:
    """The named grid of a spec's problem: whole where it has at most `profile.grid` Cases, else every pair of values.

    Legal Cases only, the cheapest first, the same on every run. What the grid does not name takes its simplest
    value, for a size the smallest that is not zero.
    """
    named = spec.oracle.space.grid
    columns = {name: _allowed(spec, name, values) for name, values in named.items()}
    rest = {name: _unnamed(field, name in sizes(spec.oracle.space)) for name, field in fields(spec).items()}
    widths = [len(values) for values in columns.values()]

    def case(row: Sequence[int]) -> Case:
        chosen = {name: values[i] for (name, values), i in zip(columns.items(), row, strict=True)}
        return _case(spec.oracle.space, {**rest, **chosen})

    def legal(row: Sequence[int]) -> bool:
        return spec.illegal(case(row)) is None

    whole = math.prod(widths) <= profile.grid
    rows = list(itertools.product(*map(range, widths))) if whole else list(pairwise(widths, legal))
    return tuple(sorted((case(row) for row in rows if legal(row)), key=cost))


def _allowed(spec: KernelSpec, name: str, values: Sequence[Fact]) -> tuple[Fact, ...]:
    if name != "dtype":
        return tuple(values)
    return tuple(sorted((v for v in values if v in spec.dtypes), key=lambda v: TEETH.index(str(v))))


def _unnamed(field: Field, is_size: bool) -> Fact:
    if field.values:
        return next((v for v in field.values if v != 0), field.values[0]) if is_size else field.values[0]
    return min(max(1, field.lowest), field.highest) if is_size else field.lowest


def cost(case: Case) -> int:
    """How large a Case is: the product of its sizes."""
    return case.elements


def steer(verdict: Verdict) -> None:
    """Tell Hypothesis how near each kind of gate came to its limit, so that it looks for the least headroom."""
    nearest: dict[str, float] = {}
    for gate in verdict.gates:
        share = 1.0 / gate.headroom if gate.headroom > 0 else math.inf
        if math.isfinite(share):
            nearest[gate.kind] = max(share, nearest.get(gate.kind, 0.0))
    for kind, share in nearest.items():
        hypothesis.target(share, label=f"{kind}: share of its limit")


def search(
    strategy: st.SearchStrategy[Case], fails: Callable[[Case], bool], examples: int, seed: int, *, shrink: bool = True
) -> Case | None:
    """The smallest Case found for which `fails` is true, or None; the same for the same seed and a pure `fails`.

    shrink: whether to look for a smaller Case than the first; for a kernel `numcheck.shrink` walks down faster.

    Every setting is given here, so that a profile that the host project has loaded changes nothing, and nothing is
    read from or written to its example database. The explain phase is left out: it makes shrinking 30 times slower.
    """
    settings = hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(hypothesis.Phase.generate, hypothesis.Phase.target, *((hypothesis.Phase.shrink,) if shrink else ())),
        report_multiple_bugs=False,
        suppress_health_check=list(hypothesis.HealthCheck),
        verbosity=hypothesis.Verbosity.quiet,
        print_blob=False,
        stateful_step_count=1,
        backend="hypothesis",
    )
    try:
        return hypothesis.find(strategy, fails, settings=settings, random=Random(seed))
    except (hypothesis.errors.NoSuchExample, hypothesis.errors.Unsatisfiable):
        return None
