"""The three answers: did bits change, did accuracy or coverage fall, what was not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from numcheck.baseline import Baseline, Subject
from numcheck.compare import words
from numcheck.compare.kinds import Answer, Compared, Moved


def bits(base: Baseline, head: Baseline, kernels: Iterable[Compared]) -> Answer:
    question = "Did bits change?"
    kernels = tuple(kernels)
    said = [
        f"{k.subject.name}: {b.output} in {len(b.changed)} of {words.count(b.same + len(b.changed), 'Case')}"
        for k in kernels
        for b in k.changed
    ]
    # One run with two answers: whichever of them the base has, the head does not keep it.
    said += head.torn
    blind = tuple(_blind(kernels))
    blind += tuple(
        f"{k.subject.name}: {b.output} has no bits in {words.count(len(b.unhashed), 'Case')} that the base hashed"
        for k in kernels
        for b in k.bits
        if b.unhashed
    )
    blind += tuple(f"the base holds no one answer: {line}" for line in base.torn)
    if said:
        return Answer(question, "yes", (*said, "a new baseline needs a written reason: numcheck accept", *blind))
    if blind or not any(k.bits for k in kernels):
        return Answer(
            question, "unknown", blind or (_apart(base, head, kernels) or "no Case was hashed on both sides",)
        )
    # "No" is said of what was compared, and drawn Cases may have nothing to be compared with.
    shared, new = sum(k.shared for k in kernels), sum(k.new for k in kernels)
    beside = f"{shared:,} of {words.count(shared + new, 'Case')} compared, {new:,} not in the base"
    return Answer(question, "no", (beside,) if new else ())


def _apart(base: Baseline, head: Baseline, kernels: Iterable[Compared]) -> str:
    """Why nothing is compared at all, or ""."""
    if list(kernels):
        return ""
    ran = [sorted({k.subject.place.name for k in side.kernels.values() if k.cases}) for side in (base, head)]
    if ran[0] and ran[1] and not set(ran[0]) & set(ran[1]):
        places = f"the base ran on {', '.join(ran[0])}, the head on {', '.join(ran[1])}"
        return f"{places}: what one device gives says nothing of another"
    return "no kernel was judged on both sides"


def _blind(kernels: Iterable[Compared]) -> Iterator[str]:
    """Why bits are not compared, each reason once."""
    names: dict[str, list[str]] = {}
    for k in kernels:
        if k.incomparable:
            names.setdefault(k.incomparable, []).append(k.subject.name)
    for reason, found in names.items():
        yield f"{found[0] if len(found) == 1 else f'{len(found)} kernels'}: {reason}"


def fell(base: Baseline, head: Baseline, kernels: Iterable[Compared], gone: Iterable[Subject]) -> Answer:
    """A kernel that is gone is a loss, but not where nothing ran on its device: that is for the third answer."""
    kernels = tuple(kernels)
    places = {known.subject.place for known in head.kernels.values() if known.cases}
    said = [f"{s.name} is no longer judged" for s in gone if s.place in places]
    for k in kernels:
        name = k.subject.name
        said += [f"{name}: {m.what}: {m.before}, now {m.after}" for m in _telling(k.losses)]
        if k.vanished:
            said.append(f"{name}: {words.no_longer_run(k.vanished)}")
    if not kernels and not said:
        return Answer("Did accuracy or coverage fall?", "unknown", (_apart(base, head, kernels),))
    word = "yes" if said else "no"
    # Not a fall by itself, but what every verdict rests on.
    said += [f"{k.subject.name} promises otherwise: {_whats(k.contract)}" for k in kernels if k.contract]
    return Answer("Did accuracy or coverage fall?", word, tuple(said))


def _whats(moved: Iterable[Moved]) -> str:
    return ", ".join(m.what for m in moved)


def _telling(losses: Iterable[Moved]) -> Iterator[Moved]:
    """One loss of each kind: the first, those over all Cases before those of one."""
    seen: set[str] = set()
    for moved in sorted(losses, key=lambda m: m.case is not None):
        if moved.what not in seen:
            seen.add(moved.what)
            yield moved


def not_run(base: Baseline, head: Baseline, kernels: Iterable[Compared], gone: Iterable[Subject]) -> Answer:
    said = [f"{s.name}, which the base judged" for s in gone]
    for known in head.kernels.values():
        reasons: dict[str, list[str]] = {}
        for law, reason in known.skipped.items():
            reasons.setdefault(reason, []).append(law or "every law")
        name = known.subject.name
        said += [f"{name} under {', '.join(laws)}: {reason}" for reason, laws in reasons.items()]
    said += [
        f"{k.subject.kernel.spec}: {words.count(len(k.vanished), 'named Case')} of the base"
        for k in kernels
        if k.vanished
    ]
    said += head.unfinished
    said += [f"on the base's side: {line}" for line in base.unfinished]
    return Answer("What was not run?", "something" if said else "nothing", tuple(said))
