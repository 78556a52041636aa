"""The tally of `numcheck alarms`: how often each gate judged and accused, as values, text and JSON."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from numcheck.chance import binomial_tail, clopper_pearson
from numcheck.clean import LARGE_SIZE, SMALL_SIZE
from numcheck.judge import Z_LIMIT
from numcheck.pool import UNIFORM

# Gates whose limits are worst cases, or chances so small that no run of this size may show one.
NEVER = ("exact", "ceiling", "match", "bitwise", "error")
# Pooled measured over predicted relL2 of 16-bit outputs: what the noise model has to reach.
POOL_LOW, POOL_HIGH = 0.9, 1.1
# Alarms of band and bias beyond what Student's t foretells at this chance are not luck.
LUCK = 1e-3
DECADES = ((1, 10), (11, 100), (101, SMALL_SIZE), (SMALL_SIZE + 1, LARGE_SIZE))


def decade_of(size: int) -> int:
    """Index of the size class in DECADES."""
    return next((i for i, (_, high) in enumerate(DECADES) if size <= high), len(DECADES) - 1)


def decade_label(decade: int) -> str:
    """The size class as text."""
    low, high = DECADES[decade]
    return f"{low}..{high}"


@dataclass(frozen=True)
class Row:
    """How often one gate of one output judged at one size, and how often it accused."""

    gate: str
    output: str
    size: str
    judged: int
    alarms: int

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of the false-alarm rate."""
        return clopper_pearson(self.alarms, self.judged)


@dataclass(frozen=True)
class Beyond:
    """How many standardised figures lie beyond Z_LIMIT, and how many Student's t foretells.

    judged: whether a gate rests on them; those of fewer errors are shown and not held against anything.
    """

    statistic: str
    figures: int
    beyond: int
    foretold: float
    worst: float
    judged: bool = True

    @property
    def luck(self) -> float:
        """The chance of at least this many, were each figure Student's t."""
        rate = self.foretold / self.figures if self.figures else 0.0
        return binomial_tail(self.beyond, self.figures, rate) if self.beyond else 1.0


@dataclass(frozen=True)
class Alarm:
    """One false alarm, with what it takes to replay it."""

    spec: str
    case: str
    gate: str
    output: str
    value: float
    limit: float


@dataclass(frozen=True)
class Alarms:
    """The outcome.

    pools: "spec output" -> pooled measured over predicted relL2, and over how many errors, of 16-bit outputs.
    statuses: status -> Cases. seconds: wall clock.
    """

    cases: int
    large: int
    draws: int
    seed: int
    seconds: float
    by_spec: dict[str, int]
    rows: tuple[Row, ...]
    beyond: tuple[Beyond, ...]
    pools: dict[str, tuple[float, float]]
    pooled: float
    alarms: tuple[Alarm, ...]
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def complaints(self) -> tuple[str, ...]:
        """What does not hold."""
        never = Counter(a.gate for a in self.alarms if a.gate in NEVER)
        found = [f"{count} alarm(s) from {gate}, which must never alarm" for gate, count in never.items()]
        low, high = self.pool_limits
        if not low <= self.pooled <= high:
            found.append(f"pooled measured/predicted {self.pooled:.3f} is outside {low:.3g} to {high:.3g}")
        found += [
            f"{b.beyond} {b.statistic} figures beyond {Z_LIMIT:g}, {b.foretold:.2g} foretold (chance {b.luck:.2g})"
            for b in self.beyond
            if b.judged and b.luck < LUCK
        ]
        return tuple(found)

    @property
    def pool_limits(self) -> tuple[float, float]:
        """POOL_LOW to POOL_HIGH; wider where so few errors were pooled that Z_LIMIT spreads of them are."""
        errors = sum(weight for _, weight in self.pools.values())
        chance = math.exp(Z_LIMIT * math.sqrt(UNIFORM / errors) / 2) if errors else math.inf
        return min(POOL_LOW, 1 / chance), max(POOL_HIGH, chance)

    @property
    def held(self) -> bool:
        """No complaint."""
        return not self.complaints

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object."""
        return {
            "cases": self.cases,
            "large": self.large,
            "draws": self.draws,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "by_spec": self.by_spec,
            "statuses": self.statuses,
            "held": self.held,
            "complaints": list(self.complaints),
            "rows": [{**r.__dict__, "interval": list(r.interval)} for r in self.rows],
            "beyond": [{**b.__dict__, "luck": b.luck} for b in self.beyond],
            "pooled": self.pooled,
            "pools": {key: {"ratio": ratio, "weight": weight} for key, (ratio, weight) in self.pools.items()},
            "alarms": [{**a.__dict__, "value": str(a.value), "limit": str(a.limit)} for a in self.alarms],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.cases} Cases of up to {SMALL_SIZE} elements a tensor and {self.large} of up to {LARGE_SIZE}, "
            f"{self.draws} noise draws each, seed {self.seed}, {self.seconds:.0f} s",
            "by spec: " + ", ".join(f"{name} {count}" for name, count in self.by_spec.items()),
            "by status: " + ", ".join(f"{name} {count}" for name, count in self.statuses.items()),
            "",
            f"{'gate':8} {'output':12} {'size':>14} {'judged':>8} {'alarms':>7}   rate, exact 95 % interval",
        ]
        for r in self.rows:
            low, high = r.interval
            lines.append(f"{r.gate:8} {r.output:12} {r.size:>14} {r.judged:8} {r.alarms:7}   {low:.2e} .. {high:.2e}")
        freedom = self.draws - 1
        lines += [
            "",
            f"standardised figures beyond {Z_LIMIT:g}; Student's t with {freedom} degrees of freedom foretells",
        ]
        lines += [
            f"{b.statistic:32} {b.figures:8} figures, {b.beyond} beyond, {b.foretold:.3g} foretold, worst {b.worst:.2f}"
            for b in self.beyond
        ]
        lines += ["", f"pooled measured/predicted relL2 of 16-bit outputs: {self.pooled:.4f}"]
        lines += [f"  {key:44} {ratio:.4f} over {weight:.0f} errors" for key, (ratio, weight) in self.pools.items()]
        lines += ["", f"{len(self.alarms)} alarm(s)"]
        lines += [f"  {a.gate} {a.output} {a.value:.6g} beyond {a.limit:.6g}: {a.spec} {a.case}" for a in self.alarms]
        lines += ["", *(self.complaints or ("held",))]
        return "\n".join(lines)
