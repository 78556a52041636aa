"""A Case's key is the hash of its JSON, whatever its sizes and facts are called."""

from __future__ import annotations

import hashlib
import json
import random

from numcheck.case import DTYPES, LAYOUTS, REGIMES, Case, Fact

NAMES = ("S", "D_v", 'é"x', "a\n", "\ud800")
FACTS: tuple[Fact, ...] = (True, 0, -3, 1.5, float("nan"), float("inf"), -0.0, 1e300, "x", 'é"\\', 10**40)


def test_a_key_is_the_hash_of_the_case_as_json() -> None:
    draw = random.Random(6)
    for seed in range(300):
        facts = {draw.choice(NAMES): draw.choice(FACTS) for _ in range(draw.randrange(4))}
        sizes = {draw.choice(NAMES): draw.randrange(10 ** draw.randrange(1, 30)) for _ in range(draw.randrange(4))}
        plain = Case(tuple(sizes.items()), facts=tuple(facts.items()), seed=seed)
        case = plain.but(dtype=draw.choice(DTYPES), regime=draw.choice(REGIMES), layout=draw.choice(LAYOUTS), offset=3)
        text = json.dumps(case.to_json(), sort_keys=True, separators=(",", ":"))
        assert case.key == hashlib.sha256(text.encode()).hexdigest()[:12]
