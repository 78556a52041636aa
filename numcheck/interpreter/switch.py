"""Choosing the interpreter: before Triton is imported, since its own helpers (tl.sum) are jitted at import."""

from __future__ import annotations

import os
import sys

from numcheck.errors import Refused

SWITCH = "TRITON_INTERPRET"
_ON = ("1", "true", "on", "yes", "y")


def enable() -> None:
    """Choose the interpreter for every kernel imported from now on. For doors only.

    Raises Refused where Triton is already loaded without it: its language helpers are compiled ones by then.
    """
    if "triton" in sys.modules and not _helpers_interpreted():
        raise Refused(
            f"Triton was imported before the interpreter was chosen; set {SWITCH}=1 in the environment, or call "
            "numcheck.interpreter.enable() before anything imports triton"
        )
    os.environ[SWITCH] = "1"


def asked() -> bool:
    """Whether the environment asks for the interpreter, as Triton reads it."""
    return os.environ.get(SWITCH, "").lower() in _ON


def active() -> bool:
    """Whether a kernel imported now would run in the interpreter."""
    return asked() and ("triton" not in sys.modules or _helpers_interpreted())


def chosen() -> str | None:
    """What the environment says of the interpreter; None where it says nothing."""
    return os.environ.get(SWITCH)


def choose(value: str | None) -> None:
    """Put back what `chosen` said."""
    os.environ.pop(SWITCH, None)
    if value is not None:
        os.environ[SWITCH] = value


def _helpers_interpreted() -> bool:
    standard = sys.modules.get("triton.language.standard")
    return standard is None or type(standard.sum).__name__ == "InterpretedFunction"
