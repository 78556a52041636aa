"""A comparison as text for a terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from numcheck.baseline import GateKey
from numcheck.compare.kinds import Answer, Claim, Compared, Comparison, Moved
from numcheck.compare.told import Told, told
from numcheck.compare.words import HINT, count, no_longer_run
from numcheck.gate import finite
from numcheck.harmless import one_line

# Lines of one kind under one kernel: a terminal is read from the top; --json has all.
SHOWN = 8
# The parts of a `Compared` that hold a list of `Moved`.
HEADINGS = ("claims", "cases", "contract", "limits", "gates", "memory", "power", "skips")


def as_text(comparison: Comparison) -> str:
    """The answers, then each kernel of which there is something to say; what records call things is harmless in it."""
    lines = [line for answer in comparison.answers for line in _answer(answer)]
    for kernel in comparison.kernels:
        if not kernel.quiet:
            lines += ["", kernel.subject.name, *(f"  {line}" for line in _kernel(kernel))]
    both, quiet = count(len(comparison.kernels), "kernel"), [k for k in comparison.kernels if k.quiet]
    seen = f" in {count(sum(k.shared for k in quiet), 'Case')}" if quiet else ""
    lines += ["", f"{both} on both sides, {len(quiet)} with no change seen{seen}"]
    lines += [f"new: {subject.name}" for subject in comparison.added]
    lines += _times(comparison)
    lines += [f"accepted {a.when}: {a.reason}" for a in comparison.base.accepted[-1:]]
    lines += _claims(comparison)
    return "\n".join(map(one_line, [*lines, comparison.verdict]))


def _claims(comparison: Comparison) -> list[str]:
    """What did not hold at the base, and what became of it."""
    said = _cut([f"{claim.state}: {claim.told(comparison.at)}" for claim in comparison.repairs])
    why = next((claim.why for claim in comparison.repairs if claim.why), "")
    return ["", *said, *([f"  what was wrong with the first: {why}"] if why else [])] if said else []


def _times(comparison: Comparison) -> list[str]:
    """Kernels whose seconds changed beyond their interval, the slowest first."""
    clear = [(k.time, k.subject.name) for k in comparison.kernels if k.time and k.time.clear]
    clear.sort(key=lambda found: -found[0].ratio)
    said = [f"  {name} {t.ratio:.2f} [{t.low:.2f} to {t.high:.2f}]" for t, name in clear]
    return [f"kernel seconds, head over base ({HINT}):", *_cut(said)] if said else []


def _answer(answer: Answer) -> Iterator[str]:
    yield f"{answer.question} {answer.word.capitalize()}."
    yield from _cut([f"  {sentence}" for sentence in answer.sentences])


def _kernel(kernel: Compared) -> Iterator[str]:
    for bits in kernel.changed:
        compared = count(bits.same + len(bits.changed), "Case")
        yield f"{bits.output}: other bits in {len(bits.changed)} of {compared}, the smallest on both sides"
        yield f"  {bits.changed[0].line()}"
    for bits in (b for b in kernel.bits if b.unhashed):
        lost = count(len(bits.unhashed), "Case")
        yield f"{bits.output}: no bits in {lost} that the base hashed, the smallest on both sides"
        yield f"  {bits.unhashed[0].line()}"
    for heading in HEADINGS:
        moved: tuple[Moved, ...] = getattr(kernel, heading)
        yield from _cut([f"{t.what}: {t.before}, now {t.after}{_where(t)}" for t in told(moved)])
    if kernel.vanished:
        yield f"{no_longer_run(kernel.vanished)}, the first {kernel.vanished[0].line()}"


def _where(one: Told) -> str:
    if one.case is None:
        return ""
    return f" in {one.case.line()}" + (f" and {count(one.cases - 1, 'more Case')}" if one.cases > 1 else "")


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"  ... and {len(lines) - SHOWN} more"]


def as_json(comparison: Comparison) -> dict[str, Any]:
    """A plain JSON object; Cases as JSON."""
    return {
        "held": comparison.held,
        "verdict": comparison.verdict,
        "headline": comparison.conclusion.headline,
        "at": comparison.at,
        "claims": [_claim_json(claim) for claim in comparison.claims],
        "bits_compared": comparison.answers[0].word != "unknown",
        "answers": [asdict(answer) for answer in comparison.answers],
        "base": {"when": comparison.base.when, "commit": comparison.base.commit},
        "head": {"when": comparison.head.when, "commit": comparison.head.commit},
        "accepted": [asdict(a) for a in comparison.base.accepted],
        "kernels": [{**_kernel_json(k), "headroom": _headroom(comparison, k)} for k in comparison.kernels],
        "certificates": [_moved_json(m) for m in comparison.certificates],
        "added": [subject.name for subject in comparison.added],
        "gone": [subject.name for subject in comparison.gone],
    }


def _kernel_json(kernel: Compared) -> dict[str, Any]:
    return {
        "kernel": kernel.subject.kernel.spec,
        "specs": kernel.subject.kernel.specs,
        "device": kernel.subject.place.name,
        "bits": [
            {
                "output": b.output,
                "same": b.same,
                "free": b.free,
                "changed": [case.to_json() for case in b.changed],
                "unhashed": [case.to_json() for case in b.unhashed],
            }
            for b in kernel.bits
        ],
        **{name: [_moved_json(m) for m in getattr(kernel, name)] for name in HEADINGS},
        "time": asdict(kernel.time) if kernel.time else None,
        "shared_cases": kernel.shared,
        "new_cases": kernel.new,
        "vanished_cases": [case.to_json() for case in kernel.vanished],
        "failing": dict(kernel.failing),
        "undrawn": {law: {"base": then, "head": now} for law, (then, now) in kernel.undrawn.items()},
        "incomparable": kernel.incomparable,
    }


def _claim_json(claim: Claim) -> dict[str, Any]:
    kernel, place = claim.subject.kernel, claim.subject.place
    case = claim.case.to_json() if claim.case else None
    return {
        "kernel": kernel.spec,
        "specs": kernel.specs,
        "device": place.name,
        "law": claim.law,
        "output": claim.output,
        "state": claim.state,
        "before": claim.before,
        "after": claim.after,
        "cases": claim.cases,
        "held": claim.held,
        "dropped": claim.dropped,
        "why": claim.why,
        "case": case,
    }


def _headroom(comparison: Comparison, kernel: Compared) -> list[dict[str, Any]]:
    """Each gate then and now, moved or not: its lowest headroom over the Cases that both sides judged by it."""
    then, now = (side.kernels[kernel.subject.key].cases for side in (comparison.base, comparison.head))
    found: dict[GateKey, list[tuple[float, float]]] = {}
    for key in (key for key in then if key in now):
        for gate, figure in then[key].gates.items():
            if gate in now[key].gates:
                found.setdefault(gate, []).append((figure.headroom, now[key].gates[gate].headroom))
    rows = []
    for (law, output, kind), pairs in found.items():
        old, new = (finite(min(rooms)) for rooms in zip(*pairs, strict=True))
        rows.append({"law": law, "output": output, "kind": kind, "cases": len(pairs), "then": old, "now": new})
    return rows


def _moved_json(moved: Moved) -> dict[str, Any]:
    return {**asdict(moved), "case": moved.case.to_json() if moved.case else None}
