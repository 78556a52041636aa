"""Parts of a Baseline: what a run asked for, and what is kept where a run replaces the rest."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TypeVar

from numcheck.baseline.known import Baseline, Known, Seen, Subject
from numcheck.selection import UNKNOWN, Kernel

T = TypeVar("T")


def narrowed(base: Baseline, head: Baseline) -> Baseline:
    """Of `base`, the kernels and laws that `head` judged: for a run that asked for a part only."""
    kept = {}
    for key, now in head.kernels.items():
        if key in base.kernels:
            then = base.kernels[key]
            # A law that could not run was asked for; a skip without a law is one of every law.
            asked = {*now.laws, *now.skipped, *(then.laws if "" in now.skipped else ())}
            laws = {law: status for law, status in then.laws.items() if law in asked}
            skipped = {law: why for law, why in then.skipped.items() if law in asked}
            cases = {name: seen for name, seen in then.cases.items() if any(law in laws for law in seen.status)}
            kept[key] = replace(then, laws=laws, skipped=skipped, cases=cases)
    return replace(base, kernels=kept)


def within(base: Baseline, modules: Collection[str]) -> Baseline:
    """Of `base`, the kernels of these specs modules."""
    kept = {key: known for key, known in base.kernels.items() if known.subject.kernel.specs in modules}
    return replace(base, kernels=kept)


def placed(base: Baseline, head: Baseline) -> Baseline:
    """`head` with what broke before its device was known put where `base` has the kernel, if that is one place."""
    places: dict[Kernel, list[Subject]] = {}
    for known in base.kernels.values():
        places.setdefault(known.subject.kernel, []).append(known.subject)
    found = {}
    for known in head.kernels.values():
        there = places.get(known.subject.kernel, ())
        if known.subject.place == UNKNOWN and len(there) == 1 and there[0].key not in head.kernels:
            known = replace(known, subject=there[0])
        found[known.subject.key] = known
    return replace(head, kernels=found)


def joined(then: Known, now: Known) -> Known:
    """`then` with each law that `now` judged, or says could not run, replaced whole; the other laws stay, Case by Case.

    Bits of a law that stays are kept only where both were judged on one machine: the file names one machine a kernel.
    """
    replaced = {*now.laws, *now.skipped}
    one = all(then.machine[name] == fact for name, fact in now.machine.items() if name in then.machine)
    cases = {key: _less(seen, replaced, one) for key, seen in then.cases.items()}
    cases = {key: seen for key, seen in cases.items() if seen.status}
    cases |= {key: _both(cases[key], seen) if key in cases else seen for key, seen in now.cases.items()}
    return replace(
        now,
        laws={**_but(then.laws, replaced), **now.laws},
        pooled={**{key: f for key, f in then.pooled.items() if key[0] not in replaced}, **now.pooled},
        declared=now.declared or then.declared,
        skipped={**_but(then.skipped, {*replaced, ""}), **now.skipped},
        cases=dict(sorted(cases.items())),
        machine={**then.machine, **now.machine},
        oracle=now.oracle or then.oracle,
        drawn={**_but(then.drawn or {}, replaced), **(now.drawn or {})},
        stopped=(*(law for law in then.stopped if law not in replaced), *now.stopped),
    )


def _but(by_law: Mapping[str, T], laws: Collection[str]) -> dict[str, T]:
    return {law: value for law, value in by_law.items() if law not in laws}


def _less(seen: Seen, laws: Collection[str], hashes: bool) -> Seen:
    """`seen` without what these laws said of it."""
    bytes_of = (None, None) if "memory" in laws else (seen.measured_bytes, seen.formula_bytes)
    return Seen(
        seen.case,
        seen.phase,
        _but(seen.status, laws),
        _but(seen.outputs, laws),
        _but(seen.hashes, laws) if hashes else {},
        {key: figure for key, figure in seen.gates.items() if key[0] not in laws},
        _but(seen.seconds, laws) if hashes else {},
        *bytes_of,
        _but(seen.rungs, laws) if seen.rungs is not None else None,
        _but(seen.why, laws),
        "" if "bitwise" in laws else seen.order,
    )


def _both(one: Seen, other: Seen) -> Seen:
    """What two sets of laws, with none in common, say of one Case."""
    measured = other if other.measured_bytes is not None else one
    return Seen(
        other.case,
        other.phase,
        {**one.status, **other.status},
        {**one.outputs, **other.outputs},
        {**one.hashes, **other.hashes},
        {**one.gates, **other.gates},
        {**one.seconds, **other.seconds},
        measured.measured_bytes,
        measured.formula_bytes,
        None if one.rungs is other.rungs is None else {**(one.rungs or {}), **(other.rungs or {})},
        {**one.why, **other.why},
        other.order or one.order,
    )
