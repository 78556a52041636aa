"""Fingerprint: which of a problem's known rounding policies explains the residual, jointly over the outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from numcheck.clock import timed
from numcheck.contract import Contract, Policy, Rounding
from numcheck.reading import Emulation, read
from numcheck.unspecified import unspecified

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.case import Case
    from numcheck.oracle import Oracle
    from numcheck.sample import Sample

# A match below this share of the residual is as good as none: a few legal flips among thousands of elements.
FLOOR = 2.0**-8
# A joint match above this explains nothing: cuDNN's real policy scored 0.06 to 0.14 on an H200, the next 0.68 and up.
EXPLAINS = 0.5
# Two candidates closer than this factor cannot be told apart on this Case.
TIE = 1.01
# It reads the oracle once a candidate, so it is left out where the outputs have more elements than this, and taken of
# one Case in so many (by its hash), and of every Case that fails.
SMALL = 16_384
ONE_IN = 2


@timed("oracle")
def fingerprint(
    oracle: Oracle,
    policy: Policy,
    sample: Sample,
    outputs: Mapping[str, Tensor],
    truth: Mapping[str, Tensor],
    saved: Mapping[str, Tensor] | None = None,
) -> dict[str, Any]:
    """The candidate of `oracle.policies` that explains the residual best, JSON-plain.

    match: candidate -> output -> rms(output - emulation) / rms(output - truth). joint: candidate -> geometric mean of
    those over the outputs, each at least FLOOR, so that every output has one vote whatever its size. best, second:
    the two lowest (candidates that round alike on this Case are `tied` with the best); gap: second over best.
    explained: whether the best one leaves less than half of the residual.
    """
    exact, open_ = sample.exact(), unspecified(oracle, sample)
    matches = {
        name: _matches(read(oracle, Emulation(policy.with_rounds(rounds)), exact, saved), outputs, truth, open_)
        for name, rounds in candidates(oracle, sample.case).items()
    }
    return summary(matches)


def worth(case: Case, elements: int, failed: bool) -> bool:
    """Whether the fingerprint of this Case is worth its cost."""
    return elements <= SMALL and (failed or int(case.key, 16) % ONE_IN == 0)


def candidates(oracle: Oracle, case: Case) -> dict[str, Any]:
    """The oracle's candidate policies for `case`: name -> point -> Rounding, "data" resolved to the Case's dtype.

    At an output it is that output's own dtype, which may be wider.
    """
    dtypes = {output.name: output.dtype_for(case) for output in oracle.results_for(case)}

    def resolved(point: str, rounding: str | Rounding) -> str | Rounding:
        if rounding == "data":
            return dtypes.get(point, case.dtype)
        if isinstance(rounding, Rounding) and rounding.dtype == "data":
            return replace(rounding, dtype=dtypes.get(point, case.dtype))
        return rounding

    named = {name: {p: resolved(p, r) for p, r in rounds.items()} for name, rounds in oracle.policies.items()}
    return {name: Contract(rounds=rounds).policy(case).rounds for name, rounds in named.items()}


def summary(matches: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The fingerprint of candidate -> output -> match."""
    joint = {name: _joint(by_output) for name, by_output in matches.items()}
    if not joint:
        return {}
    ranked = sorted(joint, key=lambda name: joint[name])
    best = ranked[0]
    tied = [name for name in ranked[1:] if joint[name] <= TIE * joint[best]]
    rest = [name for name in ranked[1:] if name not in tied]
    return {
        "best": best,
        "tied": tied,
        "second": rest[0] if rest else "",
        "gap": _short(joint[rest[0]] / joint[best]) if rest else 1.0,
        "explained": joint[best] < EXPLAINS,
        "joint": {name: _short(value) for name, value in joint.items()},
        "match": {name: {k: _short(v) for k, v in by_output.items()} for name, by_output in matches.items()},
    }


def pooled(prints: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The fingerprint over several Cases: the geometric mean of each match."""
    prints = [p for p in prints if p.get("match")]
    if not prints:
        return {}
    names = [name for name in prints[0]["match"] if all(name in p["match"] for p in prints)]
    outputs = {o for p in prints for o in p["match"][names[0]]}
    matches = {
        name: {o: _geometric([p["match"][name][o] for p in prints if o in p["match"][name]]) for o in sorted(outputs)}
        for name in names
    }
    return {**summary(matches), "cases": len(prints)}


def _matches(
    emulation: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    truth: Mapping[str, Tensor],
    left_open: Mapping[str, Tensor],
) -> dict[str, float]:
    found = {}
    for name, got in outputs.items():
        value = got.detach().to("cpu").double()
        # An infinite result is exact or wrong: no rounding explains it. Nor does an open element say anything.
        told = torch.isfinite(value) & torch.isfinite(truth[name]) & torch.isfinite(emulation[name])
        if name in left_open:
            told &= ~left_open[name]
        error = float((value - truth[name])[told].pow(2).sum())
        # An output without an error has no residual to explain.
        if error > 0 and math.isfinite(error):
            found[name] = math.sqrt(float((value - emulation[name])[told].pow(2).sum()) / error)
    return found


def _joint(by_output: Mapping[str, float]) -> float:
    return _geometric(list(by_output.values()))


def _geometric(values: list[float]) -> float:
    if not values:
        return 1.0
    return math.exp(math.fsum(math.log(max(v, FLOOR)) for v in values) / len(values))


def _short(value: float) -> float:
    return float(f"{value:.4g}")
