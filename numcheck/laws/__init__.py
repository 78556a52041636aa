"""The laws, one file each. `LAWS` is a plain tuple, in the order in which a report shows them.

`NAMES` costs nothing; `LAWS` loads torch, and so is made when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numcheck.laws.law import Law

    LAWS: tuple[Law, ...]

NAMES = ("bitwise", "accuracy", "cancellation", "invariance", "edges", "memory", "evidence")

__all__ = ["LAWS", "NAMES"]


def __getattr__(name: str) -> Any:
    if name != "LAWS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from numcheck.laws.accuracy import ACCURACY
    from numcheck.laws.bitwise import BITWISE
    from numcheck.laws.cancellation import CANCELLATION
    from numcheck.laws.edges import EDGES
    from numcheck.laws.evidence import EVIDENCE
    from numcheck.laws.invariance import INVARIANCE
    from numcheck.laws.memory import MEMORY

    globals()["LAWS"] = (BITWISE, ACCURACY, CANCELLATION, INVARIANCE, EDGES, MEMORY, EVIDENCE)
    return globals()["LAWS"]
