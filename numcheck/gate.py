"""Gate: one judged statistic of one output, with its limit and the sentence that justifies the limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

GateKind = Literal["exact", "ceiling", "match", "band", "bias", "cap"]
GATE_KINDS: tuple[GateKind, ...] = ("exact", "ceiling", "match", "band", "bias", "cap")


@dataclass(frozen=True)
class Gate:
    """One judged statistic.

    value: the figure, in the unit that the reason names. limit: the largest value that holds, or for a band the
    upper one with `lower` beside it. spread: standard deviation of the same statistic over the noise draws, 0 where
    it has none. vacuous: why this gate could not have failed here, or "".
    """

    kind: GateKind
    output: str
    value: float
    limit: float
    reason: str
    spread: float = 0.0
    lower: float = -math.inf
    vacuous: str = ""

    @property
    def held(self) -> bool:
        """Whether the value is within its limits; NaN never is."""
        return self.lower <= self.value <= self.limit

    @property
    def headroom(self) -> float:
        """How many times farther the value might be, the nearer limit of a band counting; 1 and above holds."""
        return headroom(self.value, self.limit, self.lower)

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object; non-finite numbers are written as strings."""
        return {
            "kind": self.kind,
            "output": self.output,
            "value": finite(self.value),
            "limit": finite(self.limit),
            "lower": finite(self.lower),
            "spread": finite(self.spread),
            "reason": self.reason,
            "vacuous": self.vacuous,
        }


def headroom(value: float, limit: float, lower: float) -> float:
    """How many times farther `value` might be, the nearer limit of a band counting; 1 and above holds.

    inf where the value is 0 (but for a band of ratios, whose lower limit is above 0), 0 where it is NaN.
    """
    if math.isnan(value):
        return 0.0
    above = limit / abs(value) if value else math.inf
    below = value / lower if lower > 0 else math.inf
    return min(above, below)


def finite(value: float) -> float | str:
    """`value`, or its name ("inf", "-inf", "nan") where JSON has no number for it."""
    return value if math.isfinite(value) else str(value)
