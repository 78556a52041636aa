"""Contract lines of two runs: which read otherwise, and whether they promise less."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping

from numcheck.baseline import Seen
from numcheck.compare.kinds import Moved
from numcheck.contract import ORDER_PROMISES

# Lines that say one thing of each output or point.
LISTS = ("order ", "roundings ", "sums ", "flat caps", "agrees")
# What a line that is not there reads.
NONE = "not declared"


def contract(then: Mapping[str, str], now: Mapping[str, str], ran: bool = True) -> Iterator[Moved]:
    """ran: whether the head judged any Case; a kernel that could not run at all says so elsewhere."""
    if then and ran and not now:
        yield Moved("Contract", "declared", NONE, loss=True)
    # A base that was written before Contracts were recorded knows nothing of them.
    for what in dict.fromkeys((*then, *now)) if then and now else ():
        old, new = then.get(what, NONE), now.get(what, NONE)
        if old != new:
            yield Moved(what, *_moved(what, old, new), loss=_promises_less(what, old, new))


def orders(pairs: Iterable[tuple[Seen, Seen]], told: Collection[str]) -> Iterator[Moved]:
    """Outputs whose order is promised otherwise in a Case; of dtypes whose line of the Contract moved that says so.

    A Contract may be a function of the Case, of which its lines give the weakest promise alone.
    """
    for then, now in pairs:
        if not then.order or then.order == now.order or f"order ({now.case.dtype})" in told:
            continue
        old, new = promises(then.order), promises(now.order)
        for output in (name for name in old if new.get(name, "") != old[name]):
            before, after = old[output], new.get(output, NONE)
            loss = output not in new or _weaker(f"{output} {before}", f"{output} {after}")
            yield Moved(f"order of {output}", before, after, now.case, "bitwise", loss)


def _moved(what: str, then: str, now: str) -> tuple[str, str]:
    """Of two lists, what is not in both: of five outputs a reader needs the one whose order is another."""
    if not what.startswith(LISTS):
        return then, now
    old, new = then.split(", "), now.split(", ")
    before, after = ", ".join(o for o in old if o not in new), ", ".join(n for n in new if n not in old)
    return before or NONE, after or NONE


def _promises_less(what: str, then: str, now: str) -> bool:
    """Whether a line of `numcheck.declared` that moved promises less; of lines not named here that is not defined."""
    if now == NONE:
        return what != "addresses"  # said of 32 bits alone
    if what.startswith("order "):
        return _weaker(then, now)
    if what in ("dtypes", "outputs"):
        return bool(set(then.split(", ")) - set(now.split(", ")))
    if what == "compiled":
        return now == "not claimed"
    if what == "flat caps":
        old, new = promises(then), promises(now)
        return any(name not in new or _cap(new[name]) > _cap(cap) for name, cap in old.items())
    if what == "addresses":
        return now == "32 bits"
    if what == "agrees":
        return then != NONE and bool(set(then.split(", ")) - set(now.split(", ")))
    return False


def _cap(said: str) -> float:
    """A flat cap as a number; what is none caps nothing."""
    try:
        return float(said)
    except ValueError:
        return math.inf


def _weaker(then: str, now: str) -> bool:
    """Whether an output's order is promised less than it was; lines of `numcheck.declared`, "out single, d_x any"."""
    old, new = promises(then), promises(now)
    strongest: dict[str, int] = {promise: place for place, promise in enumerate(ORDER_PROMISES)}
    both = [(old[name], new[name]) for name in old if name in new]
    return any(strongest.get(after, 0) > strongest.get(before, 0) for before, after in both)


def promises(said: str) -> dict[str, str]:
    """Name -> what is said of it, of a line like "out single, d_x any"."""
    parts = (promise.rpartition(" ") for promise in said.split(", "))
    return {name: word for name, _, word in parts if name}
