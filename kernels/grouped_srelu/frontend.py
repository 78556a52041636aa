"""The installed cuDNN front-end: which wrappers it has, what they take, and what to do when determinism is requested.

Asked is the function, never its version: a development build called itself 1.28.0 eleven days before `deterministic`
came in, and passing the argument to it raised TypeError in the backward. The argument goes in as True and only where
the signature has it; False would overrule torch's flag, and any value is a TypeError where it is not known. That a
signature has it does not mean that every combination is supported: those raise NotImplementedError when called.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from numcheck import Available, Capability, Unavailable
from numcheck.capability import Device, Probe
from numcheck.determinism import Request, require

Wrapper = Callable[..., Any]

PACKAGE = "nvidia-cudnn-frontend"
KEYWORD = "deterministic"
# cuDNN's grouped GEMM kernels are written for compute capability 10.0 and later.
SM100 = 10


def wrapper(name: str) -> Wrapper:
    """The front-end's function called `name`. Raises ImportError where it is not there or cannot be imported."""
    import cudnn

    try:
        # Attributes of the package import their kernels when they are first asked for.
        function = getattr(cudnn, name)
    except AttributeError as error:
        raise ImportError(f"the installed {PACKAGE} has no {name}; upgrade it") from error
    if not callable(function):
        raise ImportError(f"cudnn.{name} of the installed {PACKAGE} is {function!r}, not a function")
    return function  # type: ignore[no-any-return]


def takes(function: Wrapper, keyword: str = KEYWORD) -> bool:
    """Whether the function itself names that keyword; one that takes any keyword may drop it, so that says nothing."""
    try:
        return keyword in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def probe(name: str) -> Probe:
    """The probe of a wrapper: an SM100 GPU first, then the function."""

    def probed(device: Device) -> Capability:
        missing = _no_device(device)
        if missing:
            return Unavailable(missing, needs="sm100")
        try:
            wrapper(name)
        except ImportError as error:
            return Unavailable(f"{name} cannot be had: {error}", needs=PACKAGE)
        return Available()

    return probed


def _no_device(device: Device) -> str:
    wants = "cuDNN's grouped GEMM kernels need compute capability 10.0 (SM100) or later"
    if device == "cpu":
        return f"{wants}; this run is on the CPU"
    if not torch.cuda.is_available():
        return f"{wants}; no CUDA device is visible to torch"
    major, minor = torch.cuda.get_device_capability()
    return "" if major >= SM100 else f"{wants}; this GPU has {major}.{minor}"


def call(
    kernel: str, function: Wrapper, arguments: dict[str, Any], request: Request, *, upgrade: str, unsupported: str
) -> Any:
    """function(**arguments), with deterministic=True where it is requested and taken.

    request: who asks, nobody where no sum of this call is shared between programs. upgrade: the remedy where the
    function does not take the keyword; unsupported: where it does, but not for this call.
    Raises NotDeterministic where a request cannot be honoured; a soft one warns, and the call goes on without.
    """
    if not request:
        return function(**arguments)
    if not takes(function):
        require(kernel, request, remedy=upgrade)
        return function(**arguments)
    try:
        return function(**arguments, **{KEYWORD: True})
    except NotImplementedError as error:
        if KEYWORD not in str(error):
            raise
        require(kernel, request, remedy=f"{unsupported} ({PACKAGE} says: {error})")
    return function(**arguments)
