"""A Case: one problem without tensors. Small, frozen, and the same on every machine."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from json.encoder import encode_basestring_ascii
from typing import Any

from numcheck.errors import InvalidCase

Fact = bool | int | float | str

DTYPES = ("bf16", "fp16", "fp32", "fp64")
LAYOUTS = ("contiguous", "strided")
# Value regimes, most teeth first: FP32 sums of plain bf16 normals are mostly exact, spread-out ones are not.
REGIMES = ("wide", "normal", "mean4", "cancelling", "integers", "ones", "zeros")


@dataclass(frozen=True, order=True)
class Case:
    """One problem: its sizes, how its values and memory look, and a seed.

    `sizes` are the problem's dimensions by name (S, H, D, ...); `facts` whatever else the problem needs
    (an index pattern, an option). `dtype` is that of the problem's data tensors; a tensor whose dtype the
    problem fixes (FP32 coefficients) keeps it. `offset` is a storage offset in elements.
    Build one with `Case.of(S=1, H=2, D=31)`.

    Raises InvalidCase for a value outside the named sets, a negative size, offset or seed.
    """

    sizes: tuple[tuple[str, int], ...]
    dtype: str = "fp32"
    regime: str = "wide"
    layout: str = "contiguous"
    offset: int = 0
    facts: tuple[tuple[str, Fact], ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("regime", self.regime, REGIMES)
        _one_of("layout", self.layout, LAYOUTS)
        for name, value in (*self.sizes, ("offset", self.offset), ("seed", self.seed)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise InvalidCase(f"{name}={value!r}, but it must be an integer of at least 0")
        for name, fact in self.facts:
            if not isinstance(fact, bool | int | float | str):
                raise InvalidCase(f"fact {name}={fact!r}, but a fact is a bool, int, float or str")

    @classmethod
    def of(
        cls,
        *,
        dtype: str = "fp32",
        regime: str = "wide",
        layout: str = "contiguous",
        offset: int = 0,
        seed: int = 0,
        facts: Mapping[str, Fact] | None = None,
        **sizes: int,
    ) -> Case:
        """The Case with these sizes, in the order given."""
        return cls(tuple(sizes.items()), dtype, regime, layout, offset, tuple((facts or {}).items()), seed)

    def __getitem__(self, name: str) -> int:
        """The size called `name`."""
        for key, value in self.sizes:
            if key == name:
                return value
        raise InvalidCase(f"no size {name!r}; this Case has {', '.join(k for k, _ in self.sizes) or 'none'}")

    @property
    def elements(self) -> int:
        """How large the Case is: the product of its sizes."""
        return math.prod(value for _, value in self.sizes)

    def fact(self, name: str, default: Fact) -> Fact:
        """The fact called `name`, or `default` where the Case does not state it."""
        return dict(self.facts).get(name, default)

    def but(self, **changes: Any) -> Case:
        """This Case with some fields, sizes or facts changed: `case.but(D=3, seed=1)`."""
        fields = {k: v for k, v in changes.items() if k in _FIELDS}
        rest = {k: v for k, v in changes.items() if k not in _FIELDS}
        sizes, facts = dict(self.sizes), dict(self.facts)
        for key, value in rest.items():
            if key in sizes:
                sizes[key] = value
            elif key in facts:
                facts[key] = value
            else:
                raise InvalidCase(f"no size, fact or field {key!r} to change in {self.line()}")
        return replace(self, sizes=tuple(sizes.items()), facts=tuple(facts.items()), **fields)

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object; `Case.from_json` is its inverse."""
        return {
            "sizes": dict(self.sizes),
            "dtype": self.dtype,
            "regime": self.regime,
            "layout": self.layout,
            "offset": self.offset,
            "facts": dict(self.facts),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, data: object) -> Case:
        """The Case that `data` (as `to_json` writes it, or its one line) describes."""
        if isinstance(data, str):
            try:
                data = json.loads(data)
            except json.JSONDecodeError as error:
                raise InvalidCase(f"not a Case line: {error}; expected one JSON object") from None
        if not isinstance(data, dict):
            raise InvalidCase(f"a Case is a JSON object, got {type(data).__name__}")
        unknown = set(data) - _FIELDS
        if unknown:
            raise InvalidCase(f"unknown Case field(s) {sorted(unknown)}; known: {sorted(_FIELDS)}")
        sizes, facts = data.get("sizes", {}), data.get("facts", {})
        if not isinstance(sizes, dict) or not isinstance(facts, dict):
            raise InvalidCase("a Case's sizes and facts are JSON objects")
        plain = {k: v for k, v in data.items() if k not in ("sizes", "facts")}
        return cls(sizes=tuple(sizes.items()), facts=tuple(facts.items()), **plain)

    def line(self) -> str:
        """The Case as one line of JSON, as printed for a replay."""
        return json.dumps(self.to_json(), separators=(",", ":"))

    @property
    def key(self) -> str:
        """A stable 12-digit hash of the Case, the same on every machine and version of Python."""
        # As json.dumps(self.to_json(), sort_keys=True, separators=(",", ":")) writes it, of ten thousand in a tenth of
        # its time: dtype, layout and regime are plain words.
        facts = _members([(name, _ENCODE(fact)) for name, fact in self.facts]) if self.facts else ""
        sizes = _members([(name, str(size)) for name, size in self.sizes])
        canonical = (
            f'{{"dtype":"{self.dtype}","facts":{{{facts}}},"layout":"{self.layout}","offset":{self.offset},'
            f'"regime":"{self.regime}","seed":{self.seed},"sizes":{{{sizes}}}}}'
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


_ENCODE = json.JSONEncoder().encode


def _members(found: Iterable[tuple[str, str]]) -> str:
    """What stands between the braces of a JSON object, by name; values as JSON."""
    return ",".join([f"{encode_basestring_ascii(name)}:{value}" for name, value in sorted(found)])


_FIELDS = {"sizes", "dtype", "regime", "layout", "offset", "facts", "seed"}


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidCase(f"{name}={value!r}, but it must be one of {', '.join(allowed)}")
