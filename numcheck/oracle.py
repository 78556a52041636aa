"""The Oracle: a problem's truth. It knows its mathematics and no implementation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numcheck.case import LAYOUTS, REGIMES, Case, Fact
from numcheck.contract import Rounds
from numcheck.errors import InvalidSpec

if TYPE_CHECKING:
    from torch import Tensor

Dims = tuple[str | int, ...] | Callable[[Case], tuple[int, ...]]
# How an input's values are drawn: "data" follows the Case's regime, "unit" is uniform on (0, 1), "gain" uniform
# on (0, 2). Anything else is a function (case, name) -> FP64 values built on `numcheck.sample.Counter`.
Fill = Literal["data", "unit", "gain"] | Callable[[Case, str], Any]


class Reading(Protocol):
    """One way to read an oracle's named points; see `numcheck.reading` for the four."""

    def at(self, name: str, value: Any) -> Any:
        """The value at the point `name`, rounded, disturbed or left alone."""

    def total(self, name: str, terms: Any, dim: int | tuple[int, ...], *, onto: Any = None, apart: str = "") -> Any:
        """The sum of `terms` over `dim`; the total that makes an output carries that output's name.

        onto: a value of the sum's shape that comes before the terms, as their first addend. apart: the point at
        which the terms' own sum would round before it meets `onto`. Where the policy rounds that point, the terms
        are summed by themselves (the total called `apart`), rounded, then added; elsewhere all is one chain.
        Terms may round one by one before the sum, at the point `name` + ".terms".
        """

    def matmul(self, name: str, a: Any, b: Any, *, onto: Any = None) -> Any:
        """The matrix product a (..., m, k) @ b (..., k, n), batch axes broadcast, as the sum called `name`.

        As `total` of its products over k, which are never held: for sums too long or too many to write out.
        onto: a value of the product's shape that comes before the terms, as their first addend.
        """

    def scatter(self, name: str, terms: Any, index: Tensor, rows: int, *, onto: Any = None) -> Any:
        """terms (N, ...) added into `rows` rows of zeros by index (N,) int64, as the sum called `name`: (rows, ...).

        A negative index contributes nothing, whatever its terms hold; a repeated one adds each time.
        onto: (rows, ...), what is added onto in place of zeros, as the first addend.
        """


@dataclass(frozen=True)
class _Declared:
    """A tensor as an oracle declares it: its name, its dims (size names or numbers), its dtype ("data": the Case's)."""

    name: str
    dims: Dims
    dtype: str = "data"

    def shape(self, case: Case) -> tuple[int, ...]:
        """The shape for `case`."""
        if callable(self.dims):
            return self.dims(case)
        return tuple(d if isinstance(d, int) else case[d] for d in self.dims)

    def dtype_for(self, case: Case) -> str:
        """The dtype for `case`, with "data" resolved."""
        return case.dtype if self.dtype == "data" else self.dtype


@dataclass(frozen=True)
class Input(_Declared):
    """An input tensor: its name, its dims (size names or numbers), its dtype ("data": the Case's), its values.

    grad: whether the VJP has a gradient for it, called `d_` + name.
    """

    fill: Fill = "data"
    grad: bool = True


@dataclass(frozen=True)
class Output(_Declared):
    """A forward output (`out`) or a gradient (`d_x`): its name, dims and dtype.

    saved: the VJP takes this forward output, under its own name. cotangent: it has one, called `d_` + name.
    """

    saved: bool = False
    cotangent: bool = True


@dataclass(frozen=True)
class CaseSpace:
    """Which Cases a problem has.

    sizes: name -> (smallest, largest) for drawing, both included; a size may also be an explicit tuple of
      allowed values given under `choices`. facts: name -> allowed values, simplest (most teeth) first.
    edges: named Cases that always run under the edges law (empty, dead, boundary).
    grid: name -> values of a size, dtype, layout, offset, regime or fact: the named grid, taken whole where
      small and pairwise where large.
    tiny: Cases small enough for the mpmath twin, used by the certificate.
    """

    sizes: Mapping[str, tuple[int, int]]
    choices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    facts: Mapping[str, tuple[Fact, ...]] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ("fp32", "bf16")
    regimes: tuple[str, ...] = REGIMES
    layouts: tuple[str, ...] = LAYOUTS
    offsets: tuple[int, ...] = (0, 1, 2, 3)
    grid: Mapping[str, tuple[Fact, ...]] = field(default_factory=dict)
    edges: tuple[Case, ...] = ()
    tiny: tuple[Case, ...] = ()


@dataclass(frozen=True)
class Cancellation:
    """A Case in which a small exact result is made of large terms, with the tensors that make it so.

    values: input name -> FP64 nested lists, taken instead of drawn values wherever accuracy or cancellation judges the
    Case; exact: output -> the exact result. Within an oracle each has a Case of its own.
    """

    name: str
    case: Case
    values: Mapping[str, Any]
    exact: Mapping[str, Any]


@dataclass(frozen=True)
class Relation:
    """An exact or bounded relation of a problem: `transform` changes a Sample, `back` maps the outputs back.

    exact: the bits must agree; otherwise the difference is bounded by the two radii. Takes and returns
    name -> tensor mappings (inputs and cotangents), so that a family declares only what applies to it.
    """

    name: str
    transform: Callable[[Case, dict[str, Tensor]], dict[str, Tensor] | None]
    back: Callable[[Case, dict[str, Tensor]], dict[str, Tensor]]
    exact: bool = True


Forward = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Oracle:
    """A problem's truth, one value to import.

    forward(read, **inputs) -> {output: value} and vjp(read, **inputs, **saved, **cotangents) -> {d_input: value},
    both in FP64 torch arithmetic with each rounding point named by `read.at` and each sum by `read.total`.
    The same code runs on (value, radius) pairs, so it uses the operators and torch functions that
    `numcheck.reading.Ball` knows. `vjp=None` falls back to autograd of the forward and is labelled so.

    twin(mp, case, **inputs) -> {output: nested lists}: the forward once more in mpmath, for the certificate;
      None labels the oracle UNCERTIFIED.
    policies: name -> rounds: the alternative roundings that the policy fingerprint tries, the usual one first.
    batch: name of the size that batch slicing cuts (axis 0 of every input that has it), or "".
    """

    name: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    forward: Forward
    space: CaseSpace
    vjp: Forward | None = None
    gradients: tuple[Output, ...] = ()
    twin: Callable[..., dict[str, Any]] | None = None
    policies: Mapping[str, Rounds] = field(default_factory=dict)
    batch: str = ""
    cancellations: tuple[Cancellation, ...] = ()
    relations: tuple[Relation, ...] = ()
    source: str = ""

    def __post_init__(self) -> None:
        names = [i.name for i in self.inputs] + [o.name for o in self.outputs]
        for name in names:
            if names.count(name) > 1:
                raise InvalidSpec(
                    f"oracle {self.name}: {name!r} is declared twice; inputs and outputs need names of their own"
                )
        for position, cancellation in enumerate(self.cancellations):
            for other in self.cancellations[:position]:
                if cancellation.case == other.case:
                    raise InvalidSpec(
                        f"oracle {self.name}: cancellations {other.name!r} and {cancellation.name!r} share one Case; "
                        "give each a seed of its own, since the Case is what a replay names"
                    )
        if not self.gradients:
            object.__setattr__(self, "gradients", tuple(_gradient(i) for i in self.inputs if i.grad))

    @property
    def results(self) -> tuple[Output, ...]:
        """Everything that is judged: the forward outputs, then the gradients."""
        return (*self.outputs, *self.gradients)

    @property
    def saved(self) -> tuple[str, ...]:
        """Names of the forward outputs that the VJP takes."""
        return tuple(o.name for o in self.outputs if o.saved)

    @property
    def cotangents(self) -> tuple[Output, ...]:
        """The cotangent tensors, one for each differentiable output, called `d_` + name."""
        return tuple(Output("d_" + o.name, o.dims, o.dtype) for o in self.outputs if o.cotangent)

    def result(self, name: str) -> Output:
        """The declared output or gradient called `name`."""
        for output in self.results:
            if output.name == name:
                return output
        raise InvalidSpec(
            f"oracle {self.name} has no output {name!r}; it has {', '.join(o.name for o in self.results)}"
        )


def _gradient(source: Input) -> Output:
    return Output("d_" + source.name, source.dims, source.dtype, cotangent=False)


def full_grid(grid: Mapping[str, tuple[Fact, ...]]) -> list[dict[str, Fact]]:
    """Every combination of a grid's values, as dicts."""
    return [dict(zip(grid, row, strict=True)) for row in itertools.product(*grid.values())]
