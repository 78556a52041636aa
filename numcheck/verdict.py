"""Verdict: the only place that decides. One status per output; a Case shows the worst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from numcheck.evidence import Evidence
from numcheck.gate import Gate


class Status(IntEnum):
    """Worst first in severity: a Case shows the largest."""

    PASS = 0
    ORDER_DEPENDENT = 1
    VACUOUS = 2
    UNAVAILABLE = 3
    FAIL = 4
    ERROR = 5

    @property
    def held(self) -> bool:
        """Whether a pull request may rest on it: neither FAIL nor ERROR."""
        return self < Status.FAIL

    @property
    def shown(self) -> bool:
        """Whether a claim was shown to hold; VACUOUS and UNAVAILABLE show nothing."""
        return self in (Status.PASS, Status.ORDER_DEPENDENT)


# After which the claim of a bitwise verdict says what its Case promises: "out fixed, d_x any".
ORDER = "; order: "
# Why the rung of other orders has no runs where there is nothing to vary: no reader takes it for one that was left out.
ONE_ORDER = "one program and no shared address: there is one order"


@dataclass(frozen=True)
class Rung:
    """One step of the repeat ladder: what was repeated, how often, and which output hashes came back."""

    name: str
    runs: int
    hashes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    flips: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object; `flip_bound` is the 95 % upper bound on the flip rate, 1 - 0.05^(1/runs)."""
        return {
            "name": self.name,
            "runs": self.runs,
            "hashes": {k: list(v) for k, v in self.hashes.items()},
            "flips": dict(self.flips),
            "flip_bound": flip_bound(self.runs),
            "note": self.note,
        }


def flip_bound(runs: int) -> float:
    """95 % upper bound on a flip rate of which `runs` independent repeats showed none: 1 - 0.05^(1/R)."""
    return 1.0 if runs <= 0 else 1.0 - 0.05 ** (1.0 / runs)


@dataclass(frozen=True)
class OutputVerdict:
    """The status of one output, and in one line why.

    where: "tensor got= expected= at index" of the worst element, for a failure.
    """

    status: Status
    why: str = ""
    where: str = ""


@dataclass(frozen=True)
class Verdict:
    """What one law says of one spec on one Case (or, pooled, over all Cases of one generated test).

    hashes: output -> digest of its raw bits. figures: law-specific numbers for the report (fingerprint,
    matches, peak bytes), JSON-plain. claim: the sentence of what was claimed.
    """

    spec: str
    law: str
    claim: str
    outputs: Mapping[str, OutputVerdict]
    gates: tuple[Gate, ...] = ()
    rungs: tuple[Rung, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    figures: Mapping[str, Any] = field(default_factory=dict)
    pooled: bool = False

    @property
    def status(self) -> Status:
        """The worst status over the outputs; PASS of nothing is VACUOUS."""
        return worst(v.status for v in self.outputs.values())

    @property
    def held(self) -> bool:
        """Neither FAIL nor ERROR."""
        return self.status.held

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object: the part of a Record that a verdict fills."""
        return {
            "status": self.status.name,
            "claim": self.claim,
            "outputs": {k: {"status": v.status.name, "why": v.why, "where": v.where} for k, v in self.outputs.items()},
            "gates": [g.to_json() for g in self.gates],
            "rungs": [r.to_json() for r in self.rungs],
            "hashes": dict(self.hashes),
            "evidence": self.evidence.to_json(),
            "figures": dict(self.figures),
        }


def worst(statuses: Iterable[Status]) -> Status:
    """The most severe of the statuses; VACUOUS where there is none, since nothing was judged."""
    return max(statuses, default=Status.VACUOUS)


# What a generated test may say of an output once its Cases are in, first wins: what one Case has shown, another that
# could show nothing does not take away; a failure anywhere stays a failure.
ACROSS = (Status.ERROR, Status.FAIL, Status.ORDER_DEPENDENT, Status.PASS, Status.VACUOUS, Status.UNAVAILABLE)


def across(verdicts: Iterable[Verdict]) -> Status:
    """The status of many Cases together: output by output the first of `ACROSS` that was seen, then the worst."""
    seen: dict[str, set[Status]] = {}
    for verdict in verdicts:
        for name, output in verdict.outputs.items():
            seen.setdefault(name, set()).add(output.status)
    return together(seen.values())


def together(outputs: Iterable[set[Status]]) -> Status:
    """The status of outputs, each with the statuses that its Cases had: the first of `ACROSS`, then the worst."""
    return worst(next(s for s in ACROSS if s in statuses) for statuses in outputs)


def accuracy_status(gates: Iterable[Gate]) -> OutputVerdict:
    """The status of an output from its gates: FAIL if one did not hold, VACUOUS if none could have failed."""
    gates = tuple(gates)
    failed = [g for g in gates if not g.held]
    if failed:
        return OutputVerdict(Status.FAIL, "; ".join(f"{g.kind} {g.value:.6g} beyond {g.limit:.6g}" for g in failed))
    if not gates or all(g.vacuous for g in gates):
        why = gates[0].vacuous if gates else "no gate applies"
        return OutputVerdict(Status.VACUOUS, why)
    return OutputVerdict(Status.PASS)
