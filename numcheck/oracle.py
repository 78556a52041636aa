"""The Oracle: a problem's truth. It knows its mathematics and no implementation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from numcheck.capability import Device
from numcheck.case import LAYOUTS, REGIMES, Case, Fact
from numcheck.contract import Rounds
from numcheck.errors import InvalidSpec

if TYPE_CHECKING:
    from torch import Tensor

Dims = tuple[str | int, ...] | Callable[[Case], tuple[int, ...]]
# How an input's values are drawn: "data" follows the Case's regime, "unit" is uniform on (0, 1), "gain" uniform
# on (0, 2). Anything else is a function (case, name) -> FP64 values built on `numcheck.sample.Counter`.
Fill = Literal["data", "unit", "gain"] | Callable[[Case, str], Any]
# Dtypes of index and mask tensors: drawn by a fill, never scaled, rounded or differentiated.
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "bool")
# Element masks by tensor name, from a Case and its inputs and cotangents, upcast exactly and on the CPU.
Masks = Callable[[Case, Mapping[str, "Tensor"]], Mapping[str, "Tensor"]]


def _always(case: Case) -> bool:
    return True


def _no_reason(case: Case) -> str | None:
    return None


def _no_scalars(case: Case) -> Mapping[str, Fact]:
    return {}


def _none_wrong(case: Case) -> Mapping[str, tuple[Fact, ...]]:
    return {}


class Reading(Protocol):
    """One way to read an oracle's named points; see `numcheck.reading` for the four."""

    def enter(self, value: Tensor) -> Any:
        """An exact tensor as this reading's number, as inputs come in: for what the oracle counts by itself."""

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
    """A tensor as an oracle declares it: its name, its dims (size names or numbers), its dtype ("data": the Case's).

    dims and dtype may be functions of the Case; integer and bool dtypes are given by name.
    given: whether a Case has it. Where not, oracle, twin and kernels get None for it.
    """

    name: str
    dims: Dims
    dtype: str | Callable[[Case], str] = "data"
    given: Callable[[Case], bool] = field(default=_always, kw_only=True)

    @property
    def whole(self) -> bool:
        """Whether its elements are integers or bools."""
        return not callable(self.dtype) and self.dtype in WHOLE

    @property
    def optional(self) -> bool:
        """Whether some Case may not have it."""
        return self.given is not _always

    def shape(self, case: Case) -> tuple[int, ...]:
        """The shape for `case`."""
        if callable(self.dims):
            return self.dims(case)
        return tuple(d if isinstance(d, int) else case[d] for d in self.dims)

    def dtype_for(self, case: Case) -> str:
        """The dtype for `case`, with "data" resolved."""
        dtype = self.dtype(case) if callable(self.dtype) else self.dtype
        return case.dtype if dtype == "data" else dtype


@dataclass(frozen=True)
class Input(_Declared):
    """An input tensor: its name, its dims (size names or numbers), its dtype ("data": the Case's), its values.

    grad: whether the VJP has a gradient for it, called `d_` + name; integers and bools have none.
    given: whether a Case has this optional input. Where not, its gradient is not asked for either.
    """

    fill: Fill = "data"
    grad: bool = True


@dataclass(frozen=True)
class Output(_Declared):
    """A forward output (`out`) or a gradient (`d_x`): its name, dims and dtype.

    saved: the VJP takes this forward output, under its own name. cotangent: it has one, called `d_` + name; integers
    and bools have none. given: whether a Case has this optional output. fill: a function (case, name) -> FP64 values
    of the cotangent; None: signed and generic. A buffer that a gradient is added onto is the cotangent of an identity
    output (the gradient that other uses of the input have left there), so that all stays linear in the cotangents.
    """

    saved: bool = False
    cotangent: bool = True
    fill: Callable[[Case, str], Any] | None = None


@dataclass(frozen=True)
class CaseSpace:
    """Which Cases a problem has.

    sizes: name -> (smallest, largest) for drawing, both included; a size may also be an explicit tuple of
      allowed values given under `choices`, where one listed several times is drawn as often. facts: name -> allowed
      values, simplest (most teeth) first.
    edges: named Cases that always run under the edges law (empty, dead, boundary).
    grid: name -> values of a size, dtype, layout, offset, regime or fact: the named grid, taken whole where
      small and pairwise where large.
    tiny: Cases small enough for the mpmath twin, used by the certificate.
    maxima: size -> its declared maximum, at which a workspace formula is read; left out: the largest that is drawn.
    legal: why the problem has no such Case (sizes that contradict each other), or None.
    light: sizes that add next to nothing to a Case's work, so that drawing does not count them.
    once: Cases too large to be judged by every law: the edges law runs each one once, held to its radius.
    note: what a reader must know of this space, for the ledger.
    elsewhere: device -> the space there, where another size of Case is affordable; see `Oracle.on`.
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
    maxima: Mapping[str, int] = field(default_factory=dict)
    legal: Callable[[Case], str | None] = _no_reason
    light: tuple[str, ...] = ()
    once: tuple[Case, ...] = ()
    note: str = ""
    elsewhere: Mapping[Device, CaseSpace] = field(default_factory=dict)

    def work(self, case: Case) -> int:
        """How much work a Case is: the product of its sizes, light ones left out."""
        return math.prod(value for name, value in case.sizes if name not in self.light)


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

    forward(read, **inputs, **scalars) -> {output: value} and
    vjp(read, **inputs, **scalars, **saved, **cotangents) -> {d_input: value}, both in FP64 torch arithmetic with each
    rounding point named by `read.at` and each sum by `read.total`. The same code runs on (value, radius) pairs, so it
    uses the operators and torch functions that `numcheck.reading.Ball` knows. Integers come as int64, bools as they
    are, and None stands for what the Case does not have. `vjp=None` falls back to autograd of the forward and is
    labelled so.

    twin(mp, case, **inputs, **scalars) -> {output: nested lists}: the forward once more in mpmath, for the
      certificate; None labels the oracle UNCERTIFIED.
    policies: name -> rounds: the alternative roundings that the policy fingerprint tries, the usual one first.
    batch: name of the size that batch slicing cuts (axis 0 of every input that has it), or "".
    partial: outputs that are sums over the batch: those of two halves add up to the whole. Left empty, they are the
      gradients without a batch axis, where every forward output has one.
    scalars(case) -> {name: bool, int, float or str}: arguments that are no tensors (a softmax scale, a coefficient),
      passed by keyword to forward and vjp of oracle and kernels, and to the twin.
    wrong(case) -> {scalar: values}: what such an argument must not be (a scale that is not finite). The edges law hands
      them to kernels whose Contract `refuses`.
    ignored(case, tensors) -> {input or cotangent: bool mask}: elements that must not matter (rows that no index
      lists, padding, slots past a length). The edges law fills them with NaN, infinities and huge numbers, integers
      with their extremes, and demands the same bits. The oracle itself selects them away: 0 * NaN is NaN. A mask has
      the tensor's shape, or one that broadcasts to it.
    unspecified(case, tensors) -> {output: bool mask}: elements that the problem leaves open (the lse of a dead row),
      held to repeatability alone.
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
    partial: tuple[str, ...] = ()
    scalars: Callable[[Case], Mapping[str, Fact]] = _no_scalars
    wrong: Callable[[Case], Mapping[str, tuple[Fact, ...]]] = _none_wrong
    ignored: Masks | None = None
    unspecified: Masks | None = None
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
            object.__setattr__(self, "gradients", tuple(_gradient(i) for i in self.inputs if i.grad and not i.whole))
        if not self.partial:
            object.__setattr__(self, "partial", self._shared_by_rows())
        for name in self.partial:
            if not self.batch:
                raise InvalidSpec(f"oracle {self.name}: partial names {name}, so say which size is the batch")
            self.result(name)

    def _shared_by_rows(self) -> tuple[str, ...]:
        # Where an output has no batch axis, rows depend on each other, and halves of the batch are other problems.
        if not self.batch or not all(self.batched(o) for o in self.outputs):
            return ()
        return tuple(g.name for g in self.gradients if not self.batched(g))

    def batched(self, declared: _Declared) -> bool:
        """Whether axis 0 of an input, output or cotangent is the batch."""
        return bool(self.batch) and isinstance(declared.dims, tuple) and declared.dims[:1] == (self.batch,)

    def on(self, device: Device) -> Oracle:
        """This oracle with the Case space of `device`."""
        space = self.space.elsewhere.get(device)
        return self if space is None else replace(self, space=space)

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
        return tuple(
            Output("d_" + o.name, o.dims, o.dtype, given=o.given, fill=o.fill)
            for o in self.outputs
            if o.cotangent and not o.whole
        )

    def inputs_for(self, case: Case) -> tuple[Input, ...]:
        """The inputs that `case` has."""
        return tuple(i for i in self.inputs if i.given(case))

    def outputs_for(self, case: Case) -> tuple[Output, ...]:
        """The forward outputs that `case` has."""
        return tuple(o for o in self.outputs if o.given(case))

    def cotangents_for(self, case: Case) -> tuple[Output, ...]:
        """The cotangents that `case` has."""
        return tuple(c for c in self.cotangents if c.given(case))

    def gradients_for(self, case: Case) -> tuple[Output, ...]:
        """The gradients asked for in `case`: none for an input that it does not have."""
        absent = {"d_" + i.name for i in self.inputs if not i.given(case)}
        return tuple(g for g in self.gradients if g.given(case) and g.name not in absent)

    def saved_for(self, case: Case) -> tuple[str, ...]:
        """Names of the forward outputs that `case` has and the VJP takes."""
        return tuple(o.name for o in self.outputs_for(case) if o.saved)

    def results_for(self, case: Case) -> tuple[Output, ...]:
        """Everything that is judged of `case`."""
        return (*self.outputs_for(case), *self.gradients_for(case))

    def for_forward(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a forward: each input of `given`, None for one that is absent, and the scalars.

        given: inputs, cotangents and scalars by name, as kernels or one of the readings take them.
        """
        inputs = {i.name: given.get(i.name) for i in self.inputs}
        tensors = {*inputs, *(c.name for c in self.cotangents)}
        return inputs | {name: value for name, value in given.items() if name not in tensors}

    def for_vjp(self, given: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
        """The keywords of a VJP: those of a forward, then saved outputs and cotangents, None for absent ones."""
        kept = {name: saved.get(name) for name in self.saved}
        return self.for_forward(given) | kept | {c.name: given.get(c.name) for c in self.cotangents}

    def result(self, name: str) -> Output:
        """The declared output or gradient called `name`."""
        for output in self.results:
            if output.name == name:
                return output
        raise InvalidSpec(
            f"oracle {self.name} has no output {name!r}; it has {', '.join(o.name for o in self.results)}"
        )


def _gradient(source: Input) -> Output:
    return Output("d_" + source.name, source.dims, source.dtype, cotangent=False, given=source.given)


def full_grid(grid: Mapping[str, tuple[Fact, ...]]) -> list[dict[str, Fact]]:
    """Every combination of a grid's values, as dicts."""
    return [dict(zip(grid, row, strict=True)) for row in itertools.product(*grid.values())]
