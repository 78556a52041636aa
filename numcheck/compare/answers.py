"""The three answers: did bits change, did accuracy or coverage fall, what was not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from numcheck.baseline import Baseline, Subject
from numcheck.compare import words
from numcheck.compare.kinds import Answer, Compared
from numcheck.compare.told import Told, fallen, told
from numcheck.verdict import Status


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
        said += [f"{name}: {t.what}: {t.before}, now {t.after}{_in(t)}" for t in fallen(k.losses)]
        if k.vanished:
            said.append(f"{name}: {words.no_longer_run(k.vanished)}")
    if not kernels and not said:
        return Answer("Did accuracy or coverage fall?", "unknown", (_apart(base, head, kernels),))
    word = "yes" if said else "no"
    # Not a fall by itself, but what every verdict rests on.
    said += [
        f"{k.subject.name} promises otherwise: {', '.join(t.what for t in told(k.contract))}"
        for k in kernels
        if k.contract
    ]
    said += _failing(base, head, kernels)
    return Answer("Did accuracy or coverage fall?", word, tuple(said))


def _in(one: Told) -> str:
    return f" in {words.count(one.cases, 'Case')}" if one.case is not None else ""


def _failing(base: Baseline, head: Baseline, kernels: Iterable[Compared]) -> Iterator[str]:
    """What does not hold and has not fallen either: it failed on the base too, or the base does not have it."""
    for k in kernels:
        yield from (f"{k.subject.name}: {law}: {status}, as on the base's side" for law, status in k.failing.items())
    for known in (known for key, known in head.kernels.items() if key not in base.kernels):
        failed = [f"{law} {status}" for law, status in known.laws.items() if not Status[status].held]
        if failed:
            yield f"{known.subject.name}, which the base does not have: {', '.join(failed)}"


def _undrawn(k: Compared, laws: Mapping[str, str]) -> Iterator[str]:
    for law, (then, now) in k.undrawn.items():
        why = "" if Status[laws[law]].held else ": after a failure nothing more is drawn"
        yield f"{k.subject.name} under {law}: {then - now} of {words.count(then, 'Case')} that the base drew{why}"


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
    said += [line for k in kernels for line in _undrawn(k, head.kernels[k.subject.key].laws)]
    said += head.unfinished
    said += [f"on the base's side: {line}" for line in base.unfinished]
    return Answer("What was not run?", "something" if said else "nothing", tuple(said))
