"""Suspect: one broken kernel that the laws are to catch, declared by its author or made from source; and its Score."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from numcheck.capability import Device, Unavailable
from numcheck.case import Case
from numcheck.errors import InvalidSpec
from numcheck.mutate import Mutant, built
from numcheck.mutate import mutants as mutants_of
from numcheck.reasons import NAME, Reason, reasons
from numcheck.spec import Fault, KernelSpec

# KILLED: a law caught it on a Case where the honest spec holds. SURVIVED: none did. EQUIVALENT: none did, and a
# written reason says why none can. HUNG: it did not end where the honest spec did; the run has caught that, and no law
# has judged, so that it is neither killed nor survived. REFUTED: a written reason that a Case contradicts. STILLBORN:
# its source does not load. ABSENT: it stands in a branch for which this spec's kernels are never built, on any Case;
# another spec's are, under which it is judged. In a branch that no kernel builds it has SURVIVED.
Status = Literal["KILLED", "SURVIVED", "HUNG", "EQUIVALENT", "REFUTED", "STILLBORN", "ABSENT", "UNAVAILABLE"]


@dataclass(frozen=True)
class Suspect:
    """What is to be caught, and the honest spec that it is an edit of. One of `fault` and `mutant` is given."""

    honest: KernelSpec | None
    fault: Fault | None = None
    mutant: Mutant | None = None
    reason: Reason | None = None

    @property
    def id(self) -> str:
        """Its name: the fault's spec, or the mutant's id after the spec that it is made from."""
        return self.fault.spec.name if self.fault is not None else self.mutant.id if self.mutant is not None else ""

    @property
    def spec(self) -> str:
        """The name of the spec that it is an edit of."""
        return self.honest.name if self.honest is not None else self.id

    @property
    def operator(self) -> str:
        """What made the mutant; "" for a declared fault."""
        return self.mutant.operator if self.mutant is not None else ""

    @property
    def unit(self) -> str:
        """Suspects of one unit teach each other which Cases kill: those of one function, whatever spec runs it."""
        if self.mutant is not None:
            return f"{self.mutant.module}.{self.mutant.function}"
        return self.spec

    @contextmanager
    def broken(self) -> Iterator[KernelSpec]:
        """The broken spec; raises what loading its source raises."""
        if self.fault is not None:
            yield self.fault.spec
        elif self.mutant is not None and self.honest is not None:
            with built(self.honest, self.mutant) as spec:
                yield spec

    def describe(self) -> dict[str, Any]:
        """What it is, JSON-plain: the part of a Score that is known before anything runs."""
        head: dict[str, Any] = {"fault": self.id, "spec": self.spec, "specs": self.honest.origin if self.honest else ""}
        if self.fault is not None:
            return {**head, "made": "declared", "expected": self.fault.law, "doc": self.fault.doc} | (
                {"source": self.fault.source} if self.fault.source else {}
            )
        assert self.mutant is not None
        m = self.mutant
        place = {"function": m.function, "file": m.file, "line": m.line, "text": m.text}
        return {**head, "made": "mutant", "operator": m.operator, **place, "before": m.before, "after": m.after}


@dataclass(frozen=True)
class Score:
    """How one suspect fared.

    law, case: what caught it (case None for a pooled verdict); why: what that verdict said, or why there is none.
    raised: it raised, or gave no judgeable output, rather than a wrong one. tried: law -> Cases on which it held.
    laws: law -> whether it catches the suspect, for the laws that were asked to the end. changed: whether any bit of
    any output ever differed from the honest spec's. usual: whether the usual allclose test catches it, None where
    there is no such test.
    """

    suspect: Suspect
    status: Status
    law: str = ""
    case: Case | None = None
    why: str = ""
    raised: bool = False
    tried: Mapping[str, int] = field(default_factory=dict)
    laws: Mapping[str, bool] = field(default_factory=dict)
    changed: bool = False
    usual: bool | None = None
    seconds: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object: the body of a "fault" row."""
        row = {
            **self.suspect.describe(),
            "status": self.status,
            "law": self.law,
            "why": self.why,
            "raised": self.raised,
            "tried": dict(self.tried),
            "laws": dict(self.laws),
            "changed": self.changed,
            "seconds": round(self.seconds, 3),
        }
        if self.case is not None:
            row["case"] = self.case.to_json()
        if self.usual is not None:
            row["usual"] = self.usual
        if self.suspect.reason is not None:
            row |= {"claim": self.suspect.reason.claim, "reason": self.suspect.reason.why}
        return row


def hung(suspect: Suspect, doing: str, seconds: float, case: Case | None = None) -> Score:
    """The Score of what did not end: `doing` says what it was at, `seconds` how long that may take."""
    why = f"hung: {doing} did not end within {seconds:.3g} s"
    if suspect.reason is None:
        return Score(suspect, "HUNG", case=case, why=why, seconds=seconds)
    said = f"the reason says that it survives ({suspect.reason.claim}), but it {why}"
    return Score(suspect, "REFUTED", case=case, why=said, seconds=seconds)


def suspects(
    specs: Sequence[KernelSpec],
    faults: Sequence[Fault] = (),
    *,
    mutants: bool = True,
    device: Device = "cpu",
    keyword: str = "",
) -> tuple[tuple[Suspect, ...], tuple[str, ...]]:
    """The declared faults and the mutants of `specs`; and one sentence for each spec or reason that gave none.

    keyword: only those whose kernel or id has it in its name. Mutants of one function stand together, under each spec
    that runs it, so that what killed one is tried on the next. Raises InvalidSpec for reasons that cannot be read.
    """
    found = [Suspect(fault.honest, fault=fault) for fault in faults]
    made: list[Suspect] = []
    notes: list[str] = []
    for spec in specs if mutants else ():
        missing = spec.available(device)
        if isinstance(missing, Unavailable):
            notes.append(f"{spec.name} cannot run here, so it has no mutants: {missing.reason}")
            continue
        try:
            made += [Suspect(spec, mutant=mutant) for mutant in mutants_of(spec, device)]
        except InvalidSpec as error:
            notes.append(str(error))
    known = reasons(s.mutant.file for s in made if s.mutant is not None)
    # What only a device shows is no excuse on one.
    excuses = [reason for reason in known if device == "cpu" or reason.claim != "device"]
    made = [replace(s, reason=next((r for r in excuses if r.concerns(s.id, s.spec)), None)) for s in made]
    notes += [*_stale(known, made), *_unexplained(known, made)]
    units = {suspect.unit: place for place, suspect in reversed(list(enumerate(made)))}
    ids = {suspect.id: place for place, suspect in reversed(list(enumerate(made)))}
    made.sort(key=lambda s: (units[s.unit], ids[s.id]))
    return tuple(s for s in (*found, *made) if keyword in s.id or keyword in s.spec), tuple(notes)


def _unexplained(known: Sequence[Reason], made: Sequence[Suspect]) -> list[str]:
    """One sentence where no reasons lie beside any of the sources: a copied kernel has left them behind."""
    folders = sorted({str(Path(s.mutant.file).parent) for s in made if s.mutant is not None})
    if known or not folders:
        return []
    return [f"no {NAME} lies beside the source in {', '.join(folders)}: no survivor has a written reason"]


def _stale(known: Sequence[Reason], made: Sequence[Suspect]) -> list[str]:
    """Reasons for mutants of these functions that are no more: the line that they speak of has changed."""
    ids = {suspect.id for suspect in made}
    functions = {suspect.id.partition(":")[0] for suspect in made}
    gone = [r for r in known if r.id not in ids and r.id.partition(":")[0] in functions]
    return [f"{r.file}: {r.id} is no mutant any more; strike its entry, or see what its line became" for r in gone]
