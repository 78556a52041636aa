"""How a comparison writes statuses, gates, limits and bytes."""

from __future__ import annotations

import math
from collections.abc import Sized

from numcheck.baseline import Figure, GateKey

# What stands for a Gate where there is none.
NO_GATE = "no such gate"
# What a ratio of times is worth: its interval is of how Cases differ, not of how runs do.
HINT = "not interleaved: a hint at most; numcheck bench --ab measures"


def status(word: str) -> str:
    return word or "not judged"


def gate(key: GateKey) -> str:
    return f"{key[2]} of {key[1]} under {key[0]}"


def value(figure: Figure) -> str:
    return f"{figure.value:.4g} ({limit(figure)})"


def limit(figure: Figure) -> str:
    low = f"{figure.lower:.4g} to " if figure.lower > -math.inf else "at most "
    return f"{low}{figure.limit:.4g}"


def bytes_of(count: int | None) -> str:
    return "unknown" if count is None else f"{count:,} bytes"


def count(n: int, noun: str) -> str:
    """ "1 Case", "1,204 Cases"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def no_longer_run(cases: Sized) -> str:
    return f"{count(len(cases), 'named Case')} no longer run{'s' if len(cases) == 1 else ''}"
