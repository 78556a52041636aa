"""What a check could have shown then and could not now: gates without teeth, rungs not climbed, draws gone elsewhere.

None of it shows in a status: a head of which every gate is vacuous passes as its base did.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from numcheck.baseline import Certified, Draws, Figure, GateKey, Known, Seen
from numcheck.baseline.draws import BY
from numcheck.case import Case
from numcheck.compare import words
from numcheck.compare.coverage import drawn, skip
from numcheck.compare.kinds import Drawing, Moved
from numcheck.verdict import Status

# Statuses of a Case that end a rung early, or leave it out: what it would have added was known by then.
TOLD = {Status.ORDER_DEPENDENT.name, Status.FAIL.name, Status.ERROR.name}
# A rung whose number of runs the machine's cores decide, not the profile.
BY_CORES = ("thread counts",)
# Cases drawn with a value from which on it is missed where the same profile draws the same again: fewer come and go
# with the version of Hypothesis.
FEWEST = 3
# Chances of so few draws of a value, of one law whose draws repeat, and over all laws where each run draws anew: some
# thousand of the latter are compared at once, and none should be told by chance.
LUCK, RARE = 1e-3, 1e-6
# Draws above which the chance is that of so many in the same shares: larger, and soon enough found.
MOST = 10_000
# Certificates from the best: what is not named here says nothing.
CERTIFIED = ("CERTIFIED", "UNCERTIFIED", "FAILED")


def power(
    pairs: Sequence[tuple[Seen, Seen]], then: Known, now: Known, alike: Collection[str], drawing: Drawing
) -> Iterator[Moved]:
    """alike: laws that judged the same Cases on both sides."""
    yield from _toothless(pairs, then, now, alike)
    yield from _rungs(pairs)
    if drawing.alike:
        yield from _draws(then, now, drawing.repeats)
    if drawing.repeats:
        yield from _unrepeated(then, now)


def _toothless(pairs: Iterable[tuple[Seen, Seen]], then: Known, now: Known, alike: Collection[str]) -> Iterator[Moved]:
    """Gates that held and could have failed, and now could not."""
    pooled = {key: figure for key, figure in now.pooled.items() if key[0] in alike}
    yield from _blunt(None, then.pooled, pooled)
    for old, new in pairs:
        yield from _blunt(new.case, old.gates, new.gates)


def _blunt(case: Case | None, then: Mapping[GateKey, Figure], now: Mapping[GateKey, Figure]) -> Iterator[Moved]:
    for key, figure in now.items():
        if figure.vacuous and key in then and not then[key].vacuous and then[key].headroom >= 1:
            yield Moved(words.gate(key), "could have failed", "could not have failed", case, key[0], True, *key[1:])


def _rungs(pairs: Sequence[tuple[Seen, Seen]]) -> Iterator[Moved]:
    """Rungs climbed in fewer of the shared Cases, and those with fewer runs in one.

    Which Cases climb the slow ones is the run's to choose, so they are counted, not matched.
    """
    climbed: Counter[tuple[str, str]] = Counter()
    still: Counter[tuple[str, str]] = Counter()
    for old, new in pairs:
        if old.rungs is None or new.rungs is None:
            continue
        for law in (law for law in old.rungs if law in new.status):
            before, after = old.rungs[law], new.rungs.get(law, {})
            told = TOLD & set(new.outputs.get(law, {}).values())
            still.update((law, rung) for rung, runs in after.items() if runs)
            climbed.update((law, rung) for rung, runs in before.items() if runs and after.get(rung) != 0 and not told)
            if not told and not TOLD & set(old.outputs.get(law, {}).values()):
                yield from _shorter(new, law, before, after)
    for (law, rung), count in climbed.items():
        if still[law, rung] < count:
            now = f"in {words.count(still[law, rung], 'Case')}" if still[law, rung] else "not climbed"
            yield Moved(f"{rung} under {law}", f"climbed in {words.count(count, 'Case')}", now, law=law, loss=True)


def _shorter(seen: Seen, law: str, before: Mapping[str, int], after: Mapping[str, int]) -> Iterator[Moved]:
    for rung, runs in before.items():
        if rung not in BY_CORES and 0 < after.get(rung, 0) < runs:
            now = words.count(after[rung], "run")
            yield Moved(f"{rung} under {law}", words.count(runs, "run"), now, seen.case, law, loss=True)


def _draws(then: Known, now: Known, repeats: bool) -> Iterator[Moved]:
    """Values that the draws came to and no longer come to, or hardly; of laws that held, since a failure ends them."""
    if then.drawn is None or now.drawn is None:
        return
    held = [law for law in then.drawn if law in now.drawn and all(_held(known, law) for known in (then, now))]
    for law in held if repeats else ():
        before, after = ({"dtype": known[law].get("dtype", {})} for known in (then.drawn, now.drawn))
        yield from _missed(f"drawn under {law}", law, before, after, LUCK, FEWEST)
    old, new = (_together(known[law] for law in held) for known in (then.drawn, now.drawn))
    yield from _missed("drawn", "", old, new, RARE, math.inf)


def _unrepeated(then: Known, now: Known) -> Iterator[Moved]:
    """Draws that come again in every run and did not, of laws that held and had time enough.

    Where most of them are others, they are drawn otherwise, by another version of Hypothesis say: that is no fall.
    """
    for law in (law for law in then.laws if _held(now, law) and law not in now.stopped and not skip(now, law)):
        old, new = drawn(then, law), drawn(now, law)
        missing = len(old - new)
        if missing and 2 * len(old & new) >= len(new):
            what = f"drawn Cases under {law}"
            before = f"{words.count(len(old), 'Case')}, the same in every run"
            yield Moved(what, before, f"{len(old) - missing:,} of them", law=law, loss=True)


def _held(known: Known, law: str) -> bool:
    return law in known.laws and Status[known.laws[law]].held


def _together(draws: Iterable[Draws]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for by in draws:
        for what, values in by.items():
            found.setdefault(what, Counter()).update(values)
    return found


def _missed(where: str, law: str, then: Draws, now: Draws, limit: float, fewest: float) -> Iterator[Moved]:
    told: set[str] = set()
    for what in (what for what in then if what in now):
        name = what.partition(BY)[0]
        total, draws = sum(then[what].values()), sum(now[what].values())
        for value, count in then[what].items():
            seen = now[what].get(value, 0)
            gone = not seen and count >= fewest and 2 * draws >= total
            if name not in told and (gone or chance_of_so_few(seen, draws, count, total) <= limit):
                before, after = (f"{k:,} of {words.count(n, 'Case')}" for k, n in ((count, total), (seen, draws)))
                told |= {name} if BY in what else set()
                yield Moved(f"{name} {value} {where}", before, after, law=law, loss=True)


def chance_of_so_few(seen: int, draws: int, count: int, drawn: int) -> float:
    """The chance of at most `seen` in `draws`, where both runs draw alike and have `seen` + `count` together.

    Fisher's exact test, one-sided: hypergeometric.
    """
    seen, draws, count, drawn = (int(n * min(1.0, MOST / (draws + drawn))) for n in (seen, draws, count, drawn))
    both, ways = seen + count, _log_ways(draws + drawn, seen + count)
    least = max(0, both - drawn)
    chances = (_log_ways(draws, k) + _log_ways(drawn, both - k) - ways for k in range(least, seen + 1))
    return sum(math.exp(chance) for chance in chances)


def _log_ways(things: int, chosen: int) -> float:
    return math.lgamma(things + 1) - math.lgamma(chosen + 1) - math.lgamma(things - chosen + 1)


def certificates(
    then: Mapping[str, Certified] | None, now: Mapping[str, Certified] | None, oracles: Collection[str]
) -> Iterator[Moved]:
    """What certifies less of these oracles; a file that was written before certificates were kept knows of none."""
    for oracle in (name for name in then or {} if name in oracles and now is not None):
        old, new = (then or {})[oracle], (now or {}).get(oracle)
        what = f"certificate of the oracle {oracle}"
        if new is None:
            yield Moved(what, old.status, "none", loss=True)
            continue
        if old.status != new.status:
            yield Moved(what, old.status, new.status, loss=_rank(new) > _rank(old))
        if old.vjp != new.vjp:
            yield Moved(f"{what}: gradients", old.vjp or "unknown", new.vjp or "unknown", loss=old.vjp == "analytic")
        if new.limit > old.limit or (math.isnan(new.limit) and not math.isnan(old.limit)):
            yield Moved(f"{what}: limit", f"{old.limit:.3g}", f"{new.limit:.3g}", loss=True)
        if new.cases < old.cases:
            yield Moved(what, words.count(old.cases, "Case"), words.count(new.cases, "Case"), loss=True)
        if missing := ", ".join(name for name in old.outputs if name not in new.outputs):
            yield Moved(f"{what}: {missing}", "certified", "not certified", loss=True)


def _rank(found: Certified) -> int:
    return CERTIFIED.index(found.status) if found.status in CERTIFIED else len(CERTIFIED)
