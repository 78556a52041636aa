"""The order in which an interpreted launch's programs run, by shadowing the builder's grid methods."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from numcheck.interpreter.patch import Patches
from numcheck.order import ENUMERATED, Order


class Programs:
    """Where a run is: `launch` counts launches, `current` is the linear id of the program that runs."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.launch = -1
        self.current = 0
        self.grid: tuple[int, int, int] | None = None
        self._permutation: list[int] = []
        self._lanes: dict[tuple[int, int], npt.NDArray[np.int64]] = {}

    def forget(self) -> None:
        """A launch is about to be made: its grid is not known yet."""
        self.grid = None

    def install(self, builder: Any, patches: Patches, started: Any) -> None:
        """Permute programs from now on; `started()` is called at the start of each program."""
        set_idx, set_dim = builder.set_grid_idx, builder.set_grid_dim

        def set_grid_dim(x: int, y: int, z: int) -> None:
            set_dim(x, y, z)
            self.launch += 1
            self.grid = (int(x), int(y), int(z))
            self._permutation = self.order.permutation(math.prod(self.grid), self.launch)

        def set_grid_idx(x: int, y: int, z: int) -> None:
            _, ny, nz = builder.grid_dim
            self.current = self._permutation[(x * ny + y) * nz + z]
            set_idx(self.current // (ny * nz), self.current // nz % ny, self.current % nz)
            started()

        patches.set(builder, "set_grid_dim", set_grid_dim)
        patches.set(builder, "set_grid_idx", set_grid_idx)

    def lanes(self, n: int) -> npt.NDArray[np.int64] | None:
        """In which order the `n` lanes of one atomic reach memory; None: as they are."""
        if self.order.kind == "identity" or n < 2:
            return None
        key = (n, self.launch)
        if key not in self._lanes:
            order = self.order
            if order.kind == "exact" and n > ENUMERATED:
                # The first permutations of many lanes in lexicographic order hardly move any.
                order = Order("shuffled", order.seed)
            self._lanes[key] = np.asarray(order.permutation(n, self.launch), dtype=np.int64)
        return self._lanes[key]
