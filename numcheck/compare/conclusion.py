"""What a comparison comes to: the one place that decides whether it holds, and says why by name."""

from __future__ import annotations

from collections.abc import Iterator

from numcheck.baseline import Baseline
from numcheck.compare.kinds import Answer, Comparison, Conclusion
from numcheck.compare.words import count
from numcheck.verdict import Status

CUT_OFF = "the head's run was cut off, and says nothing of what it did not come to"


def conclude(found: Comparison) -> Conclusion:
    """Held: something was compared, nothing fell, no output lost its bits, and the head's run ended.

    Bits that changed do not hold either, but where the question is whether a change repairs something
    (`Comparison.at`): then some claim has to fail at the base and be shown to hold here, and none may fail here or be
    judged no more.
    Bits of two machines are no one's fault and cannot be compared: that alone lets a comparison hold, and is said.
    """
    if not found.judged:
        return _not(f"nothing was compared, since no Case was judged on both sides; {_first_step(found.head)}")
    if found.head.unfinished:
        return _not(f"{CUT_OFF}: {found.head.unfinished[0]}{_more(len(found.head.unfinished) - 1)}")
    reasons = [*_reasons(found), *(_unrepaired(found) if found.at else _changed(found))]
    if reasons:
        return _not("; ".join(reasons))
    return _repaired(found) if found.at else _kept(found)


def _first_step(head: Baseline) -> str:
    """What to do where there is nothing to compare with: a run that does not hold is no baseline."""
    broken = next(failing(head), "")
    if broken or head.unfinished or head.torn:
        return f"the head is no baseline before it holds: {broken or (*head.unfinished, *head.torn)[0]}"
    return "`numcheck accept RECORDS --reason TEXT` adds a device or a kernel to a baseline"


def _not(why: str) -> Conclusion:
    return Conclusion(False, "Did not hold against the base", f"does not hold: {why}")


def _reasons(found: Comparison) -> Iterator[str]:
    fell = found.answers[1]
    if fell.word == "yes":
        yield f"accuracy or coverage fell: {_first(fell)}"
    lost = [(k, b) for k in found.kernels for b in k.bits if b.unhashed]
    if lost:
        kernel, one = lost[0]
        where = f"{kernel.subject.name}: {one.output} in {count(len(one.unhashed), 'Case')}"
        yield f"bits are missing: {where}{_more(len(lost) - 1)}"
    if found.head.torn:
        yield f"the head holds no one answer: {found.head.torn[0]}{_more(len(found.head.torn) - 1)}"


def _changed(found: Comparison) -> Iterator[str]:
    changed = [(k, b) for k in found.kernels for b in k.changed]
    if changed:
        kernel, one = changed[0]
        cases = count(one.same + len(one.changed), "Case")
        where = f"{kernel.subject.name}: {one.output} in {len(one.changed)} of {cases}"
        yield f"bits changed: {where}{_more(len(changed) - 1)}"


def _unrepaired(found: Comparison) -> Iterator[str]:
    """Why the head is not shown to repair what fails at the base, beside what fell."""
    broken = list(failing(found.head))
    if broken:
        yield f"{broken[0]} here{_more(len(broken) - 1)}"
    lost = [claim.told(found.at) for claim in found.claims if claim.state == "no longer judged"]
    if lost:
        yield f"no longer judged: {lost[0]}{_more(len(lost) - 1)}"
    if not found.claims:
        yield f"nothing that was judged failed at {found.at}, so this change is not shown to fix anything"


def failing(side: Baseline) -> Iterator[str]:
    """What does not hold on one side."""
    for known in side.kernels.values():
        for law, status in known.laws.items():
            if not Status[status].held:
                yield f"{known.subject.name} under {law}: {status}"


def _repaired(found: Comparison) -> Conclusion:
    fixed = list(dict.fromkeys((c.subject.key, c.subject.name, c.law) for c in found.claims))
    laws = ", ".join(f"{name} under {law}" for _, name, law in fixed[:SHOWN]) + _more(len(fixed) - SHOWN)
    bits = "; its bits changed, as a repair may" if any(k.changed for k in found.kernels) else ""
    said = f"fixed: {laws} failed at {found.at} and holds here, and nothing fell{bits}"
    said += "".join(f"; {remark}" for remark in found.head.remarks)
    return Conclusion(True, f"Fixed what failed at {found.at}", said)


# Claims named in a sentence.
SHOWN = 3


def _kept(found: Comparison) -> Conclusion:
    failed = sum(len(k.failing) for k in found.kernels)
    still = f"; {count(failed, 'claim')} did not hold on either side" if failed else ""
    still += "".join(f"; {remark}" for remark in found.head.remarks)
    if found.answers[0].word == "unknown":
        return Conclusion(True, "Held but for bits", f"held but for bits: bits not compared{still}")
    return Conclusion(True, "Held", f"held: no bits changed, and nothing fell{still}")


def _first(answer: Answer) -> str:
    return f"{answer.sentences[0]}{_more(answer.fallen - 1)}"


def _more(rest: int) -> str:
    return f" (and {rest} more)" if rest > 0 else ""
