"""What moved as a reader is told it: alike things once, an output's gates together, dtypes that promise alike too."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from numcheck.case import Case
from numcheck.compare.kinds import Moved

# A line that `numcheck.declared` has for each dtype: "order (bf16)".
_OF_A_DTYPE = re.compile(r"(.*) \(([^()]*)\)")


@dataclass(frozen=True)
class Told:
    """Things that moved alike, told by one of them: a loss before others, and the smallest Case.

    cases: in how many Cases; case: one of them, None where it is about all Cases.
    """

    what: str
    before: str
    after: str
    cases: int = 0
    case: Case | None = None
    law: str = ""
    loss: bool = False


def told(moved: Iterable[Moved]) -> list[Told]:
    """`moved`, each kind once, in the order in which the kinds come."""
    found: dict[Hashable, list[Moved]] = {}
    for one in moved:
        found.setdefault(_kind(one), []).append(one)
    return [_one(alike) for alike in found.values()]


def fallen(losses: Iterable[Moved]) -> list[Told]:
    """What fell, for a first screen: over all Cases first; gates only where no verdict tells of their output."""
    losses = list(losses)
    verdicts = {(m.law, m.output) for m in losses if m.output and not m.gate}
    found = told(m for m in losses if not (m.gate and (m.law, m.output) in verdicts))
    return sorted(found, key=lambda t: t.case is not None)


def _kind(one: Moved) -> Hashable:
    """What two things share that are told as one."""
    if one.gate:
        return one.what.replace(one.gate, "", 1), one.case is None
    line = _OF_A_DTYPE.fullmatch(one.what) if one.case is None else None
    if line:
        return line.group(1), one.before, one.after
    # A status is a word that repeats, a figure is not.
    ends = (one.before, one.after) if one.before.isupper() and one.after.isupper() else ()
    return one.what, ends, one.case is None


def _one(alike: Sequence[Moved]) -> Told:
    first = min([m for m in alike if m.loss] or alike, key=lambda m: m.case.elements if m.case else 0)
    cases = len({m.case for m in alike if m.case is not None})
    return Told(_what(first, alike), first.before, first.after, cases, first.case, first.law, first.loss)


def _what(first: Moved, alike: Sequence[Moved]) -> str:
    if first.gate:
        more = ", ".join(dict.fromkeys(m.gate for m in alike if m.gate != first.gate))
        what = f"{first.what} (also {more})" if more else first.what
        return what if first.case is not None else f"{what}, over all Cases"
    lines = [match.groups() for match in (_OF_A_DTYPE.fullmatch(m.what) for m in alike) if match]
    if first.case is None and len(lines) == len(alike) > 1:
        return f"{lines[0][0]} ({', '.join(dtype for _, dtype in lines)})"
    return first.what
