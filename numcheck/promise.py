"""Promise: what an output's order promise makes of what the vacuity proof, the measured map and the ladder showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from numcheck.contract import OrderPromise
from numcheck.difference import Difference
from numcheck.evidence import ADDENDS, Footprint
from numcheck.repeat import PERMUTED, Step
from numcheck.vacuity import Proof
from numcheck.verdict import OutputVerdict, Status, flip_bound


@dataclass(frozen=True)
class Witness:
    """What is known of one output when it is judged.

    footprint: its own measured map; workspace: that of memory which is neither output nor input, and may feed it.
    """

    output: str
    promise: OrderPromise
    proof: Proof
    footprint: Footprint | None
    workspace: Footprint | None
    elements: int
    backend: str
    steps: Sequence[Step]

    @property
    def runs(self) -> int:
        """Comparisons with the first run, over all rungs."""
        return sum(step.rung.runs for step in self.steps)

    @property
    def flips(self) -> int:
        """How many of them showed other bits."""
        return sum(step.rung.flips.get(self.output, 0) for step in self.steps)

    @property
    def difference(self) -> Difference | None:
        """The first difference seen."""
        return next((s.differences[self.output] for s in self.steps if self.output in s.differences), None)

    @property
    def unordered(self) -> Difference | None:
        """The first difference between two runs of one order, which only the interpreter can tell."""
        if self.backend != "interpreter":
            return None
        same = (s for s in self.steps if s.rung.name != PERMUTED)
        return next((s.differences[self.output] for s in same if self.output in s.differences), None)

    @property
    def unproven(self) -> str:
        """Why the measured map cannot tell who writes this output, or ""."""
        if self.footprint is None or not (self.footprint.writers or self.footprint.atomic):
            return "its writers are not measured here"
        if self.workspace is not None and self.workspace.addends >= ADDENDS:
            return f"atomics give a workspace address {self.workspace.addends} addends and may feed it"
        return ""

    @property
    def power(self) -> str:
        """What the repeats without a flip bound, in one clause."""
        return f"0 flips in {self.runs} runs bound the flip rate at {flip_bound(self.runs):.2g} (95 %)"


def decide(w: Witness) -> OutputVerdict:
    """The status of one output. A race fails whatever was promised; so does a flip where the order did not change."""
    if w.footprint is not None and w.footprint.races:
        return raced(w.output, w.footprint)
    if w.elements == 0:
        return OutputVerdict(Status.VACUOUS, "it has no elements")
    if w.unordered is not None:
        return OutputVerdict(Status.FAIL, f"{w.unordered}, in the same order of programs", w.unordered.where(w.output))
    return _BY_PROMISE[w.promise](w)


def raced(name: str, footprint: Footprint) -> OutputVerdict:
    """FAIL of an output, input or workspace whose measured map shows a race."""
    index, one, other = footprint.races[0]
    return OutputVerdict(
        Status.FAIL,
        "race: two programs share an address, one of them without an atomic, so an update can be lost or missed",
        f"{name} shared by programs {one} and {other} at flat index {index}",
    )


def _single(w: Witness) -> OutputVerdict:
    if w.difference is not None:
        return OutputVerdict(Status.FAIL, f"claimed single, but {w.difference}", w.difference.where(w.output))
    if w.unproven or w.footprint is None:
        judged = _fixed(w)
        return replace(judged, why=f"{w.unproven}, so judged as fixed: {judged.why}")
    addends, writers = w.footprint.addends, w.footprint.writers
    # One atomic addend onto zero is one writer too.
    if max(addends, writers) <= 1:
        return OutputVerdict(Status.PASS, f"one writer an address, measured; {w.power}")
    many = f"{addends} atomic addends" if addends > 1 else f"{writers} writers"
    return OutputVerdict(Status.FAIL, f"claimed single, but the measured map shows {many} at an address")


def _fixed(w: Witness) -> OutputVerdict:
    if w.difference is not None:
        return OutputVerdict(
            Status.FAIL,
            f"claimed fixed, but {w.difference}; {w.flips} of {w.runs} runs flipped",
            w.difference.where(w.output),
        )
    if w.proof.proven:
        return OutputVerdict(Status.PASS, f"{w.proof.why}; {w.power}")
    return OutputVerdict(Status.VACUOUS, w.proof.why)


def _any(w: Witness) -> OutputVerdict:
    if w.difference is not None:
        return OutputVerdict(
            Status.ORDER_DEPENDENT, f"{w.difference}; {w.flips} of {w.runs} runs flipped", w.difference.where(w.output)
        )
    if w.proof.addends < ADDENDS:
        return OutputVerdict(Status.VACUOUS, w.proof.why)
    return OutputVerdict(Status.PASS, f"any order is allowed and none seen in {w.runs} runs made a difference")


_BY_PROMISE: Mapping[OrderPromise, Callable[[Witness], OutputVerdict]] = {
    "single": _single,
    "fixed": _fixed,
    "any": _any,
}
