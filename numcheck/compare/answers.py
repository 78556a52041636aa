"""The three answers: did bits change, did accuracy or coverage fall, what was not run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from numcheck.baseline import Baseline, Known
from numcheck.compare import words
from numcheck.compare.conclusion import failing
from numcheck.compare.coverage import drawn
from numcheck.compare.kinds import Answer, Compared, Comparison
from numcheck.compare.told import Told, fallen, told
from numcheck.verdict import Status


def bits(found: Comparison) -> Answer:
    question = "Did bits change?"
    base, head, kernels = found.base, found.head, found.kernels
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
        return Answer(question, "yes", (*said, _advice(found), *blind))
    if blind or not any(k.bits for k in kernels):
        return Answer(
            question, "unknown", blind or (_apart(base, head, kernels) or "no Case was hashed on both sides",)
        )
    # "No" is said of what was compared, and drawn Cases may have nothing to be compared with.
    shared, new = sum(k.shared for k in kernels), sum(k.new for k in kernels)
    beside = f"{shared:,} of {words.count(shared + new, 'Case')} compared, {new:,} not in the base"
    return Answer(question, "no", (beside,) if new else ())


def _advice(found: Comparison) -> str:
    """What to do about other bits: a head that does not hold cannot be accepted, whatever the reason."""
    if found.at:
        return "a repair changes bits; whether these may change is for the reviewer to say"
    broken = next(failing(found.head), "")
    if broken:
        return f"the head cannot be accepted as a new baseline before it holds: {broken}"
    if found.head.unfinished or found.head.torn:
        return "the head cannot be accepted as a new baseline: it is not one whole run with one answer for each Case"
    return "a new baseline needs a written reason: numcheck accept"


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


def fell(found: Comparison) -> Answer:
    """A kernel that is gone is a loss, but not where nothing ran on its device: that is for the third answer."""
    base, head, kernels = found.base, found.head, found.kernels
    places = {known.subject.place for known in head.kernels.values() if known.cases}
    said = [f"{s.name} is no longer judged" for s in found.gone if s.place in places]
    for k in kernels:
        name = k.subject.name
        said += [f"{name}: {t.what}: {t.before}, now {t.after}{_in(t)}" for t in fallen(k.losses)]
        if k.vanished:
            said.append(f"{name}: {words.no_longer_run(k.vanished)}")
    said += [f"{m.what}: {m.before}, now {m.after}" for m in found.certificates if m.loss]
    # Draws that come again in every run, and of which those that failed are not among the head's.
    said += [claim.told() for claim in found.claims if found.repeats and claim.output and not claim.after]
    said += _new(base, head)
    if not kernels and not said:
        return Answer("Did accuracy or coverage fall?", "unknown", (_apart(base, head, kernels),))
    word, losses = "yes" if said else "no", len(said)
    # Not a fall by itself, but what every verdict rests on.
    said += [
        f"{k.subject.name} promises otherwise: {', '.join(t.what for t in told(k.contract))}"
        for k in kernels
        if k.contract
    ]
    for k in kernels:
        said += [f"{k.subject.name}: {law}: {status}, as on the base's side" for law, status in k.failing.items()]
    return Answer("Did accuracy or coverage fall?", word, tuple(said), losses)


def _in(one: Told) -> str:
    return f" in {words.count(one.cases, 'Case')}" if one.case is not None else ""


def _new(base: Baseline, head: Baseline) -> Iterator[str]:
    """What fails in a kernel that the base does not have: nothing was lost, and yet less holds than before."""
    for known in (known for key, known in head.kernels.items() if key not in base.kernels):
        failed = [f"{law} {status}" for law, status in known.laws.items() if not Status[status].held]
        if failed:
            yield f"{known.subject.name}, which the base does not have: {', '.join(failed)}"


def _undrawn(k: Compared, laws: Mapping[str, str]) -> Iterator[str]:
    for law, (then, now) in k.undrawn.items():
        why = "" if Status[laws[law]].held else ": after a failure nothing more is drawn"
        yield f"{k.subject.name} under {law}: {then - now} of {words.count(then, 'Case')} that the base drew{why}"


def _others(k: Compared, then: Known, now: Known) -> Iterator[str]:
    """Laws whose draws should be the same and are mostly others."""
    for law in (law for law in then.laws if law in now.laws and law not in k.undrawn):
        old, new = drawn(then, law), drawn(now, law)
        if old - new and 2 * len(old & new) < len(new):
            missing = f"{len(old - new)} of {words.count(len(old), 'Case')} that the base drew"
            yield f"{k.subject.name} under {law}: {missing}: the head draws others, though the profile repeats its own"


def _fewer(k: Compared, then: Known, now: Known) -> Iterator[str]:
    """Laws that held and drew far fewer Cases, where nothing else says so."""
    for law in then.drawn or {}:
        if law in k.undrawn or law not in now.laws or not Status[now.laws[law]].held or now.drawn is None:
            continue
        before, after = (sum(by.get(law, {}).get("dtype", {}).values()) for by in (then.drawn or {}, now.drawn))
        if 2 * after < before:
            yield f"{k.subject.name} under {law}: {words.count(before, 'Case')} drawn by the base, {after} by the head"


def not_run(found: Comparison) -> Answer:
    base, head, kernels = found.base, found.head, found.kernels
    said = [f"{s.name}, which the base judged" for s in found.gone]
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
    sides = [(k, base.kernels[k.subject.key], head.kernels[k.subject.key]) for k in kernels]
    said += [line for side in sides for line in _fewer(*side)]
    said += [line for side in sides if found.repeats for line in _others(*side)]
    profiles = [", ".join(filter(None, side.profiles)) for side in (base, head)]
    if all(profiles) and profiles[0] != profiles[1]:
        said.append(f"as much on both sides: the base ran in profile {profiles[0]}, the head in {profiles[1]}")
    said += head.unfinished
    said += head.remarks
    said += [f"on the base's side: {line}" for line in base.unfinished]
    return Answer("What was not run?", "something" if said else "nothing", tuple(said))
