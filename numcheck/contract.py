"""The Contract: what a kernel promises about rounding, summation, order, shapes and memory.

A Contract is written once and read for a Case: `contract.policy(case)` is the rounding Policy that the
readings (`numcheck.reading`) take, since an accumulation tree belongs to the launch and so to the Case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, TypeVar

from numcheck.case import DTYPES, Case
from numcheck.errors import InvalidSpec

OrderPromise = Literal["single", "fixed", "any"]
ORDER_PROMISES: tuple[OrderPromise, ...] = ("single", "fixed", "any")

T = TypeVar("T")


@dataclass(frozen=True)
class Rounding:
    """A point rounds to `dtype`: to nearest even, or towards zero.

    flush: before that, what is below the normal range of the default accumulator (2^-126 in FP32) becomes zero, as an
    instruction with .ftz leaves it. A dtype that holds all that the accumulator holds then flushes and rounds nothing.
    """

    dtype: str
    mode: Literal["nearest", "truncate"] = "nearest"
    flush: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in (*DTYPES, "data"):
            raise InvalidSpec(f"rounds to {self.dtype!r}; allowed: {', '.join(DTYPES)} or 'data' (the Case's dtype)")
        if self.mode not in ("nearest", "truncate"):
            raise InvalidSpec(f"rounding mode {self.mode!r}; allowed: nearest, truncate")

    @property
    def words(self) -> str:
        """The dtype, and how it is rounded to where that is not to nearest alone."""
        how: list[str] = [self.mode] if self.mode != "nearest" else []
        how += ["flushed below the normal range"] if self.flush else []
        return f"{self.dtype} ({', '.join(how)})" if how else self.dtype


@dataclass(frozen=True)
class Sum:
    """How a sum accumulates.

    tree: "sequential" in the order of the oracle's terms; "pairwise"; "any" for an unknown tree (a torch
    reduction, float atomics), for which the sequential tree is the upper bound.
    block: above 0, the terms are cut in blocks of that many; a block is summed pairwise, the blocks by `tree`.
    rounding: of each partial sum; "any" where it is left open: all from no lean to that of truncation. products: False
    where a term is exact before the add (FMA), True where it is itself rounded to `dtype` first.
    aligned: above 0, so many terms at a time are shifted to the exponent of the largest, or of the sum so far, cut
    there, and added at once (tensor cores; rounding "any" holds for those that truncate, and for FP32 units instead).
    dot: precision of a matrix product's inputs; "tf32" rounds FP32 inputs to 10 explicit bits.
    split: each of the oracle's terms arrives in so many shares (one a block of heads, say), each an add.
    flush: an add takes a term, and leaves a sum, below `dtype`'s normal range as zero, as FP32 atomics on a GPU do.
    """

    dtype: str = "fp32"
    tree: Literal["sequential", "pairwise", "any"] = "any"
    block: int = 0
    rounding: Literal["nearest", "truncate", "any"] = "nearest"
    products: bool = True
    dot: Literal["ieee", "tf32"] = "ieee"
    split: int = 1
    aligned: int = 0
    flush: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidSpec(f"a sum accumulates in {self.dtype!r}; allowed: {', '.join(DTYPES)}")
        if self.tree not in ("sequential", "pairwise", "any"):
            raise InvalidSpec(f"sum tree {self.tree!r}; allowed: sequential, pairwise, any")
        if self.rounding not in ("nearest", "truncate", "any"):
            raise InvalidSpec(f"sum rounding {self.rounding!r}; allowed: nearest, truncate, any")
        if self.split < 1:
            raise InvalidSpec(f"sum split {self.split}; a term arrives in 1 share at least")
        if self.aligned < 0 or (self.aligned and (self.block or self.rounding == "nearest" or self.tree == "pairwise")):
            raise InvalidSpec(
                f"sum aligned {self.aligned}, block {self.block}, rounding {self.rounding!r}, tree {self.tree!r}; "
                "aligned terms are cut, in a chain of blocks of their own: give 0 (none), or how many are added at once"
            )
        if self.block < 0:
            raise InvalidSpec(f"sum block {self.block}; it must be 0 (none) or the terms in a block")


Rounds = Mapping[str, str | Rounding]
Accumulate = str | Sum | Mapping[str, str | Sum]
Promises = Mapping[str, OrderPromise]


@dataclass(frozen=True)
class Policy:
    """A Contract's rounding for one Case: which points round, and how each sum accumulates.

    `sums[""]` is the default for a total that is not named.
    """

    rounds: Mapping[str, Rounding]
    sums: Mapping[str, Sum]

    def sum_of(self, name: str) -> Sum:
        """How the total called `name` accumulates."""
        return self.sums.get(name, self.sums[""])

    def with_rounds(self, rounds: Mapping[str, Rounding]) -> Policy:
        """The same sums under other rounding points: a candidate of the policy fingerprint."""
        return Policy(MappingProxyType(dict(rounds)), self.sums)


def _no_reason(case: Case) -> str | None:
    return None


def _no_bytes(case: Case) -> int:
    return 0


@dataclass(frozen=True)
class Contract:
    """What a kernel promises, as a function of the Case.

    rounds: point name -> dtype ("bf16", ..., or "data" for the Case's dtype) or Rounding. A point that is not
      named does not round. A point that rounds to its accumulator's own dtype is no rounding point: leave it out.
    accumulate: a dtype name or Sum for every total, or a mapping total name -> either ("" is the default).
    order: output -> "single" (one writer an address; claimed, then proven), "fixed" (the default) or "any".
    dtypes: data dtypes that the kernel takes; empty: those that `rounds` leaves open.
    legal: a reason why a Case is outside the promise, or None. Such a Case is never judged; the edges law
      checks that it is refused loudly where `refuses` says so.
    refuses: True where the kernel itself raises for Cases that are not legal.
    workspace: bytes that the kernel allocates beyond its inputs and outputs, for a Case.
    addresses: bits of an offset in elements; 32 where the promise ends at tensors that span 2^31 elements.
    """

    rounds: Rounds | Callable[[Case], Rounds] = field(default_factory=dict)
    accumulate: Accumulate | Callable[[Case], Accumulate] = "fp32"
    order: Promises | Callable[[Case], Promises] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    legal: Callable[[Case], str | None] = _no_reason
    refuses: bool = False
    workspace: Callable[[Case], int] = _no_bytes
    addresses: int = 64

    def __post_init__(self) -> None:
        for name in ("rounds", "order"):
            if not isinstance(getattr(self, name), Mapping) and not callable(getattr(self, name)):
                raise InvalidSpec(
                    f"contract {name} is {getattr(self, name)!r}; give a dict by name, or a function of the Case"
                )
        for name in ("legal", "workspace"):
            if not callable(getattr(self, name)):
                raise InvalidSpec(f"contract {name} is {getattr(self, name)!r}; give a function of the Case")
        if not isinstance(self.dtypes, tuple | list):
            raise InvalidSpec(f"contract dtypes is {self.dtypes!r}; give a tuple of {', '.join(DTYPES)}")
        if self.addresses not in (32, 64):
            raise InvalidSpec(f"contract addresses is {self.addresses!r}; give 64, or 32 for offsets in 32 bits")
        if not callable(self.accumulate):
            for total in self.accumulate.values() if isinstance(self.accumulate, Mapping) else (self.accumulate,):
                _sum(total)
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise InvalidSpec(f"contract dtype {dtype!r}; allowed: {', '.join(DTYPES)}")
        if not callable(self.order):
            for output, promise in self.order.items():
                _check_promise(output, promise)
        if not callable(self.rounds):
            for point in self.rounds.values():
                _rounding(point)

    def policy(self, case: Case) -> Policy:
        """The rounding Policy for `case`, with "data" resolved to the Case's dtype."""
        rounds = {name: _resolve(_rounding(r), case) for name, r in _at(self.rounds, case).items()}
        accumulate = self.accumulate(case) if callable(self.accumulate) else self.accumulate
        named: Mapping[str, str | Sum] = accumulate if isinstance(accumulate, Mapping) else {"": accumulate}
        sums = {name: _sum(s) for name, s in {"": "fp32", **named}.items()}
        return Policy(MappingProxyType(rounds), MappingProxyType(sums))

    def order_of(self, output: str, case: Case) -> OrderPromise:
        """The order promise of `output`; "fixed" where none is given."""
        promise = _at(self.order, case).get(output, "fixed")
        _check_promise(output, promise)
        return promise


def _at(value: T | Callable[[Case], T], case: Case) -> T:
    return value(case) if callable(value) else value


def _rounding(value: str | Rounding) -> Rounding:
    found = Rounding(value) if isinstance(value, str) else value
    if not isinstance(found, Rounding):
        raise InvalidSpec(f"rounds to {found!r}; give {', '.join(DTYPES)}, 'data' or a numcheck.Rounding")
    return found


def _resolve(rounding: Rounding, case: Case) -> Rounding:
    return replace(rounding, dtype=case.dtype) if rounding.dtype == "data" else rounding


def _sum(value: str | Sum) -> Sum:
    found = Sum(value) if isinstance(value, str) else value
    if not isinstance(found, Sum):
        raise InvalidSpec(f"a sum accumulates as {found!r}; give {', '.join(DTYPES)} or a numcheck.Sum")
    return found


def _check_promise(output: str, promise: str) -> None:
    if promise not in ORDER_PROMISES:
        raise InvalidSpec(f"order of {output!r} is {promise!r}; allowed: {', '.join(ORDER_PROMISES)}")
