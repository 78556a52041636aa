"""How figures and Cases read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from numcheck.verdict import ACROSS

# Whole numbers up to so many digits are written out.
PLAIN_DIGITS = 6
MINUS, DASH = "\u2212", "\u2013"
# Of many Cases some may be vacuous without harm, so they show what they prove together, not the worst of them.
TELLING = tuple(status.name for status in ACROSS)
BROKEN = tuple(status.name for status in ACROSS if not status.held)
# The mark of each status, so that none rests on its colour.
GLYPHS = {"PASS": "✓", "ORDER_DEPENDENT": "⇄", "VACUOUS": "○", "UNAVAILABLE": DASH, "FAIL": "✕", "ERROR": "!"}
RUNG_GLYPHS = {"still": "✓", "order": "⇄", "flip": "✕", "unclimbed": DASH}


def number(value: Any) -> float:
    """A number as records hold it, with "inf", "-inf" and "nan" by name; NaN for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def figure(value: float) -> str:
    """`value` to three significant digits, without a needless exponent."""
    if math.isnan(value):
        return "NaN"
    text = "∞" if math.isinf(value) else f"{abs(value):.3g}"
    if "e" in text:
        mantissa, exponent = text.split("e")
        text = f"{abs(value):.0f}" if 0 <= int(exponent) < PLAIN_DIGITS else f"{mantissa}e{int(exponent)}"
    return MINUS + text if value < 0 else text


def percent(share: float) -> str:
    """A share as a percentage to two significant digits."""
    return f"{100 * share:.2g} %"


def count(n: int, noun: str, plural: str = "") -> str:
    """ "1 Case", "1,204 Cases"."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


def cut(text: str, longest: int) -> str:
    """`text`, or as much of its beginning as so many characters hold, and a sign that there is more."""
    return text if len(text) <= longest else f"{text[: max(0, longest - 1)]}…"


def facts_of(case: Mapping[str, Any]) -> dict[str, str]:
    """A Case's facts in reading order: sizes, dtype, regime, layout, offset, further facts, seed."""
    sizes, facts = case.get("sizes", {}), case.get("facts", {})
    shown = {str(k): str(v) for k, v in sizes.items()}
    shown |= {k: str(case.get(k, "")) for k in ("dtype", "regime", "layout", "offset")}
    shown |= {str(k): str(v) for k, v in facts.items()}
    return shown | {"seed": str(case.get("seed", ""))}


def short(case: Mapping[str, Any]) -> str:
    """A Case on one line, for people: what is usual (contiguous, offset 0) is left out."""
    parts = [f"{name} {value}" for name, value in case.get("sizes", {}).items()]
    parts += [str(case.get("dtype", "")), str(case.get("regime", ""))]
    if case.get("layout") != "contiguous":
        parts.append(str(case.get("layout")))
    if case.get("offset"):
        parts.append(f"offset {case['offset']}")
    parts += [f"{name} {value}" for name, value in case.get("facts", {}).items()]
    return " · ".join([*parts, f"seed {case.get('seed', 0)}"])


def anchor(*parts: str) -> str:
    """An id for a place in the page, the same in every rendering; nothing of the parts themselves is in it."""
    return "x" + hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:10]
