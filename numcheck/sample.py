"""A Sample: a Case made real, with the same bits on every device and version.

Values come from a counter-based integer hash of (seed, tensor name, index) and exact FP64 operations only. They
are made on the CPU, rounded once to the kernel's dtype, laid out as the Case says, and moved to the device with
strides, storage offset and margins kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from numcheck.case import Case, Fact
from numcheck.clock import timed
from numcheck.errors import InvalidSpec
from numcheck.oracle import Input, Oracle, Output
from numcheck.ulp import FORMATS, cast, dtype_name

Words = npt.NDArray[np.uint64]

# Elements before and after a placed tensor: a whole number of 64-byte lines for any dtype, so that the Case's
# offset alone decides the alignment.
MARGIN = 64
# Elements hashed at a time, which stay in a core's cache.
BLOCK = 2**15
# Spread of the `wide` regime: powers of two from 2^-8 to 2^8, wide enough that FP32 sums of bf16 products round.
SPREAD = 8
# `cancelling` rows have |sum| / sum|terms| from about 2^-2 down to 2^-12.
DEEPEST = 12


@dataclass(frozen=True)
class Counter:
    """Numbers by hash: element i of a tensor depends on (seed, name, i) and on nothing else.

    Every method returns FP64 on the CPU, or int64 where it says so, and uses exact operations only.
    """

    seed: int
    name: str

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Uniform on the open interval (0, 1), on a grid of 2^-53."""
        words = self._words(shape, "uniform") >> np.uint64(12)
        return _tensor((words.astype(np.float64) + 0.5) * 2.0**-52, shape)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Mean 0, variance 1, within (-6.5, 6.5): the sum of twelve uniforms (Irwin-Hall), with 32 more bits below."""
        total = np.zeros(math.prod(shape), np.uint64)
        for lane in range(3):
            words = self._words(shape, f"normal{lane}")
            for start in range(0, words.size, BLOCK):
                some, sums = words[start : start + BLOCK], total[start : start + BLOCK]
                for quarter in range(4):
                    sums += (some >> np.uint64(16 * quarter)) & np.uint64(0xFFFF)
        below = (self._words(shape, "normal3") >> np.uint64(32)).astype(np.float64)
        below *= 2.0**-32
        below += total
        below -= 12 * 65535 / 2 + 0.5
        below *= 2.0**-16
        return _tensor(below, shape)

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Tensor:
        """Uniform integers from `low` to `high`, both included, as FP64."""
        return self.indices(shape, low, high).to(torch.float64)

    def indices(self, shape: tuple[int, ...], low: int, high: int) -> Tensor:
        """Uniform integers from `low` to `high`, both included, as int64."""
        if high < low:
            raise ValueError(f"integers from {low} to {high}; the upper end must not be below the lower one")
        words = self._words(shape, "integers") >> np.uint64(11)
        return _tensor((words % np.uint64(high - low + 1)).astype(np.int64) + low, shape)

    def signs(self, shape: tuple[int, ...]) -> Tensor:
        """-1 or 1."""
        return 2.0 * (self._int64(shape, "signs") & 1).to(torch.float64) - 1.0

    def powers(self, shape: tuple[int, ...], low: int, high: int) -> Tensor:
        """2^k with k a uniform integer from `low` to `high`, both included."""
        exponents = replace(self, name=f"{self.name}/powers").indices(shape, low, high)
        return ((exponents + 1023) << 52).view(torch.float64)

    def permutation(self, n: int) -> Tensor:
        """A permutation of range(n), as int64."""
        return torch.from_numpy(np.argsort(self._words((n,), "permutation"), kind="stable").astype(np.int64))

    def _words(self, shape: tuple[int, ...], stream: str) -> Words:
        """64 hashed bits an element: splitmix64's finaliser over a keyed counter."""
        key = hashlib.sha256(f"{self.seed}/{self.name}/{stream}".encode()).digest()
        words = np.arange(math.prod(shape), dtype=np.uint64)
        for start in range(0, words.size, BLOCK):
            z = words[start : start + BLOCK]
            z *= np.uint64(0x9E3779B97F4A7C15)
            z += np.uint64(int.from_bytes(key[:8], "little"))
            z ^= z >> np.uint64(30)
            z *= np.uint64(0xBF58476D1CE4E5B9)
            z ^= z >> np.uint64(27)
            z *= np.uint64(0x94D049BB133111EB)
            z ^= z >> np.uint64(31)
        return words

    def _int64(self, shape: tuple[int, ...], stream: str) -> Tensor:
        return _tensor((self._words(shape, stream) >> np.uint64(1)).astype(np.int64), shape)


@dataclass(frozen=True)
class Sample:
    """A Case's tensors, in the kernel's dtypes, with the Case's layout and storage offset, and its scalars.

    inputs, cotangents: those that the Case has.
    """

    case: Case
    inputs: Mapping[str, Tensor]
    cotangents: Mapping[str, Tensor]
    scalars: Mapping[str, Fact] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Inputs and cotangents by name."""
        return {**self.inputs, **self.cotangents}

    @property
    def given(self) -> dict[str, Any]:
        """Inputs, cotangents and scalars by name, for `Oracle.for_forward` and `Oracle.for_vjp`."""
        return {**self.tensors, **self.scalars}

    def exact(self) -> dict[str, Any]:
        """`given` with tensors upcast exactly: contiguous on the CPU, FP64 (integers int64, bool as it is)."""
        return {**self.exact_tensors(), **self.scalars}

    def exact_tensors(self) -> dict[str, Tensor]:
        """The tensors of `exact` alone."""
        return {name: exact(t) for name, t in self.tensors.items()}

    def but(self, **tensors: Tensor) -> Sample:
        """This Sample with some tensors replaced by name; they are laid out anew as the Case says. Scalars stay.

        A tensor of another dtype is upcast to FP64 and rounded once to the dtype of the one that it replaces.
        """
        unknown = set(tensors) - set(self.tensors)
        if unknown:
            known = ", ".join(self.tensors)
            raise ValueError(f"no tensor {', '.join(sorted(unknown))} in this Sample; it has {known}")
        return self.map(lambda name, old: self._replaced(old, tensors[name]) if name in tensors else old)

    def map(self, change: Callable[[str, Tensor], Tensor], case: Case | None = None) -> Sample:
        """This Sample with `change(name, tensor)` in place of each tensor, as a Sample of `case` where one is given."""
        return Sample(
            case or self.case,
            {name: change(name, t) for name, t in self.inputs.items()},
            {name: change(name, t) for name, t in self.cotangents.items()},
            self.scalars,
        )

    def to(self, device: str) -> Sample:
        """This Sample on `device`, with strides, storage offsets and margins kept."""
        return self.map(lambda _, t: move(t, device))

    def _replaced(self, old: Tensor, value: Tensor) -> Tensor:
        if value.dtype != old.dtype:
            value = cast(exact(value), dtype_name(old.dtype))
        return in_layout(value, self.case, str(old.device))


@timed("sample")
def sample(oracle: Oracle, case: Case, device: str = "cpu", values: Mapping[str, Any] | None = None) -> Sample:
    """The tensors of `case`: inputs and cotangents by the oracle's names, on `device`, and the oracle's scalars.

    values: name -> nested lists or tensor, taken instead of what the regime would draw; rounded once like it.
    Raises InvalidSpec where a fill or a given value does not have the declared shape, where an integer does not fit
    its dtype, and where a scalar is none or has the name of a tensor.
    """
    given = values or {}
    inputs, cotangents = oracle.inputs_for(case), oracle.cotangents_for(case)
    known = [declared.name for declared in (*inputs, *cotangents)]
    for name in given:
        if name not in known:
            raise InvalidSpec(f"values for {name!r}; this Case of {oracle.name} has {', '.join(known)}")

    def made(declared: Input | Output, drawn: Any) -> Tensor:
        value = given.get(declared.name)
        value = drawn() if value is None else value
        tensor = value if isinstance(value, Tensor) else torch.tensor(value, dtype=_exact_dtype(declared))
        shape = declared.shape(case)
        if tuple(tensor.shape) != shape:
            raise InvalidSpec(
                f"{oracle.name}: values of {declared.name} have shape {tuple(tensor.shape)}, the Case asks for {shape}"
            )
        return place(_stored(oracle, declared, case, tensor.cpu()), case.layout, case.offset)

    made_sample = Sample(
        case,
        {i.name: made(i, lambda i=i: _fill(i, case)) for i in inputs},
        {c.name: made(c, lambda c=c: _cotangent(c, case)) for c in cotangents},
        _scalars(oracle, case),
    )
    return made_sample if device == "cpu" else made_sample.to(device)


def _scalars(oracle: Oracle, case: Case) -> dict[str, Fact]:
    scalars = dict(oracle.scalars(case))
    taken = {declared.name for declared in (*oracle.inputs, *oracle.results, *oracle.cotangents)}
    for name, value in scalars.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidSpec(f"{oracle.name}: scalar {name}={value!r}, but a scalar is a bool, int, float or str")
        if name in taken:
            raise InvalidSpec(f"{oracle.name}: {name!r} is a tensor and a scalar; give one of them another name")
    return scalars


def _exact_dtype(declared: Input | Output) -> torch.dtype:
    return torch.int64 if declared.whole else torch.float64


def _stored(oracle: Oracle, declared: Input | Output, case: Case, tensor: Tensor) -> Tensor:
    """Exact values in the declared dtype: rounded once where it is a float, as they are where it is an integer."""
    stored = cast(tensor, declared.dtype_for(case))
    if declared.whole and not torch.equal(stored.to(tensor.dtype), tensor):
        raise InvalidSpec(f"{oracle.name}: values of {declared.name} do not fit {declared.dtype}; give whole numbers")
    return stored


def exact(t: Tensor) -> Tensor:
    """`t` upcast exactly: contiguous on the CPU, FP64; integers become int64, bool stays."""
    t = t.detach().cpu()
    if t.dtype == torch.bool:
        return t.contiguous()
    return t.to(torch.float64 if t.dtype.is_floating_point else torch.int64).contiguous()


def place(tensor: Tensor, layout: str, offset: int) -> Tensor:
    """A copy of `tensor` inside a larger buffer on the CPU, `offset` elements off its alignment.

    strided: every second element of a row, rows and planes one more element apart, so that no two axes collapse.
    Margins and gaps hold NaN (integers: 1, a valid index), so that a read out of bounds shows.
    """
    strides, span = [], 2 if layout == "strided" else 1
    for size in reversed(tensor.shape):
        strides.append(span)
        span = span * max(size, 1) + (1 if layout == "strided" else 0)
    sentinel = torch.nan if tensor.dtype.is_floating_point else 1
    buffer = torch.full((MARGIN + offset + span + MARGIN,), sentinel, dtype=tensor.dtype)
    placed = buffer.as_strided(tuple(tensor.shape), strides[::-1], MARGIN + offset)
    return placed.copy_(tensor)


def in_layout(tensor: Tensor, case: Case, device: str) -> Tensor:
    """A copy of `tensor` on `device`, with the layout and storage offset of `case`."""
    return move(place(tensor.cpu(), case.layout, case.offset), device)


def move(t: Tensor, device: str) -> Tensor:
    """`t` on `device` with its whole storage: same strides, storage offset and margins."""
    if t.device == torch.device(device):
        return t
    whole = t.as_strided((t.untyped_storage().nbytes() // t.element_size(),), (1,), 0)
    return whole.to(device).as_strided(t.shape, t.stride(), t.storage_offset())


def data(case: Case, name: str, shape: tuple[int, ...]) -> Tensor:
    """FP64 values in the Case's regime: what a fill of "data" means."""
    counter = Counter(case.seed, name)
    match case.regime:
        case "wide":
            return counter.normal(shape) * counter.powers(shape, -SPREAD, SPREAD)
        case "normal":
            return counter.normal(shape)
        case "mean4":
            return counter.normal(shape) + 4.0
        case "cancelling":
            return _cancelling(counter, shape)
        case "integers":
            return counter.integers(shape, -3, 3)
        case _:
            return _constant(case, shape)


def cotangent(case: Case, name: str, shape: tuple[int, ...]) -> Tensor:
    """FP64 values for a cotangent: signed and generic, never all ones.

    Where the regime is for exact results they are small integers. In `cancelling` the two halves of a row agree,
    so that products with data, whose halves are opposite, cancel too.
    """
    counter = Counter(case.seed, name)
    if case.regime in ("integers", "ones", "zeros"):
        return counter.integers(shape, -3, 3)
    if case.regime == "cancelling" and shape and shape[-1] > 1:
        first = counter.normal((*shape[:-1], shape[-1] - shape[-1] // 2))
        return torch.cat([first[..., : shape[-1] // 2], first], dim=-1)
    if case.regime == "wide":
        return counter.normal(shape) * counter.powers(shape, -SPREAD, SPREAD)
    return counter.normal(shape)


def coefficient(case: Case, name: str, shape: tuple[int, ...], scale: float) -> Tensor:
    """FP64 values uniform on (0, `scale`); in the exact regimes dyadic fractions of it, ones or zeros."""
    counter = Counter(case.seed, name)
    if case.regime == "integers":
        return counter.integers(shape, 1, 3) * (scale / 4)
    if case.regime in ("ones", "zeros"):
        return _constant(case, shape)
    return counter.uniform(shape) * scale


def _fill(declared: Input, case: Case) -> Tensor:
    shape = declared.shape(case)
    if callable(declared.fill):
        value = declared.fill(case, declared.name)
        return value if isinstance(value, Tensor) else torch.tensor(value, dtype=_exact_dtype(declared))
    if declared.dtype_for(case) not in FORMATS:
        raise InvalidSpec(
            f"input {declared.name} is {declared.dtype}, which no value regime fills; "
            "give it a fill (case, name) -> tensor"
        )
    if declared.fill == "data":
        return data(case, declared.name, shape)
    return coefficient(case, declared.name, shape, {"unit": 1.0, "gain": 2.0}[declared.fill])


def _cotangent(declared: Output, case: Case) -> Tensor:
    shape = declared.shape(case)
    value = declared.fill(case, declared.name) if declared.fill else cotangent(case, declared.name, shape)
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64)


def _constant(case: Case, shape: tuple[int, ...]) -> Tensor:
    return torch.full(shape, 1.0 if case.regime == "ones" else 0.0, dtype=torch.float64)


def _cancelling(counter: Counter, shape: tuple[int, ...]) -> Tensor:
    """Rows whose second half undoes the first but for a survivor: |sum| / sum|terms| from 2^-2 down to 2^-12.

    Partners are half a row apart, so that partial sums grow, and round, before they cancel.
    """
    width = shape[-1] if shape else 1
    values = counter.normal(shape)
    if width < 2:
        return values
    half, rows = width // 2, (*shape[:-1], 1)
    survivor = Counter(counter.seed, f"{counter.name}/survivor")
    # A row's terms have mean size near 1, so a survivor of width * 2^-t leaves a ratio near 2^-t.
    left = survivor.signs(rows) * (1.0 + survivor.integers(rows, 0, 255) * 2.0**-8)
    left = left * survivor.powers(rows, -DEEPEST, -2) * width
    values[..., half : 2 * half] = -values[..., :half]
    if width % 2:
        values[..., -1:] = left
    else:
        values[..., -1:] += left
    return values


def _tensor(values: npt.NDArray[Any], shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(values).reshape(shape)
