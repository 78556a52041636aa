"""What each judged Case is against the base: other bits, another verdict, or the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from numcheck.baseline import Known, Seen
from numcheck.compare import Compared, Comparison
from numcheck.selection import Kernel, Place

# Kernel, place, law, and the Case's line -> what is otherwise, or that nothing is.
Rebased = Mapping[tuple[Kernel, Place, str, str], str]

SAME, NEW = "same bits", "not in the base"
# What says that nothing moved; "": no bits were compared, and the verdict is what it was.
STILL = ("", SAME, NEW)


def rebased(comparison: Comparison | None) -> Rebased:
    """Of every Case that the head judged, where there is a base."""
    if comparison is None:
        return {}
    compared = {k.subject.key: k for k in comparison.kernels}
    return {
        (known.subject.kernel, known.subject.place, law, line): text
        for key, known in comparison.head.kernels.items()
        for law, line, text in _kernel(comparison.base.kernels.get(key), known, compared.get(key))
    }


def _kernel(then: Known | None, now: Known, compared: Compared | None) -> Iterator[tuple[str, str, str]]:
    moved, lost, ordered = _outputs(compared)
    for key, seen in now.cases.items():
        old, line = then.cases.get(key) if then else None, seen.case.line()
        for law in seen.status:
            if old is None or law not in old.status:
                yield law, line, NEW
            else:
                yield law, line, _said(law, old, seen, moved.get(key, ()), lost.get(key, ()), ordered)


def _outputs(compared: Compared | None) -> tuple[Mapping[str, list[str]], Mapping[str, list[str]], set[str]]:
    """Case -> outputs whose bits changed, and those that have none now; the outputs whose bits were compared at all."""
    moved: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    for bits in compared.bits if compared else ():
        for cases, into in ((bits.changed, moved), (bits.unhashed, lost)):
            for case in cases:
                into.setdefault(case.key, []).append(bits.output)
    return moved, lost, {bits.output for bits in compared.bits if not bits.free} if compared else set()


def _said(law: str, then: Seen, now: Seen, moved: list[str] | tuple[()], lost: list[str] | tuple[()],
          ordered: set[str]) -> str:  # fmt: skip
    old, new = then.hashes.get(law, {}), now.hashes.get(law, {})
    other = [name for name in moved if name in old and name in new and old[name] != new[name]]
    none = [name for name in lost if name in old and name not in new]
    said = [f"other bits: {', '.join(other)}"] if other else []
    said += [f"no bits: {', '.join(none)}"] if none else []
    said += [f"was {then.status[law]}"] if then.status[law] != now.status[law] else []
    if not said and ordered & old.keys() & new.keys():
        return SAME
    return "; ".join(said)
