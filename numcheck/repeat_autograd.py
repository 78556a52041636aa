"""The rung of autograd's modes: a forward that is trained, or in inference mode, gives the bits that it always gives.

Laws call kernels with recording off, as autograd calls a backward; a forward meets all three modes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from numcheck.execute import Autograd, Run, execute
from numcheck.repeat import Step, Subject, climb, skipped

# How torch calls a forward: on inputs that need gradients, and with the bookkeeping of gradients left out.
MODES: dict[str, Autograd] = {"inputs that require gradients": "on", "inference mode": "inference"}


def autograd_modes(subject: Subject) -> Step:
    """The forward in the other modes of autograd. A mode in which it raises is refused, not wrong: the note says so."""
    name = "autograd modes"
    if subject.spec.forward is None:
        return skipped(name, "no forward, and autograd calls a backward with recording off")
    forward = _forward_alone(subject)
    runs = {under: _run(forward, mode) for under, mode in MODES.items()}
    note = "; ".join(f"refused under {under}: {run.error}" for under, run in runs.items() if run.error)
    answered = [(under, _again(run)) for under, run in runs.items() if not run.error]
    return climb(name, forward, answered, note=note) if answered else skipped(name, note)


def _forward_alone(subject: Subject) -> Subject:
    names = [o.name for o in subject.spec.oracle.outputs_for(subject.sample.case) if o.name in subject.hashes]
    outputs = {name: subject.first.outputs[name] for name in names}
    return replace(
        subject,
        spec=subject.spec.but(vjp=None),
        first=replace(subject.first, outputs=outputs),
        hashes={name: subject.hashes[name] for name in names},
    )


def _run(subject: Subject, mode: Autograd) -> Run:
    given = subject.sample
    if mode == "on":
        given = given.map(lambda _, t: t.detach().requires_grad_() if t.is_floating_point() else t)
    return execute(subject.spec, given, device=subject.device, saved=subject.saved, autograd=mode)


def _again(run: Run) -> Callable[[], Run]:
    return lambda: run
