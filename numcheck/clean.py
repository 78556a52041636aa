"""Clean Cases: drawn from a problem's case space with sizes log-uniform, so that every size is looked at."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from numcheck.case import Case
from numcheck.errors import InvalidSpec

if TYPE_CHECKING:
    from numcheck.spec import KernelSpec

# Sizes are products over the Case's dims, log-uniform up to the first figure, and for large Cases between the two.
SMALL_SIZE, LARGE_SIZE = 1_000, 200_000
# Interpreted kernels cost ten times a torch Case and more, so they get one Case for so many of a torch spec's.
TORCH_SHARE = 8


def clean_case(spec: KernelSpec, rng: random.Random, smallest: int, largest: int) -> Case:
    """A Case that `spec` promises, its sizes' product log-uniform from `smallest` to `largest` where dims allow.

    Raises InvalidSpec where a hundred draws in a row are outside the promise.
    """
    space = spec.oracle.space
    for _ in range(100):
        facts = {name: rng.choice(values) for name, values in space.facts.items()}
        case = Case.of(
            dtype=rng.choice(spec.dtypes),
            regime=rng.choice(space.regimes),
            layout=rng.choice(space.layouts),
            offset=rng.choice(space.offsets),
            facts=facts,
            seed=rng.randrange(2**31),
            **_sizes(spec, rng, smallest, largest),
        )
        if spec.illegal(case) is None:
            return case
    raise InvalidSpec(f"spec {spec.name}: none of 100 drawn Cases is inside its promise; see its Contract's `legal`")


def _sizes(spec: KernelSpec, rng: random.Random, smallest: int, largest: int) -> dict[str, int]:
    space = spec.oracle.space
    room = math.exp(rng.uniform(math.log(smallest), math.log(largest)))
    found: dict[str, int] = {}
    names = [*space.choices, *(n for n in space.sizes if n not in space.choices)]
    rng.shuffle(names)
    for position, name in enumerate(names):
        if name in space.choices:
            fitting = [v for v in space.choices[name] if 1 <= v <= room]
            found[name] = rng.choice(fitting) if fitting else max(1, min(space.choices[name]))
        else:
            low, high = space.sizes[name]
            low, high = max(1, low), max(1, low, min(high, int(room)))
            last = position == len(names) - 1
            found[name] = high if last else round(math.exp(rng.uniform(math.log(low), math.log(high))))
        room = max(1.0, room / found[name])
    return {name: found[name] for name in (*space.sizes, *space.choices) if name in found}


def clean_cases(specs: Sequence[KernelSpec], count: int, seed: int, *, large: bool) -> list[tuple[int, Case]]:
    """`count` pairs (index of the spec, Case): the specs take turns, torch specs TORCH_SHARE turns to one."""
    shares = [1 if spec.must_run else TORCH_SHARE for spec in specs]
    turns = [index for index, share in enumerate(shares) for _ in range(share)]
    low, high = (SMALL_SIZE + 1, LARGE_SIZE) if large else (1, SMALL_SIZE)
    found = []
    for k in range(count):
        index = turns[k % len(turns)]
        rng = random.Random(f"{seed}/{'large' if large else 'small'}/{specs[index].name}/{k}")
        found.append((index, clean_case(specs[index], rng, low, high)))
    return found
