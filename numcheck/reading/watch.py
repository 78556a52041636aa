"""Watch: which sums an oracle makes without naming them.

A sum that goes through `read.total`, `read.matmul` or `read.scatter` has a declared tree, so its error can be drawn.
A plain `x.sum()` or `a @ b` has not; its worst case is known (Ball), its spread is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.overrides import TorchFunctionMode

from numcheck.oracle import Oracle
from numcheck.reading.kinds import Truth

SUMS = frozenset(
    {
        "sum",
        "mean",
        "matmul",
        "mm",
        "bmm",
        "mv",
        "dot",
        "einsum",
        "tensordot",
        "linear",
        "softmax",
        "log_softmax",
        "logsumexp",
        "cumsum",
        "norm",
        "var",
        "std",
        "index_add",
        "index_put",
        "scatter_add",
        "scatter_reduce",
    }
)


class _Watched(Truth):
    """Truth that knows when a sum is its own."""

    def __init__(self) -> None:
        self.adding = False

    def total(self, *args: Any, **kwargs: Any) -> Any:
        with self._named():
            return super().total(*args, **kwargs)

    def matmul(self, *args: Any, **kwargs: Any) -> Any:
        with self._named():
            return super().matmul(*args, **kwargs)

    def scatter(self, *args: Any, **kwargs: Any) -> Any:
        with self._named():
            return super().scatter(*args, **kwargs)

    @contextmanager
    def _named(self) -> Iterator[None]:
        self.adding = True
        try:
            yield
        finally:
            self.adding = False


class _Watching(TorchFunctionMode):
    def __init__(self, reading: _Watched) -> None:
        super().__init__()
        self.reading, self.seen = reading, set[str]()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.__name__.strip("_").removeprefix("r")
        if name in SUMS and not self.reading.adding:
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def unnamed(oracle: Oracle, exact: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the summing functions that the oracle's forward and VJP call outside the reading's named sums."""
    reading = _Watched()
    with _Watching(reading) as watching:
        outputs = oracle.forward(reading, **oracle.for_forward(exact))
        if oracle.vjp is not None and oracle.gradients:
            oracle.vjp(reading, **oracle.for_vjp(exact, outputs))
    return tuple(sorted(watching.seen))
