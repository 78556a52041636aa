"""What ran on one side and not on the other: Cases that vanished, draws cut short, laws that could not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from numcheck.baseline import Known, Seen
from numcheck.case import Case
from numcheck.compare import words
from numcheck.compare.kinds import Moved
from numcheck.verdict import Status


def vanished(then: Known, now: Known) -> tuple[Case, ...]:
    """Named Cases of the base that the head did not judge; of a kernel that could not run its skip says so."""
    if now.skipped and not now.cases:
        return ()
    return tuple(s.case for key, s in then.cases.items() if key not in now.cases and s.phase != "draw")


def failing(then: Known, now: Known) -> dict[str, str]:
    """Laws that did not hold then and do not now, with their status now."""
    broken = {law for law, status in then.laws.items() if not Status[status].held}
    return {law: status for law, status in now.laws.items() if law in broken and not Status[status].held}


def undrawn(then: Known, now: Known) -> dict[str, tuple[int, int]]:
    """Laws of which fewer Cases were drawn than then, though the same ones: after a failure nothing more is drawn.

    A profile that draws anew each time draws others, of which no count says that they are too few.
    """
    found = {}
    for law in (law for law in then.laws if law in now.laws):
        old, new = drawn(then, law), drawn(now, law)
        missing = {key for key in old if key not in now.cases or law not in now.cases[key].status}
        if missing and new <= old:
            found[law] = len(old), len(old) - len(missing)
    return found


def drawn(known: Known, law: str) -> set[str]:
    """Keys of the Cases that were drawn for the law."""
    return {key for key, seen in known.cases.items() if seen.phase == "draw" and law in seen.status}


def lapsed(pairs: Iterable[tuple[Seen, Seen]], then: Known, now: Known) -> Iterator[Moved]:
    """Named Cases that other laws still judge and this one does not; a law that is gone or could not run says so."""
    for old, new in pairs:
        for law, status in old.status.items() if old.phase != "draw" else ():
            if law in new.status or law not in now.laws or (skip(now, law) and not skip(then, law)):
                continue
            yield Moved(f"{law} of a named Case", words.status(status), words.status(""), new.case, law, loss=True)


def skips(then: Known, now: Known) -> Iterator[Moved]:
    for law in dict.fromkeys((*then.skipped, *now.skipped)):
        old, new = skip(then, law), skip(now, law)
        if bool(old) != bool(new):
            yield Moved(law or "every law", _ran(then, law, old), _ran(now, law, new), law=law, loss=bool(new))


def skip(known: Known, law: str) -> str:
    """Why a law could not run at all, or ""; a skip without a law is one of every law."""
    return known.skipped.get(law, known.skipped.get("", ""))


def _ran(known: Known, law: str, why: str) -> str:
    if why:
        return f"could not run: {why}"
    return words.status(known.laws.get(law, "")) if law or not known.laws else "ran"
