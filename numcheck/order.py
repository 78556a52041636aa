"""Order: in which order a launch's programs run. A pure function of grid, launch and seed."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Order:
    """An order of programs (and of the lanes of one atomic), the same wherever it is asked for.

    kind: "identity", "reversed", "shuffled" by `seed`, or "exact": the `seed`-th permutation of range(n) in
    lexicographic order, for the enumeration of few programs.
    """

    kind: Literal["identity", "reversed", "shuffled", "exact"] = "identity"
    seed: int = 0

    def permutation(self, n: int, launch: int = 0) -> list[int]:
        """The order of `n` programs in the `launch`-th launch of a run."""
        indices = list(range(n))
        if self.kind == "reversed":
            return indices[::-1]
        if self.kind == "shuffled":
            random.Random(f"{self.seed}/{launch}/{n}").shuffle(indices)
        if self.kind == "exact":
            return _nth_permutation(indices, self.seed)
        return indices

    def __str__(self) -> str:
        return self.kind if self.kind in ("identity", "reversed") else f"{self.kind}:{self.seed}"


def orders(case_key: str, programs: int, count: int) -> tuple[Order, ...]:
    """Up to `count` orders to try beside the identity, seeded from the Case's hash.

    Few programs (up to four) are enumerated, leaving out those that only swap the first two addends,
    which commute; more are reversed, then shuffled.
    """
    if programs <= 1:
        return ()
    if programs <= ENUMERATED:
        distinct = [
            Order("exact", k) for k, p in enumerate(itertools.permutations(range(programs))) if k and p[0] < p[1]
        ]
        # The reversed order (or its twin with the first two swapped) first: it moves every addend.
        return tuple(reversed(distinct))[:count]
    base = int(case_key, 16)
    return (Order("reversed"), *(Order("shuffled", (base + k) % 2**31) for k in range(count - 1)))[:count]


# Four programs have 12 distinct orders of addition; five would have 60, more than any profile repeats.
ENUMERATED = 4


def _nth_permutation(items: list[int], index: int) -> list[int]:
    pool, result = list(items), []
    block = math.factorial(len(items))
    for position in range(len(items), 0, -1):
        block //= position
        step, index = divmod(index, block)
        result.append(pool.pop(step % len(pool)))
    return result
