"""How a Case's inputs are made, in words: what `numcheck.sample` does with its regime, layout, offset and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REGIMES = {
    "wide": "Data are normal values times powers of two from 2^-8 to 2^8, wide enough that FP32 sums of them round.",
    "normal": "Data are normal values: mean 0, variance 1.",
    "mean4": "Data are normal values around 4, so that sums grow and a bias shows.",
    "cancelling": "Data cancel: the halves of a row nearly agree with opposite signs, so that little is left.",
    "integers": "Data are whole numbers from -3 to 3, so that the right result is exact.",
    "ones": "Data are ones, so that the right result is exact.",
    "zeros": "Data are zeros.",
}
LAYOUTS = {
    "contiguous": "Tensors are contiguous.",
    "strided": "Tensors are strided: every second element of a row, rows and planes one more apart, NaN between.",
}
ROUNDED = "Values are drawn in FP64, rounded once to {dtype}, and the oracle gets those rounded values."
PLACED = "Each tensor starts {offset} elements past a 64-byte boundary, with NaN before and after."
FACTS = "Of the problem itself: {facts}."
SEEDED = "Element i of a tensor is a hash of (seed {seed}, tensor name, i): the same bits on every machine."
# What a page's script needs to say the same of any Case.
SENTENCES = {
    "regimes": REGIMES,
    "layouts": LAYOUTS,
    "rounded": ROUNDED,
    "placed": PLACED,
    "facts": FACTS,
    "seeded": SEEDED,
}


def made(case: Mapping[str, Any]) -> str:
    """A few sentences for a Case, as JSON."""
    facts = ", ".join(f"{name} {value}" for name, value in case.get("facts", {}).items())
    said = [
        REGIMES.get(case.get("regime", ""), f"Regime {case.get('regime', '')}."),
        ROUNDED.replace("{dtype}", str(case.get("dtype", ""))),
        LAYOUTS.get(case.get("layout", ""), f"Layout {case.get('layout', '')}."),
        PLACED.replace("{offset}", str(case["offset"])) if case.get("offset") else "",
        FACTS.replace("{facts}", facts) if facts else "",
        SEEDED.replace("{seed}", str(case.get("seed", 0))),
    ]
    return " ".join(sentence for sentence in said if sentence)
