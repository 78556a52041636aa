"""How often each gate sees an undeclared rounding: mHC post that rounds one point to bf16 too many, or truncates.

    python docs/measurements/power.py [trials] > docs/measurements/power.txt

Each trial is a Case of normal bf16 data with 100 or 1,000 elements in `out`; the share is that of trials in which the
gate of `out` does not hold. "flat" is a cap of 5e-3 on relL2.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from numcheck import Case
from numcheck.laws.accuracy import ACCURACY
from numcheck.profile import QUICK
from tests.meta.mhc import mhc

FLAT = 5e-3
GATES = ("ceiling", "match", "band", "bias", "cap")
KERNELS = {
    "post rounded": {"rounds": ("post",)},
    "comb rounded": {"rounds": ("comb",)},
    "post*x rounded": {"rounds": ("px",)},
    "mix rounded": {"rounds": ("mix",)},
    "cast truncated": {"truncate": True},
    "right": {},
}


def main(trials: int) -> None:
    """Print the table."""
    print(f"{trials} trials each; share of trials in which a gate of `out` fails")
    print(f"{'kernel':16} {'elements':>8} " + " ".join(f"{g:>8}" for g in (*GATES[:-1], "flat")) + "  law fails")
    for name, broken in KERNELS.items():
        for D in (25, 250):
            spec = mhc(name, **broken, caps={"out": FLAT})
            counts, failed = dict.fromkeys(GATES, 0), 0
            for seed in range(trials):
                case = Case.of(S=1, H=4, D=D, dtype="bf16", regime="normal", seed=seed)
                verdict = ACCURACY.judge(spec, case, QUICK)
                for kind in {g.kind for g in verdict.gates if g.output == "out" and not g.held}:
                    counts[kind] += kind in counts
                failed += not verdict.outputs["out"].status.held
            shares = " ".join(f"{100 * counts[g] / trials:7.1f}%" for g in GATES)
            print(f"{name:16} {4 * D:8} {shares}  {100 * failed / trials:6.1f}%", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 250)
