"""The accuracy law: each output is what its Contract, and nothing looser, makes of the exact result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numcheck.clock import timed
from numcheck.fingerprint import fingerprint, pooled, worth
from numcheck.judge import malformed, output_gates
from numcheck.laws.law import Judged, Law, covered
from numcheck.laws.measured import Measured, found, hashes, measured, redrawn, saved, unanswered, where
from numcheck.laws.relation import same_values, verdicts, whole
from numcheck.pool import FEWEST_POOLED, pooled_gates, pooled_share
from numcheck.verdict import OutputVerdict, Status, Verdict, accuracy_status

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.case import Case
    from numcheck.figures import Figures
    from numcheck.gate import Gate
    from numcheck.profile import Profile
    from numcheck.spec import KernelSpec

NAME = "accuracy"
SIXTEEN_BIT = ("bf16", "fp16")
WHOLE_REASON = "elements that are not the exact result: integers and bools do not round"
# Gates whose limit is a number of spreads; a spread of few draws has a wide Student's t.
SPREAD = ("band", "bias")
# Draws that decide where the profile's few say no: at 255 degrees of freedom 7e-9 of right figures lie beyond 6.
DECIDING = 256


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The accuracy verdict of one Case."""
    blank = Verdict(spec.name, NAME, _claim(spec, case), {})
    walked = measured(spec, case, profile, blank)
    if isinstance(walked, Verdict):
        return walked
    silent = unanswered(walked, [name for name, f in walked.streamed.figures.items() if f.nan], blank)
    if silent is not None:
        return silent
    verdict = _judged(spec, case, walked, blank)
    broken = {g.kind for g in verdict.gates if not g.held}
    if broken and broken <= set(SPREAD) and profile.draws < DECIDING:
        # The same outputs against a better spread: search and shrinking look for the tail of a rough one.
        verdict = _judged(spec, case, redrawn(walked, DECIDING), blank)
    return verdict


def _judged(spec: KernelSpec, case: Case, walked: Measured, blank: Verdict) -> Verdict:
    gates: list[Gate] = []
    outputs: dict[str, OutputVerdict] = {}
    by_output: dict[str, Any] = {}
    formed: dict[str, Tensor] = {}
    returned = walked.outputs
    for name in spec.judged_for(case):
        complaint = malformed(spec, case, returned, name)
        if complaint:
            outputs[name] = OutputVerdict(Status.FAIL, complaint)
            continue
        if spec.oracle.result(name).whole:
            held = same_values(name, whole(returned[name]), whole(walked.streamed.truth[name]), WHOLE_REASON)
            gates.append(held.gate)
            outputs |= verdicts({name: [held]}, "")
            continue
        formed[name] = returned[name]
        r = walked.streamed.figures[name]
        judged = output_gates(r, spec.caps.get(name))
        gates += judged
        outputs[name] = _status(judged, r)
        by_output[name] = output_figures(r)
    failed = any(not o.status.held for o in outputs.values())
    return Verdict(
        spec.name,
        NAME,
        blank.claim,
        found(walked.run, outputs),
        gates=tuple(gates),
        hashes=hashes(walked.run),
        evidence=walked.run.evidence,
        figures={"outputs": by_output, "fingerprint": _fingerprint(spec, case, walked, formed, failed)},
    )


@timed("judge")
def output_figures(f: Figures) -> dict[str, Any]:
    """The figures of one output for the report and the pool, JSON-plain."""
    if f.elements == 0:
        return {"elements": 0, "pool": None}
    figures = {"relL2": f.relative, "predicted": f.predicted, "match": f.match, "ulps": f.ulps}
    return {
        "elements": f.elements,
        "independent": f.independent,
        "rounded": f.rounded,
        # Strings where JSON has no number.
        **{key: float(f"{value:.4g}") if abs(value) < float("inf") else str(value) for key, value in figures.items()},
        "z": {"bias": round(f.bias.z, 3), "log": round(f.log_error.z, 3)} if _has_spread(f) else {},
        "pool": pooled_share(f),
    }


def _has_spread(r: Figures) -> bool:
    """Whether the standardised figures mean something; they are judged from FEWEST independent errors on."""
    return r.rounded and not r.blind and r.independent >= FEWEST_POOLED


def pool(spec: KernelSpec, judged: Judged) -> Verdict | None:
    """The pooled verdict over all Cases of one generated test; None where none of them left anything to pool."""
    figures = [v.figures for _, v in judged if v.figures.get("outputs")]
    if not figures:
        return None
    gates: list[Gate] = []
    outputs: dict[str, OutputVerdict] = {}
    ratios: dict[str, float] = {}
    for name in covered(spec, judged):
        shares = [s for f in figures for s in _shares(f, name)]
        for rounded in (True, False):
            # An output may end on a 16-bit grid in some Cases and keep FP32 in others: two claims, two pools.
            gates += pooled_gates(name, [s for s in shares if s["rounded"] == rounded])
        own = [g for g in gates if g.output == name]
        if not own:
            # Exact in every Case: judged there without any tolerance, and nothing is left to pool.
            continue
        outputs[name] = accuracy_status(own)
        ratios.update((name, g.value) for g in own if g.kind == "band" and not g.vacuous)
    if not outputs:
        return None
    return Verdict(
        spec.name,
        NAME,
        f"{spec.name} over {len(figures)} Cases: errors as large and as balanced as its Contract's roundings make them",
        outputs,
        gates=tuple(gates),
        figures={"cases": len(figures), "ratio": ratios, "fingerprint": pooled([f["fingerprint"] for f in figures])},
        pooled=True,
    )


def cases(spec: KernelSpec) -> tuple[Case, ...]:
    """The oracle's named cancellations: a result that a rounding too many would lose is an accuracy Case too."""
    return tuple(c.case for c in spec.oracle.cancellations if spec.illegal(c.case) is None)


def _shares(figures: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    share = figures["outputs"].get(name, {}).get("pool")
    return [share] if share else []


def _claim(spec: KernelSpec, case: Case) -> str:
    rounds = spec.contract.policy(case).rounds
    points = ", ".join(f"{point} to {r.words}" for point, r in rounds.items()) or "nothing"
    return f"{spec.name} computes {spec.oracle.name}, rounding {points}, and nothing else beyond its sums"


def _status(gates: list[Gate], r: Figures) -> OutputVerdict:
    verdict = accuracy_status(gates)
    return verdict if verdict.status.held else OutputVerdict(verdict.status, verdict.why, where(r))


def _fingerprint(
    spec: KernelSpec, case: Case, walked: Measured, outputs: Mapping[str, Tensor], failed: bool
) -> dict[str, Any]:
    if case.dtype not in SIXTEEN_BIT or not spec.oracle.policies:
        return {}
    if not worth(case, sum(t.numel() for t in outputs.values()), failed):
        return {}
    policy = spec.contract.policy(case)
    return fingerprint(spec.oracle, policy, walked.sample, outputs, walked.streamed.truth, saved(spec, walked.run))


ACCURACY = Law(
    NAME,
    "Each output is the exact result, rounded where and as the Contract says and nowhere else.",
    judge,
    pool,
    cases,
)
