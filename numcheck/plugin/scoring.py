"""Scoring as pytest tests: a declared fault that its law must catch, a function whose source mutants must die."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from numcheck.errors import InvalidSpec
from numcheck.suspect import Score, Suspect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numcheck.capability import Device
    from numcheck.plugin.session import Session
    from numcheck.score import Scorer
    from numcheck.spec import Fault, KernelSpec


def mutable(spec: KernelSpec, device: Device) -> tuple[str, ...]:
    """The functions of a kernel that can be mutated here, each once; none where it cannot run or has no source."""
    from numcheck.capability import Unavailable
    from numcheck.mutate import functions

    try:
        return () if isinstance(spec.available(device), Unavailable) else functions(spec)
    except InvalidSpec:
        return ()


def caught(session: Session, fault: Fault) -> None:
    """Fail the running test where the law that a declared fault names does not catch it."""
    _judge(session, [Suspect(fault.honest, fault=fault)])


def killed(session: Session, spec: KernelSpec, function: str = "") -> None:
    """Fail the running test where a source mutant of `spec` survives unexplained, or a written reason is refuted.

    A reason that proves nothing (a device would show it, the mistake is open) explains a survivor, which it stays in
    the score.
    """
    from numcheck.suspect import suspects

    if session.device == "cuda":
        # A mutant may leave the device in error, and every later test of this process with it.
        pytest.skip(
            "UNAVAILABLE: mutants run on a device in processes of their own; see `numcheck faults --device cuda`"
        )
    found, notes = suspects([spec], device=session.device, keyword=f"{function}:" if function else "")
    chosen = [s for s in found if not function or s.id.partition(":")[0] == function]
    stale = [note for note in notes if function and f" {function}:" in note]
    if stale:
        pytest.fail("\n".join(stale), pytrace=False)
    if not chosen:
        pytest.skip(
            f"{spec.name} has no mutant of {function or 'any function'}: {'; '.join(notes) or 'no operator fits'}"
        )
    _judge(session, chosen)


def _judge(session: Session, suspects: Sequence[Suspect]) -> None:
    scores = [_scored(session, suspect) for suspect in suspects]
    alive = [score for score in scores if _alive(score)]
    if alive:
        pytest.fail("\n".join(map(told, alive)), pytrace=False)
    if all(score.status == "UNAVAILABLE" for score in scores):
        pytest.skip(f"UNAVAILABLE: {scores[0].why}")


def _alive(score: Score) -> bool:
    # A mutant that hangs proves nothing of the laws; a declared fault that does is not caught by the law that it names.
    if score.status == "HUNG":
        return score.suspect.fault is not None
    return score.status == "REFUTED" or (score.status == "SURVIVED" and score.suspect.reason is None)


def _scored(session: Session, suspect: Suspect) -> Score:
    score = _scorer(session).score(suspect)
    if session.writer is not None and suspect.honest is not None:
        session.describe(session.writer, suspect.honest, suspect.honest.origin)
        session.writer.fault(score.to_json())
    return score


def _scorer(session: Session) -> Scorer:
    from numcheck.score import Scorer

    if session.scorer is None:
        session.scorer = Scorer(session.profile.on(session.device), known=lambda spec: _beside(spec.origin))
    return session.scorer


@functools.lru_cache
def _beside(origin: str) -> tuple[KernelSpec, ...] | None:
    """The kernels that come from the same place; None for those that were not loaded from anywhere."""
    from numcheck.load import load

    return load(origin) if origin else None


def told(score: Score) -> str:
    """A survivor in words: what is wrong with it, what it was put to, and how to put it to that again."""
    suspect = score.suspect
    word = "SURVIVOR" if score.status == "SURVIVED" else score.status
    tried = ", ".join(f"{law} {count}" for law, count in score.tried.items()) or "nothing"
    if suspect.fault is not None:
        head = f"{word}: {suspect.id} is broken ({suspect.fault.doc}), and {suspect.fault.law} must catch it"
        return f"{head}\n  {score.why}\n  tried: {tried}"
    assert suspect.mutant is not None
    m = suspect.mutant
    source = f"--specs {suspect.honest.origin} " if suspect.honest is not None and suspect.honest.origin else ""
    lines = (
        f"{word}: {suspect.id} of {suspect.spec}",
        f"  {m.file}:{m.line}: {m.text}",
        f"  - {m.before}",
        f"  + {m.after}",
        f"  {score.why}",
        f"  tried: {tried}",
        f"  again: numcheck faults {source}-k {suspect.id}",
    )
    return "\n".join(lines)
