"""Triton's interpreter, repaired: everything of numcheck that touches it is in this package.

`enable()` chooses the interpreter and must run before any kernel is imported. `session(...)` runs kernels in it under a
given Order with bf16 repaired, memory watched and readers and writers measured. `probe()` says operation by operation
what this version of Triton gets right by itself, what is repaired and what is refused.

Green here is not green on a device: it has no FMA contraction, sums by numpy and skips barriers.
Importing this package loads neither torch nor Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from numcheck.interpreter.switch import active, enable
from numcheck.order import Order

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.interpreter.probes import Probe
    from numcheck.interpreter.sessions import Session

__all__ = ["active", "enable", "probe", "session"]


def session(
    order: Order | None = None,
    measure: bool = False,
    *,
    check_overflow: bool = False,
    pins: Sequence[tuple[Any, int]] = (),
    silent: str = "",
    given: Iterable[Tensor] = (),
) -> AbstractContextManager[Session]:
    """Run interpreted kernels inside: see `numcheck.interpreter.sessions.session`."""
    from numcheck.interpreter import sessions

    return sessions.session(order, measure, check_overflow=check_overflow, pins=pins, silent=silent, given=given)


def probe() -> tuple[Probe, ...]:
    """What the interpreter gets right, operation by operation: see `numcheck.interpreter.probes.probe`."""
    from numcheck.interpreter import probes

    return probes.probe()
