"""One kernel on one device, base against head: what is otherwise, and whether that is a loss."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from statistics import fmean, stdev

from numcheck.baseline import Figure, GateKey, Known, Seen
from numcheck.case import Case
from numcheck.chance import student_limit
from numcheck.compare import words
from numcheck.compare.contracts import contract, orders
from numcheck.compare.coverage import failing, lapsed, skip, skips, undrawn, vanished
from numcheck.compare.kinds import Compared, Drawing, Moved, Ratio
from numcheck.compare.outputs import outputs
from numcheck.compare.power import power
from numcheck.verdict import Status

# A figure of the same Case, against noise drawn from the same seed, moves only where the kernel's error does. So many
# of its own spreads apart is a change, as in every other gate (tolerance.md: 6 spreads).
SPREADS = 6.0
# Where a band has no spread to speak of: the factor that is allowed for the noise model itself (numcheck.pool).
FACTOR = 1.1
CONFIDENCE = 0.95
# Cases below which a ratio of times has no interval: a standard deviation of two figures says nothing.
FEWEST = 3
# Logarithm of a ratio that is still a float: of seconds that nobody measured, records may hold any.
LARGEST = math.floor(math.log(sys.float_info.max))
# Figures of a baseline file have six digits.
SAME = 1e-5

# Gates over all Cases whose limit does not depend on which Cases those were.
FIXED = ("band", "bias", "cap")

Pairs = Iterable[tuple[Seen, Seen]]


def kernel(then: Known, now: Known, drawing: Drawing) -> Compared:
    """`now` against `then`."""
    shared = {key: (then.cases[key], seen) for key, seen in now.cases.items() if key in then.cases}
    pairs = tuple(shared.values())
    lines = tuple(contract(then.declared, now.declared, bool(now.cases)))
    alike = {law for law in then.laws if _judged(then, law) == _judged(now, law)}
    # Where one side judged nothing there is no machine to compare with, and no bits.
    incomparable = _machines(then.machine, now.machine) if then.cases and now.cases else ""
    return Compared(
        now.subject,
        bits=() if incomparable else tuple(outputs(pairs, then.declared, now.declared)),
        claims=tuple(_claims(then, now)),
        cases=(*_statuses(pairs), *lapsed(pairs, then, now)),
        gates=(*_figures(pairs, then, now, alike), *_ungated(pairs, then, now)),
        limits=tuple(_limits(pairs, then, now, alike)),
        contract=(*lines, *orders(pairs, {line.what for line in lines})),
        memory=tuple(_memory(pairs)),
        power=tuple(power(pairs, then, now, alike, drawing)),
        skips=tuple(skips(then, now)),
        time=None if incomparable else _time(pairs),
        new=len(now.cases.keys() - then.cases.keys()),
        vanished=vanished(then, now),
        failing=failing(then, now),
        undrawn=undrawn(then, now),
        shared=len(shared),
        incomparable=incomparable,
    )


def _machines(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Why bits and times of these two say nothing of each other, or ""."""
    # A backend is the machine's matter where both name one; a kernel that no longer launches has changed itself.
    names = [name for name in dict.fromkeys((*then, *now)) if name != "backend" or (name in then and name in now)]
    differ = [name for name in names if then.get(name) != now.get(name)]
    if not differ:
        return ""
    said = ", ".join(f"{name} {then.get(name, 'unknown')} against {now.get(name, 'unknown')}" for name in differ)
    return f"bits and times are not compared: {said}"


def _claims(then: Known, now: Known) -> Iterator[Moved]:
    """Laws that say otherwise; those that could not run on one side are told as skips."""
    for law in dict.fromkeys((*then.laws, *now.laws)):
        skipped = [bool(skip(known, law)) for known in (then, now)]
        if skipped[0] != skipped[1] and any(law not in known.laws and skip(known, law) for known in (then, now)):
            continue
        old, new = then.laws.get(law, ""), now.laws.get(law, "")
        if old != new:
            # A law that is gone has lost the Cases that held, whatever it said of all of them.
            loss = _lost(old, new) or not new
            yield Moved(f"{law}, over all Cases", words.status(old), words.status(new), law=law, loss=loss)


def _statuses(pairs: Pairs) -> Iterator[Moved]:
    for then, now in pairs:
        for law in (law for law in then.outputs if law in now.outputs):
            old, new = then.outputs[law], now.outputs[law]
            for output in dict.fromkeys((*old, *new)):
                before, after = old.get(output, ""), new.get(output, "")
                if before != after:
                    what, loss = f"{output} under {law}", _lost(before, after)
                    yield Moved(what, words.status(before), words.status(after), now.case, law, loss, output)


def _figures(pairs: Pairs, then: Known, now: Known, alike: Collection[str]) -> Iterator[Moved]:
    """Gates that held and do not, or the other way round, and errors that moved by more than their spread."""
    for law_of, old, new in _gates(pairs, then, now, alike):
        case, key = law_of
        held, holds = old.headroom >= 1, new.headroom >= 1
        if held != holds or (key[2] == "band" and _apart(old, new)):
            loss = (held and not holds) or (held == holds and new.value > old.value)
            yield Moved(words.gate(key), words.value(old), words.value(new), case, key[0], loss, *key[1:])


def _apart(old: Figure, new: Figure) -> bool:
    """Whether a relL2 over its prediction moved beyond what its noise explains."""
    if old.vacuous or new.vacuous or not (old.value > 0 and new.value > 0):
        return False
    return abs(math.log(new.value / old.value)) > max(math.log(FACTOR), SPREADS * max(old.spread, new.spread))


def _limits(pairs: Pairs, then: Known, now: Known, alike: Collection[str]) -> Iterator[Moved]:
    """Limits that moved for the same Case and the same spread.

    Accuracy's alone: what other laws allow rests on the element or the relation that was worst, and so on the kernel.
    """
    for (case, key), old, new in _gates(pairs, then, now, alike):
        still = _close(old.limit, new.limit) and _close(old.lower, new.lower)
        if key[0] != "accuracy" or still or not _close(old.spread, new.spread):
            continue
        if case is None and key[2] not in FIXED:
            continue
        loss = new.limit > old.limit or new.lower < old.lower
        what = f"limit of {words.gate(key)}"
        yield Moved(what, words.limit(old), words.limit(new), case, key[0], loss, *key[1:])


def _close(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=SAME)


def _gates(
    pairs: Pairs, then: Known, now: Known, alike: Collection[str]
) -> Iterator[tuple[tuple[Case | None, GateKey], Figure, Figure]]:
    """Each gate that both sides have: those over all Cases, then Case by Case. Bytes have a section of their own.

    Over all Cases only where they are the same ones: after a failure no more are drawn, and fewer have other figures.
    """
    for key in (key for key in then.pooled if key in now.pooled and key[0] in alike):
        yield (None, key), then.pooled[key], now.pooled[key]
    for old, new in pairs:
        for key in (key for key in old.gates if key in new.gates and key[0] != "memory"):
            yield (new.case, key), old.gates[key], new.gates[key]


def _judged(known: Known, law: str) -> set[str]:
    """Keys of the Cases that the law judged."""
    return {key for key, seen in known.cases.items() if law in seen.status}


def _ungated(pairs: Pairs, then: Known, now: Known) -> Iterator[Moved]:
    """Gates that a law no longer has where it judged again: what nobody measures any more cannot fail.

    Laws other than accuracy choose the kind by the order promise (bits, or a radius): another kind in its place is
    told, and is no loss.
    Which kinds are pooled rests on how many Cases a profile draws, so over all Cases only a law that pooled
    something and pools nothing now has lost them.
    """
    pooling = {key[0] for key in now.pooled}
    for key, figure in then.pooled.items():
        if key[0] in now.laws and key[0] not in pooling:
            yield Moved(words.gate(key), words.value(figure), words.NO_GATE, None, key[0], True, *key[1:])
    for old, new in pairs:
        for key, figure in old.gates.items():
            if key[0] in new.status and key not in new.gates:
                loss = key[0] == "accuracy" or _kinds(new, key) < _kinds(old, key)
                yield Moved(words.gate(key), words.value(figure), words.NO_GATE, new.case, key[0], loss, *key[1:])


def _kinds(seen: Seen, of: GateKey) -> int:
    """How many kinds of Gate this law has on this output."""
    return sum(key[:2] == of[:2] for key in seen.gates)


def _memory(pairs: Pairs) -> Iterator[Moved]:
    for then, now in pairs:
        if then.formula_bytes is None or now.formula_bytes is None:
            continue
        if then.formula_bytes != now.formula_bytes:
            grown = now.formula_bytes > then.formula_bytes
            yield Moved(
                "workspace formula",
                words.bytes_of(then.formula_bytes),
                words.bytes_of(now.formula_bytes),
                now.case,
                "memory",
                grown,
            )
        if then.measured_bytes != now.measured_bytes:
            grown = (now.measured_bytes or 0) > (then.measured_bytes or 0)
            yield Moved(
                "workspace measured",
                words.bytes_of(then.measured_bytes),
                words.bytes_of(now.measured_bytes),
                now.case,
                "memory",
                grown,
            )


def _time(pairs: Pairs) -> Ratio | None:
    """The geometric mean over Cases, with Student's interval; laws of one Case share its sizes, so they give one."""
    logs = []
    for then, now in pairs:
        laws = [law for law, s in then.seconds.items() if s > 0 and now.seconds.get(law, 0) > 0]
        if laws:
            logs.append(fmean(math.log(now.seconds[law]) - math.log(then.seconds[law]) for law in laws))
    logs = [log for log in logs if math.isfinite(log)]
    if len(logs) < FEWEST:
        return None
    half = student_limit(1 - CONFIDENCE, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    middle = fmean(logs)
    ratio, low, high = (math.exp(min(log, LARGEST)) for log in (middle, middle - half, middle + half))
    return Ratio(ratio, low, high, len(logs))


def _lost(before: str, after: str) -> bool:
    """A more severe status is a loss; not judged counts as UNAVAILABLE, an ERROR as FAIL."""
    old, new = (min(Status[word] if word else Status.UNAVAILABLE, Status.FAIL) for word in (before, after))
    return new > old
