"""Trials: the laws and Cases that a broken kernel is put to, in the order in which they are likely to catch it."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from numcheck.case import Case
from numcheck.draw import cases as strategy
from numcheck.draw import grid, search
from numcheck.laws.law import Law
from numcheck.profile import Profile
from numcheck.spec import KernelSpec

# What a law costs on a small interpreted Case, in units of 20 ms (measured with mhc_post.triton_split_ordered), so that
# the cheap ones come first; a Case whose largest tensor has so many elements costs twice as much as a tiny one.
PRICES = {
    "memory": 1.0,
    "cancellation": 1.0,
    "accuracy": 2.0,
    "edges": 2.5,
    "evidence": 2.5,
    "bitwise": 6.0,
    "invariance": 14.0,
}
DEAR, DOUBLING = 14.0, 4096
# Laws below this price are asked of three Cases where a written reason is checked again, the others of one.
CHEAP = 5.0
# The law that is likely to catch what an operator does comes as if it cost a tenth.
LIKELY = {
    "atomic-to-store": "bitwise",
    "ignore-program": "edges",
    "unset-memory": "edges",
    "drop-store": "edges",
    "drop-mask": "edges",
    "drop-check": "edges",
    "opposite": "edges",
    "swap-strides": "accuracy",
    "drop-upcast": "accuracy",
    "narrow-sum": "accuracy",
    "drop-width": "bitwise",
}
DISCOUNT = 0.1
# A mistake in source shows in small Cases; larger ones are left to whoever asks for them with --largest. What counts is
# the largest tensor: a problem of six sizes has a large product of them where every tensor is small. A law that runs a
# kernel dozens of times is asked of the smaller of these alone: by MOST, invariance up to 585 elements.
LARGEST = 2**13
MOST = 16.0
# Drawn Cases that a mutant is put to beside the named ones, fewer than a kernel is: a survivor meets all of them.
DRAWN = 4


@dataclass(frozen=True)
class Trial:
    """One law and one Case, whose largest tensor has so many elements."""

    law: Law
    case: Case
    elements: int

    @property
    def key(self) -> tuple[str, Case]:
        """What tells it from others: the law's name and the Case."""
        return self.law.name, self.case

    def price(self, operator: str = "") -> float:
        """What it costs, in no unit; less where the law is likely to catch what `operator` does."""
        price = PRICES.get(self.law.name, DEAR) * (1.0 + self.elements / DOUBLING)
        return price * (DISCOUNT if LIKELY.get(operator) == self.law.name else 1.0)


def trials(spec: KernelSpec, laws: Iterable[Law], profile: Profile, *, drawn: int, largest: float) -> tuple[Trial, ...]:
    """All that `spec` can be put to: each law's own Cases, the named grid, and `drawn` Cases that Hypothesis draws.

    No Case has a tensor of more than `largest` elements. The same on every run and in every process.
    """
    found: dict[tuple[str, Case], Trial] = {}
    for law in laws:
        if law.applies(spec) is None:
            for case in _cases(spec, law, profile, drawn, largest):
                found.setdefault((law.name, case), Trial(law, case, elements(spec, case)))
    return tuple(found.values())


def elements(spec: KernelSpec, case: Case) -> int:
    """Elements of the largest tensor that the problem has in `case`; 0 where the Case is to be refused."""
    oracle = spec.oracle
    if spec.illegal(case) is not None:
        return 0
    return max((math.prod(t.shape(case)) for t in (*oracle.inputs_for(case), *oracle.results_for(case))), default=0)


def affordable(found: Sequence[Trial]) -> tuple[Trial, ...]:
    """Those of at most the price MOST, and of each law its cheapest whatever that costs."""
    cheapest: dict[str, Trial] = {}
    for trial in sorted(found, key=Trial.price, reverse=True):
        cheapest[trial.law.name] = trial
    return tuple(trial for trial in found if trial.price() <= MOST or cheapest[trial.law.name] is trial)


def _cases(spec: KernelSpec, law: Law, profile: Profile, drawn: int, largest: float) -> Iterator[Case]:
    yield from (case for case in law.cases(spec) if elements(spec, case) <= largest)
    if law.drawn:
        yield from (case for case in grid(spec, profile) if elements(spec, case) <= largest)
        yield from draws(spec, drawn, int(min(largest, profile.largest)))


def draws(spec: KernelSpec, count: int, largest: int) -> tuple[Case, ...]:
    """`count` Cases as Hypothesis draws them for this spec, the same on every run."""
    seen: dict[Case, None] = {}

    def collect(case: Case) -> bool:
        seen.setdefault(case)
        return False

    if count:
        seed = int.from_bytes(hashlib.sha256(spec.name.encode()).digest()[:4], "big")
        search(strategy(spec, largest), collect, count, seed, shrink=False)
    return tuple(seen)


def ordered(found: Sequence[Trial], operator: str = "", first: Sequence[tuple[str, Case]] = ()) -> tuple[Trial, ...]:
    """The trials with those of the keys `first` in front, the others by price."""
    known = {trial.key: trial for trial in found}
    front = {key: known[key] for key in first if key in known}
    rest = sorted((t for t in found if t.key not in front), key=functools.partial(Trial.price, operator=operator))
    return (*front.values(), *rest)


def reminders(order: Sequence[Trial], first: Sequence[tuple[str, Case]] = ()) -> tuple[Trial, ...]:
    """Those of the keys `first`; of each law its dearest, and of a cheap one the cheapest and the middle too.

    A written reason is put to these on every run; to all of them under the deep profile.
    """
    by_law: dict[str, list[Trial]] = {}
    for trial in sorted(order, key=Trial.price):
        by_law.setdefault(trial.law.name, []).append(trial)
    chosen = set(first)
    for name, found in by_law.items():
        places = (0, len(found) // 2, -1) if PRICES.get(name, DEAR) < CHEAP else (-1,)
        chosen |= {found[place].key for place in places}
    return tuple(trial for trial in order if trial.key in chosen)
