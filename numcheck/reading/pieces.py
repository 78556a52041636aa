"""Pieces: a batch read slice by slice, and the outputs that are sums over it.

A partial output's named total is added up over the slices before its own point rounds. A slice therefore leaves its
share alone, and what depends on the whole sum (the point, a worst case's growth) is settled after the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from numcheck.errors import InvalidSpec


@dataclass
class Pieces:
    """What one reading has added up of each partial output.

    names: the partial outputs. before: the sum of the slices read so far. share: what the slice being read gives.
    growing: a worst case's (sum of |terms|, count of terms) so far, whose growth depends on all of them.
    """

    names: frozenset[str]
    before: dict[str, Any] = field(default_factory=dict)
    share: dict[str, Any] = field(default_factory=dict)
    growing: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def whole(self, name: str, value: Any) -> Any:
        """`value` untouched: the point `name` has to wait for the other slices.

        Raises InvalidSpec unless it is what the total of that name gave, since anything else is no sum over the batch.
        """
        if value is not self.share.get(name):
            raise InvalidSpec(
                f"the partial output {name!r} has to be what read.total, read.matmul or read.scatter of that name "
                "gives, with nothing but read.at of that name behind it; put signs and factors into the terms"
            )
        return value

    def add(self, name: str, value: Any, join: Callable[[Any, Any], Any]) -> None:
        """Add this slice's share of the output `name`."""
        self.whole(name, value)
        self.before[name] = join(self.before[name], value) if name in self.before else value
        del self.share[name]

    def grow(self, name: str, size: Any, count: Any) -> None:
        """Count this slice's terms towards the worst case of the output `name`."""
        sizes, counts = self.growing.get(name, (0.0, 0))
        self.growing[name] = (sizes + size, counts + count)
