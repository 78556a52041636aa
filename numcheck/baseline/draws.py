"""Draws: what of a drawn Case is counted, since it matters that the draws still come to every value."""

from __future__ import annotations

from collections.abc import Iterator

from numcheck.case import Case

# A size is counted on either side of each of these: whether the draws still come to large ones, and to small ones.
BOUNDS = (1, 8, 64, 512, 4096, 32_768)
# Between what is counted and the bound that it is counted by.
BY = "/"


def traits(case: Case) -> Iterator[tuple[str, str]]:
    """What and its value: dtype, regime, layout, offset, each size by each bound, facts that are words or flags."""
    yield from (("dtype", case.dtype), ("regime", case.regime), ("layout", case.layout), ("offset", str(case.offset)))
    for name, size in case.sizes:
        for bound in BOUNDS:
            yield f"size {name}{BY}{bound}", f"{bound} and more" if size >= bound else f"below {bound}"
    yield from ((f"fact {name}", str(value)) for name, value in case.facts if isinstance(value, bool | str))
