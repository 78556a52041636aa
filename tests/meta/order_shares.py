"""How often three addends flip a bit, by dtype and regime, seen and foretold: `python -m tests.meta.order_shares`.

One token, one stream, three blocks of D: every distinct order of `mhc_post.triton_split_atomic` against the first.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from numcheck import Case, KernelSpec, interpreter
from numcheck.difference import difference
from numcheck.execute import execute
from numcheck.order import orders
from numcheck.sample import sample
from numcheck.vacuity import prove, record

SEEDS = 40
OUTPUTS = ("d_post", "d_comb")
THREE_ADDENDS = Case.of(S=1, H=1, D=33)


@dataclass(frozen=True)
class Share:
    """Of `seeds` Cases, how many flipped a bit of d_post or d_comb, and of how many the proof foretold it."""

    dtype: str
    regime: str
    seeds: int
    flipped: int
    foretold: int
    both: int

    def __str__(self) -> str:
        return (
            f"{self.dtype} {self.regime:7} flipped {self.flipped:2} of {self.seeds}, foretold {self.foretold:2}, "
            f"both {self.both:2}"
        )


def shares(spec: KernelSpec, dtype: str, regime: str, seeds: int = SEEDS) -> Share:
    """The Share of Cases of three addends in this dtype and regime."""
    seen = [_flips_and_foretold(spec, THREE_ADDENDS.but(dtype=dtype, regime=regime, seed=k)) for k in range(seeds)]
    flipped, foretold = (sum(column) for column in zip(*seen, strict=True))
    return Share(dtype, regime, seeds, flipped, foretold, sum(a and b for a, b in seen))


def _flips_and_foretold(spec: KernelSpec, case: Case) -> tuple[bool, bool]:
    drawn = sample(spec.oracle, case)
    first = execute(spec, drawn, measure=True)
    proofs = prove(spec, case, record(spec, drawn).terms, first.evidence)
    others = [execute(spec, drawn, order=order).outputs for order in orders(case.key, 3, 2)]
    flipped = any(difference(o[name], first.outputs[name], "") is not None for o in others for name in OUTPUTS)
    return flipped, any(proofs[name].proven for name in OUTPUTS)


def split_atomic() -> KernelSpec:
    """The shipped spec that adds by float atomics."""
    import kernels

    return next(spec for spec in kernels.ALL if spec.name == "mhc_post.triton_split_atomic")


def main() -> None:
    """Print the table."""
    interpreter.enable()
    spec = split_atomic()
    for dtype in ("fp32", "bf16"):
        for regime in ("normal", "wide"):
            print(shares(spec, dtype, regime))


if __name__ == "__main__":
    sys.exit(main())
