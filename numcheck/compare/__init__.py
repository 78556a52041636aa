"""Compare: two runs side by side, and the three answers that a reviewer decides from.

Did bits change? Did accuracy or coverage fall? What was not run? Each side is a `Baseline`. Hashes and times are
compared only between machines on which they mean something; verdicts, limits and bytes always.
"""

from __future__ import annotations

from dataclasses import replace

from numcheck.baseline import Baseline, placed
from numcheck.compare import answers
from numcheck.compare.claims import claims
from numcheck.compare.conclusion import conclude
from numcheck.compare.kernel import kernel
from numcheck.compare.kinds import Answer, Bits, Claim, Compared, Comparison, Conclusion, Drawing, Moved, Ratio
from numcheck.compare.power import certificates
from numcheck.compare.told import Told, told
from numcheck.cycles import left_alone
from numcheck.profile import REPEATING
from numcheck.verdict import Status

__all__ = [
    "Answer",
    "Bits",
    "Claim",
    "Compared",
    "Comparison",
    "Conclusion",
    "Moved",
    "Ratio",
    "Told",
    "compare",
    "told",
]


@left_alone()
def compare(base: Baseline, head: Baseline, at: str = "") -> Comparison:
    """`head` against `base`, kernel by kernel and device by device.

    at: the base's revision, where the question is whether the head repairs what fails there; both drew the same Cases.
    """
    head = placed(base, head)
    shared = [key for key in base.kernels if key in head.kernels]
    repeats = bool(at) or all(profile in REPEATING for profile in (*base.profiles, *head.profiles))
    drawing = Drawing(set(base.profiles) == set(head.profiles), repeats)
    oracles = {base.kernels[key].oracle for key in shared if head.kernels[key].cases}
    found = Comparison(
        base,
        head,
        tuple(kernel(base.kernels[key], head.kernels[key], drawing) for key in shared),
        added=tuple(k.subject for key, k in head.kernels.items() if key not in base.kernels),
        gone=tuple(k.subject for key, k in base.kernels.items() if key not in head.kernels),
        certificates=tuple(certificates(base.certificates, head.certificates, oracles)),
        claims=tuple(claims(base, head)),
        at=at,
        repeats=repeats,
    )
    found = replace(found, kernels=worst_first(found))
    found = replace(found, answers=(answers.bits(found), answers.fell(found), answers.not_run(found)))
    return replace(found, conclusion=conclude(found))


def worst_first(found: Comparison) -> tuple[Compared, ...]:
    """The kernels of both sides: what moved, of that what does not hold first, and then what fell."""

    def grave(k: Compared) -> tuple[bool, ...]:
        held = all(Status[status].held for status in found.head.kernels[k.subject.key].laws.values())
        return k.quiet, held, not k.losses

    return tuple(sorted(found.kernels, key=grave))
