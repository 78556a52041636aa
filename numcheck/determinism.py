"""Determinism requests: the union of a framework's own flag and torch's, honoured or refused loudly.

The one place that reads them on behalf of kernels. A kernel asks `requested(...)` which path to take, or calls
`require(...)` where it has no repeatable one. Either knob asks; neither vetoes the other (Transformer Engine:
NVTE_ALLOW_NONDETERMINISTIC_ALGO=0 asks, and its absence or 1 does not overrule torch's flag).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

from numcheck.errors import NotDeterministic

TORCH = "torch.use_deterministic_algorithms(True)"


@dataclass(frozen=True)
class Flag:
    """A framework's environment variable, and the values (in any case) with which it asks for determinism."""

    name: str
    asks: tuple[str, ...] = ("1", "true", "on", "yes")


NVTE = Flag("NVTE_ALLOW_NONDETERMINISTIC_ALGO", asks=("0",))


@dataclass(frozen=True)
class Request:
    """Who asks for determinism; empty `by`: nobody. soft: torch's flag alone, with warn_only."""

    by: tuple[str, ...] = ()
    soft: bool = False

    def __bool__(self) -> bool:
        return bool(self.by)


def requested(
    flag: Flag | str | None = None, *, explicit: bool | None = None, environ: Mapping[str, str] | None = None
) -> Request:
    """Whether anybody asks for determinism now, and who.

    flag: the framework's own, if it has one (a bare name asks with 1, true, on or yes). explicit: the callable's own
    `deterministic=` argument; False or None does not veto the others. environ: where the flag is read; os.environ.
    Read at each call, so that a flag set after import counts.
    """
    by = ["deterministic=True"] if explicit else []
    if flag is not None:
        own = Flag(flag) if isinstance(flag, str) else flag
        value = (os.environ if environ is None else environ).get(own.name)
        if value is not None and value.strip().lower() in own.asks:
            by.append(f"{own.name}={value}")
    by_torch, warn_only = _torch()
    soft = by_torch and warn_only and not by
    if by_torch:
        by.append(TORCH)
    return Request(tuple(by), soft)


def require(kernel: str, request: Request, *, remedy: str) -> None:
    """What a kernel without a repeatable path calls: nothing where nobody asks.

    Raises NotDeterministic naming who asked and the remedy (the kernel to use instead, or the flag to take back).
    Torch's flag with warn_only warns instead, as torch's own operators do.
    """
    if not request:
        return
    message = f"{kernel} gives other bits from run to run, and {' and '.join(request.by)} asks for the same: {remedy}"
    if request.soft:
        warnings.warn(message, UserWarning, stacklevel=2)
        return
    raise NotDeterministic(message)


def _torch() -> tuple[bool, bool]:
    """Torch's flag and its warn_only."""
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
