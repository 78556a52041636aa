"""Reasons: why a mutant that no law kills is no mistake, written down beside the kernel and reviewed like code.

The file `equivalent.toml` lies in the folder of the mutated source. An entry proves a mutant equivalent, or says what
would be needed to kill it; one that a Case refutes is an error, so that no reason outlives the code it speaks of.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numcheck.errors import InvalidSpec

NAME = "equivalent.toml"
# equal: no input can show it, bit for bit. allowed: bits may differ, and the Contract allows either. device: a device
# shows it, the interpreter cannot. open: a real mistake that no law finds, with what finding it would take.
CLAIMS = ("equal", "allowed", "device", "open")
# Claims that prove a mutant to be no mistake; the others explain a survivor, which it stays.
PROOFS = ("equal", "allowed")


@dataclass(frozen=True)
class Reason:
    """Why one mutant survives. claim: one of CLAIMS. specs: the kernels that it speaks of, () for all with the code."""

    id: str
    claim: str
    why: str
    specs: tuple[str, ...] = ()
    file: str = ""

    @property
    def proves(self) -> bool:
        """Whether it says that the mutant is no mistake at all."""
        return self.claim in PROOFS

    def concerns(self, mutant: str, spec: str) -> bool:
        """Whether it is the reason for this mutant of this kernel."""
        return self.id == mutant and (not self.specs or spec in self.specs)


def reasons(files: Iterable[str]) -> tuple[Reason, ...]:
    """The reasons that lie beside these source files.

    Raises InvalidSpec for a file that is no TOML, an entry without id, claim or why, and one that is there twice.
    """
    paths = dict.fromkeys(Path(file).parent / NAME for file in files)
    found = [reason for path in paths if path.is_file() for reason in _read(path)]
    for number, reason in enumerate(found):
        for other in found[:number]:
            if reason.id == other.id and (not reason.specs or not other.specs or set(reason.specs) & set(other.specs)):
                raise InvalidSpec(f"{reason.file}: {reason.id} is there twice; a mutant of a kernel has one reason")
    return tuple(found)


def _read(path: Path) -> list[Reason]:
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSpec(f"{path}: {error}") from None
    entries = table.get("mutant", [])
    if set(table) - {"mutant"} or not isinstance(entries, list):
        raise InvalidSpec(f"{path}: it holds [[mutant]] tables and nothing else; got {', '.join(table)}")
    return [reason for entry in entries for reason in _entry(entry, path)]


def _entry(entry: Mapping[str, Any], path: Path) -> list[Reason]:
    """One table: one reason for one id, or for each of several."""
    ids, claim, why = entry.get("ids", [entry.get("id")]), entry.get("claim"), entry.get("why")
    specs = entry.get("specs", [])
    if not isinstance(specs, list) or not all(isinstance(spec, str) for spec in specs):
        raise InvalidSpec(f"{path}: {ids}: specs is {specs!r}; give a list of kernels' names, or leave it out")
    if claim not in CLAIMS:
        raise InvalidSpec(f"{path}: {ids}: claim is {claim!r}; give one of {', '.join(CLAIMS)}")
    if not isinstance(why, str) or not why.strip():
        raise InvalidSpec(f"{path}: {ids}: why is {why!r}; give the reason as a sentence")
    if not isinstance(ids, list) or not ids or not all(isinstance(i, str) and i for i in ids):
        raise InvalidSpec(f"{path}: give id, or ids as a list of them, as `numcheck faults` prints them; got {ids!r}")
    return [Reason(i, claim, " ".join(why.split()), tuple(specs), str(path)) for i in ids]
