"""Probes: what the interpreter gets right, operation by operation, by behaviour and not by version.

Each probe runs a small kernel with and without the repairs and compares its bits with torch's (or with exact rational
arithmetic where torch itself rounds twice). Values cover ties, carries, NaN, infinities, zeros of both signs,
subnormals and overflow.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Literal

import numpy as np

from numcheck.errors import Refused
from numcheck.interpreter import sessions
from numcheck.interpreter.questions import Question, questions
from numcheck.interpreter.switch import active

Status = Literal["ok", "repaired", "refused"]
# Characters of an upstream error kept in a note.
NOTE = 160


@dataclass(frozen=True)
class Probe:
    """One operation on one dtype: "ok" as it is, "repaired", or "refused" (a kernel that uses it gets an error)."""

    op: str
    dtype: str
    status: Status
    note: str = ""

    def to_json(self) -> dict[str, str]:
        """A plain JSON object."""
        return {"op": self.op, "dtype": self.dtype, "status": self.status, "note": self.note}


def probe() -> tuple[Probe, ...]:
    """What this Triton's interpreter gets right, is repaired, or is refused; about a second.

    Raises Refused where the interpreter is not active.
    """
    if not active():
        raise Refused("the interpreter is not chosen, so there is nothing to probe; call numcheck.interpreter.enable()")
    return tuple(_judged(question) for question in questions())


@functools.cache
def broken() -> tuple[str, ...]:
    """Operations that are wrong even with the repairs, which no version numcheck knows has; asked once a process."""
    return tuple(f"{q.op} {q.dtype}: {problem}" for q in questions() if (problem := _repaired(q)[1]))


def _judged(question: Question) -> Probe:
    refused, problem = _repaired(question)
    if refused or problem:
        return Probe(question.op, question.dtype, "refused", refused or problem)
    raw = _raw(question)
    return Probe(question.op, question.dtype, "repaired" if raw else "ok", raw)


def _repaired(question: Question) -> tuple[str, str]:
    """Why it is refused, and how it differs, under the repairs."""
    try:
        with sessions.unchecked(question.order):
            return "", question.differs()
    except Exception as error:
        cause = error.__cause__ or error
        return (str(cause), "") if isinstance(cause, Refused) else ("", f"{type(cause).__name__}: {cause}")


def _raw(question: Question) -> str:
    """How it differs without the repairs."""
    try:
        with np.errstate(all="ignore"):
            return question.differs()
    except Exception as error:
        cause = error.__cause__ or error
        return f"{type(cause).__name__}: {str(cause)[:NOTE]}"
