"""Compare: two runs side by side, and the three answers that a reviewer decides from.

Did bits change? Did accuracy or coverage fall? What was not run? Each side is a `Baseline`. Hashes and times are
compared only between machines on which they mean something; verdicts, limits and bytes always.
"""

from __future__ import annotations

from numcheck.baseline import Baseline
from numcheck.compare import answers
from numcheck.compare.kernel import kernel
from numcheck.compare.kinds import Answer, Bits, Compared, Comparison, Moved, Ratio
from numcheck.compare.told import Told, told

__all__ = ["Answer", "Bits", "Compared", "Comparison", "Moved", "Ratio", "Told", "compare", "told"]


def compare(base: Baseline, head: Baseline) -> Comparison:
    """`head` against `base`, kernel by kernel and device by device."""
    shared = [key for key in base.kernels if key in head.kernels]
    kernels = tuple(kernel(base.kernels[key], head.kernels[key]) for key in shared)
    added = tuple(k.subject for key, k in head.kernels.items() if key not in base.kernels)
    gone = tuple(k.subject for key, k in base.kernels.items() if key not in head.kernels)
    said = (
        answers.bits(base, head, kernels),
        answers.fell(base, head, kernels, gone),
        answers.not_run(base, head, kernels, gone),
    )
    return Comparison(base, head, kernels, added, gone, said)
