"""Claims that failed at the base: which of them hold now, in which Case, and which nobody judges any more."""

from __future__ import annotations

from collections.abc import Iterator

from numcheck.baseline import Baseline, Known, Seen
from numcheck.compare.kinds import Claim
from numcheck.verdict import Status, worst


def claims(base: Baseline, head: Baseline) -> Iterator[Claim]:
    """Each law of each kernel that did not hold then; where Cases show it, output by output."""
    for key, then in base.kernels.items():
        now = head.kernels.get(key)
        for law, status in then.laws.items():
            if not Status[status].held:
                yield from _claims(then, now, law) if now is not None else [Claim(then.subject, law, status, "")]


def _claims(then: Known, now: Known, law: str) -> Iterator[Claim]:
    before, here = then.laws[law], now.laws.get(law, "")
    failed = _failed(then, law)
    dropped = {s.case.key for cases in failed.values() for s in cases if s.phase != "draw" and not _has(now, s, law)}
    if not (here and Status[here].shown) or dropped:
        yield Claim(then.subject, law, before, here, dropped=len(dropped))
        return
    found = [_of_output(then, now, law, output, cases) for output, cases in failed.items()]
    # What failed over all Cases together has no Case to show.
    yield from found or [Claim(then.subject, law, before, here, fixed=True)]


def _of_output(then: Known, now: Known, law: str, output: str, failed: list[Seen]) -> Claim:
    """An output that failed in these Cases, of a law that is shown to hold now."""
    again = [s for s in failed if _has(now, s, law)]
    shown = [s for s in again if Status[_status(now, s, law, output)].shown]
    before = worst(Status[s.outputs.get(law, {}).get(output, s.status[law])] for s in failed).name
    why = _why(min(shown or failed, key=lambda seen: seen.case.elements), law, output)
    if not shown:
        after = worst(Status[_status(now, s, law, output)] for s in again).name if again else ""
        return Claim(then.subject, law, before, after, output, len(failed), why=why)
    smallest = min(shown, key=lambda seen: seen.case.elements)
    after = _status(now, smallest, law, output)
    return Claim(then.subject, law, before, after, output, len(failed), len(shown), smallest.case, True, why)


def _why(seen: Seen, law: str, output: str) -> str:
    by = seen.why.get(law, {})
    return by.get(output) or next(iter(by.values()), "")


def _failed(then: Known, law: str) -> dict[str, list[Seen]]:
    """Output -> the Cases in which it did not hold; "" where the Case did not, and no output of it says so."""
    found: dict[str, list[Seen]] = {}
    for seen in then.cases.values():
        outputs = {**seen.outputs.get(law, {}), "": seen.status.get(law, "PASS")}
        failed = [output for output, status in outputs.items() if not Status[status].held]
        for output in failed[:-1] if len(failed) > 1 else failed:
            found.setdefault(output, []).append(seen)
    return found


def _has(now: Known, seen: Seen, law: str) -> bool:
    key = seen.case.key
    return key in now.cases and law in now.cases[key].outputs


def _status(now: Known, seen: Seen, law: str, output: str) -> str:
    """An output that broke the law's run ("*"), or that it no longer has, is judged by what it says of the others."""
    outputs = now.cases[seen.case.key].outputs[law]
    return outputs.get(output) or worst(Status[status] for status in outputs.values()).name
