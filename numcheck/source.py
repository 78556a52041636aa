"""Source: in which file and line a kernel's functions stand, as its repository knows them."""

from __future__ import annotations

import functools
from pathlib import Path
from types import CodeType

from numcheck.spec import KernelSpec

# Folders of installed code: it is not the change that is reviewed.
INSTALLED = ("site-packages", "dist-packages")


# How the place of a Triton function that must run is named beside "forward" and "vjp".
LAUNCHED = "must run "


def sources(spec: KernelSpec) -> dict[str, str]:
    """ "forward", "vjp" and "must run NAME" -> "kernels/mhc_post/fused.py:41", where that is known.

    Which of several Triton functions makes an output nobody says, so forward and vjp are where they are defined
    themselves, and each function that must run has its own place.
    """
    calls = {"forward": spec.forward, "vjp": spec.vjp}
    found = {name: _place(_code(call)) for name, call in calls.items()}
    for code in (_code(kernel) for kernel in spec.must_run):
        if code is not None:
            found[f"{LAUNCHED}{code.co_name}"] = _place(code)
    return {name: place for name, place in found.items() if place}


def _code(call: object) -> CodeType | None:
    """The code of a function, a partial of one, a decorated one, or what Triton makes of one."""
    seen: set[int] = set()
    while call is not None and id(call) not in seen:
        seen.add(id(call))
        code = getattr(call, "__code__", None)
        wrapped = getattr(call, "__wrapped__", None)
        if wrapped is not None:
            call = wrapped
        elif isinstance(code, CodeType):
            return code
        else:
            call = call.func if isinstance(call, functools.partial) else getattr(call, "fn", None)
    return None


def _place(code: CodeType | None) -> str:
    """ "folder/file.py:41" from the root of the repository that it lies in, or ""."""
    if code is None:
        return ""
    path = Path(code.co_filename)
    root = next((folder for folder in path.parents if (folder / ".git").exists()), None)
    if root is None or not path.is_file() or set(INSTALLED) & set(path.parts):
        return ""
    return f"{path.relative_to(root).as_posix()}:{code.co_firstlineno}"
