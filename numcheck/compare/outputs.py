"""Bits of two runs, output by output: the same, changed, lost, or free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from numcheck.baseline import Seen
from numcheck.case import Case
from numcheck.compare.contracts import promises
from numcheck.compare.kinds import Bits
from numcheck.selection import law_order
from numcheck.verdict import Status


def outputs(pairs: Iterable[tuple[Seen, Seen]], *declared: Mapping[str, str]) -> Iterator[Bits]:
    unordered: dict[str, set[str]] = {}
    same: dict[str, int] = {}
    changed: dict[str, list[Case]] = {}
    unhashed: dict[str, list[Case]] = {}
    free: set[str] = set()
    unsure: dict[str, None] = {}
    for then, now in pairs:
        free |= _free(then) | _free(now)
        if now.case.dtype not in unordered:
            unordered[now.case.dtype] = _promised_any(now.case.dtype, *declared)
        loose = {n for n in unordered[now.case.dtype] if not (_climbed(then, n) and _climbed(now, n))}
        found = _hashes(then, now)
        for output, equal in found.items():
            if output in loose:
                unsure.setdefault(output)
                continue
            same[output] = same.get(output, 0) + equal
            if not equal:
                changed.setdefault(output, []).append(now.case)
        for output in _missed(then, now):
            if output not in loose:
                unhashed.setdefault(output, []).append(now.case)
    for output in dict.fromkeys((*same, *unhashed, *unsure)):
        if output in free or (output not in same and output not in unhashed):
            yield Bits(output, free=True)
        else:
            otherwise, lost = (_smallest(cases.get(output, ())) for cases in (changed, unhashed))
            yield Bits(output, same.get(output, 0), otherwise, lost)


def law_of(output: str, then: Seen, now: Seen) -> str:
    """The first law under which the bits of `output` are otherwise, or are missing."""
    for law in sorted(then.hashes.keys() & now.status.keys(), key=law_order):
        if then.hashes[law].get(output) != now.hashes.get(law, {}).get(output):
            return law
    return ""


def _smallest(cases: Iterable[Case]) -> tuple[Case, ...]:
    return tuple(sorted(cases, key=lambda case: case.elements))


def _missed(then: Seen, now: Seen) -> Iterator[str]:
    """Outputs that a law hashed then, and did not although it judged the Case now: a run that broke has no bits."""
    judged = [law for law in then.hashes if law in now.status]
    lost = (output for law in judged for output in then.hashes[law] if output not in now.hashes.get(law, {}))
    yield from dict.fromkeys(lost)


def _free(seen: Seen) -> set[str]:
    """Outputs whose bits depend on the order in this Case."""
    return {
        name for by in seen.outputs.values() for name, status in by.items() if status == Status.ORDER_DEPENDENT.name
    }


def _promised_any(dtype: str, *declared: Mapping[str, str]) -> set[str]:
    """Outputs that either Contract lets come in any order, by the lines of `numcheck.declared`."""
    found = (promises(lines.get(f"order ({dtype})", "")) for lines in declared)
    return {name for by in found for name, promise in by.items() if promise == "any"}


def _climbed(seen: Seen, output: str) -> bool:
    """Whether the law of bits tried this output in other orders: then its status says whether they matter."""
    return output in seen.outputs.get("bitwise", {})


def _hashes(then: Seen, now: Seen) -> dict[str, bool]:
    """Output -> whether its bits are the same under every law that hashed it on both sides."""
    found: dict[str, bool] = {}
    for law in then.hashes.keys() & now.hashes.keys():
        old, new = then.hashes[law], now.hashes[law]
        for output in (name for name in old if name in new):
            found[output] = found.get(output, True) and old[output] == new[output]
    return found
