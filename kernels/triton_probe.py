"""Where a Triton kernel can run: the one probe that dispatch, skip and report share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from numcheck import Available, Capability, Unavailable
from numcheck.capability import Device, Probe


def triton_probe(kernel: Any) -> Probe:
    """The probe of a Triton kernel: a GPU for "cuda", Triton's interpreter for "cpu".

    A kernel is compiled or interpreted once and for all where it is decorated, so it is the kernel that is asked,
    not the environment.
    """

    def probe(device: Device) -> Capability:
        from triton.runtime.jit import JITFunction

        compiled = isinstance(_jitted(kernel), JITFunction)
        if device == "cuda" and not torch.cuda.is_available():
            return Unavailable("no CUDA device is visible to torch", needs="gpu")
        if device == "cuda" and not compiled:
            return Unavailable("the kernel is interpreted: TRITON_INTERPRET was set when it was imported", needs="gpu")
        if device == "cpu" and compiled:
            return Unavailable("on a CPU it runs in Triton's interpreter: set TRITON_INTERPRET=1 before its import")
        return Available()

    return probe


def device_only(honest: Probe) -> Probe:
    """The probe of a declared fault that streams or graphs alone bring to light: as `honest`, and on a GPU alone."""

    def probe(device: Device) -> Capability:
        if device == "cpu":
            return Unavailable("a CPU has neither streams nor graphs, on which this is wrong", needs="gpu")
        return honest(device)

    return probe


def raising(error: ImportError) -> Callable[..., dict[str, Tensor]]:
    """The forward or vjp of a spec whose kernels could not be imported: whoever calls it hears why."""

    def absent(**given: Any) -> dict[str, Tensor]:
        raise error

    return absent


def missing(package: str, error: ImportError) -> Probe:
    """The probe of a spec whose kernels could not be imported."""

    def probe(device: Device) -> Capability:
        return Unavailable(f"{package} cannot be imported: {error}", needs=package)

    return probe


def _jitted(kernel: Any) -> Any:
    """The jitted function below autotuners and heuristics, each of which keeps what it wraps as `fn`."""
    while hasattr(kernel, "configs") or hasattr(kernel, "values"):
        kernel = kernel.fn
    return kernel
