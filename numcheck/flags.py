"""Flags: the process-wide settings that a kernel could change for every kernel after it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch

from numcheck.interpreter import switch

# The smallest subnormal: times one it stays, unless the processor flushes subnormals to zero.
_SUBNORMAL = 5e-324


@contextmanager
def kept() -> Iterator[list[str]]:
    """Process-wide settings as they were, afterwards; yields the list that then names those that were changed.

    Random generators are left alone: put back, they would hide a kernel that draws from them.
    """
    changed: list[str] = []
    before = {name: read() for name, (read, _) in _SETTINGS.items()}
    leave = os._exit
    os._exit = _refusing(leave)  # type: ignore[assignment]
    try:
        yield changed
    finally:
        os._exit = leave
        for name, (read, write) in _SETTINGS.items():
            if (now := read()) != before[name]:
                changed.append(f"the kernel changed {name} from {before[name]} to {now}")
                write(before[name])


def _refusing(leave: Callable[[int], NoReturn]) -> Callable[[int], NoReturn]:
    """os._exit(0) would end the whole run at once, and well. A child that the kernel forks may leave that way."""
    own = os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != own:
            leave(status)
        raise SystemExit(f"os._exit({status})")

    return refuse


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)


def _device(wanted: torch.device) -> None:
    # A default device is a mode that every call goes through; the CPU is what there is without one.
    torch.set_default_device(None if wanted.type == "cpu" else wanted)


def _autocast(kind: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: torch.is_autocast_enabled(kind), lambda on: torch.set_autocast_enabled(kind, on)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # removed meanwhile; there is nowhere to go back to
        return ""


_SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    # First: under another default device, the others' own tensors would be made there.
    "the default device": (torch.get_default_device, _device),
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the float32 matmul precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "torch's determinism mode": (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    "torch's fill of uninitialized memory": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast on the CPU": _autocast("cpu"),
    "autocast on CUDA": _autocast("cuda"),
    "the flushing of subnormals to zero": (lambda: _SUBNORMAL * 1.0 == 0.0, torch.set_flush_denormal),
    "cuDNN's use": _attribute(torch.backends.cudnn, "enabled"),
    "cuDNN's benchmarking": _attribute(torch.backends.cudnn, "benchmark"),
    "cuDNN's determinism": _attribute(torch.backends.cudnn, "deterministic"),
    "oneDNN's use": _attribute(torch.backends.mkldnn, "enabled"),
    "the recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "the current folder": (_folder, lambda path: os.chdir(path) if path else None),
    "the choice of Triton's interpreter": (switch.chosen, switch.choose),
}
