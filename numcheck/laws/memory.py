"""The memory law: what a call allocates beyond its outputs is what the Contract's formula says.

Forward and VJP are called apart, and the larger figure counts: that is what a caller has to have free. The formula is
judged at several shapes, so that what it says of the largest declared one can be believed.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from numcheck.case import Case
from numcheck.execute import Run, execute
from numcheck.gate import Gate
from numcheck.laws.law import Judged, Law, covered
from numcheck.laws.measured import everywhere, saved_alone, unjudged
from numcheck.oracle import CaseSpace, Output
from numcheck.profile import Profile
from numcheck.sample import Sample, sample
from numcheck.spec import KernelSpec
from numcheck.ulp import torch_dtype
from numcheck.verdict import OutputVerdict, Status, Verdict

NAME = "memory"
# Fewer points than this fit a formula of sizes in too many ways.
SHAPES = 4
# Large enough that a missing factor or term shows in the bytes, small enough to take well under a second.
ELEMENTS = 2**16


@dataclass(frozen=True, eq=False)
class Call:
    """One half of a spec (forward or vjp) measured: its Run and its own outputs."""

    name: str
    case: Case
    run: Run
    outputs: tuple[Output, ...]

    @property
    def returned(self) -> int:
        """Bytes of the outputs."""
        sizes = (math.prod(o.shape(self.case)) * torch_dtype(o.dtype_for(self.case)).itemsize for o in self.outputs)
        return sum(sizes)

    @property
    def workspace(self) -> int:
        """The most bytes alive at once beyond the outputs."""
        return max(0, self.run.evidence.peak_bytes - self.returned)


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The Verdict of one Case: measured bytes beyond outputs against `Contract.workspace`."""
    promised = spec.contract.workspace(case)
    blank = Verdict(spec.name, NAME, f"{spec.name} allocates at most {promised} bytes beyond its outputs", {})
    nothing = unjudged(spec, case, profile, blank)
    if nothing is not None:
        return nothing
    drawn = sample(spec.oracle, case, device=profile.device)
    calls = _calls(spec, drawn, profile)
    for call in calls:
        if call.run.error:
            return everywhere(spec, case, blank, Status.ERROR, call.run.error, call.run)
        if call.returned and not call.run.evidence.peak_bytes:
            why = f"{call.name} returned {call.returned} bytes, yet no allocation was seen: nothing was measured"
            return everywhere(spec, case, blank, Status.ERROR, why, call.run)
    gates = {call: _gate(call, promised) for call in calls}
    outputs: dict[str, OutputVerdict] = {}
    for call, gate in gates.items():
        verdict = OutputVerdict(Status.PASS) if gate.held else OutputVerdict(Status.FAIL, gate.reason)
        outputs |= {output.name: verdict for output in call.outputs}
    worst = max(calls, key=lambda call: call.workspace)
    return Verdict(
        spec.name,
        NAME,
        blank.claim,
        outputs,
        gates=tuple(gates.values()),
        evidence=worst.run.evidence,
        figures={"measured": worst.workspace, "formula": promised, "call": worst.name},
    )


def _gate(call: Call, promised: int) -> Gate:
    reason = f"{call.name}: {call.workspace} bytes beyond its outputs, where the formula says {promised}"
    return Gate("ceiling", call.outputs[0].name, float(call.workspace), float(promised), reason)


def _calls(spec: KernelSpec, drawn: Sample, profile: Profile) -> list[Call]:
    # The guard counts allocations by dispatch; a GPU has its allocator to ask, where the guard's margins would show.
    # Both count bytes as they are asked for, so the formula has to hold to the byte.
    counted = profile.device == "cpu"
    if not counted:
        # What a library allocates once and keeps, a handle's workspace say, is not the kernel's.
        execute(spec, drawn, device=profile.device, guard=False, saved=saved_alone(spec, drawn))
    halves = []
    if spec.forward:
        run = execute(spec.but(vjp=None), drawn, device=profile.device, guard=counted)
        halves.append(Call("forward", drawn.case, run, spec.oracle.outputs_for(drawn.case)))
    gradients = spec.oracle.gradients_for(drawn.case)
    if spec.vjp and gradients:
        saved = dict(halves[0].run.saved) if halves else saved_alone(spec, drawn)
        run = execute(spec.but(forward=None), drawn, device=profile.device, guard=counted, saved=saved)
        halves.append(Call("vjp", drawn.case, run, gradients))
    return halves


def cases(spec: KernelSpec) -> tuple[Case, ...]:
    """For each data dtype SHAPES contiguous Cases of the grid, from its smallest to the largest within ELEMENTS."""
    space = spec.oracle.space
    facts = tuple((name, values[0]) for name, values in space.facts.items())
    axes = {name: _axis(space, name) for name in space.sizes}
    rows = [tuple(zip(axes, row, strict=True)) for row in itertools.product(*axes.values())]
    chosen: list[Case] = []
    for dtype in spec.dtypes:
        made = [Case(row, dtype, "normal", facts=facts) for row in rows]
        fitting = [c for c in made if space.work(c) <= ELEMENTS and spec.illegal(c) is None]
        chosen += _spread(sorted(fitting, key=space.work))
    return tuple(chosen)


def _axis(space: CaseSpace, name: str) -> tuple[int, ...]:
    low, high = space.sizes[name]
    given = [int(v) for v in space.grid.get(name, ())] or list(space.choices.get(name, ()))
    return tuple(given) if given else tuple(dict.fromkeys(min(high, max(low, size)) for size in (1, 33, 257)))


def _spread(ordered: list[Case]) -> list[Case]:
    """SHAPES of them, the smallest and the largest among them."""
    if len(ordered) <= SHAPES:
        return ordered
    step = (len(ordered) - 1) / (SHAPES - 1)
    return [ordered[round(k * step)] for k in range(SHAPES)]


def largest(spec: KernelSpec) -> tuple[Case, ...]:
    """For each data dtype the Case in which every size is at its declared maximum."""
    space = spec.oracle.space
    drawn = {name: max(space.choices.get(name, (high,))) for name, (_, high) in space.sizes.items()}
    tops = tuple((drawn | dict(space.maxima)).items())
    facts = tuple((name, values[0]) for name, values in space.facts.items())
    return tuple(Case(tops, dtype, facts=facts) for dtype in spec.dtypes)


def pool(spec: KernelSpec, judged: Judged) -> Verdict | None:
    """Over all shapes: the largest residual of the formula, and what it says of the declared maxima."""
    rows = [(case, v) for case, v in judged if "measured" in v.figures]
    if not rows:
        return None
    shapes = {case.sizes for case, _ in rows}
    residual = max((abs(int(v.figures["measured"]) - int(v.figures["formula"])) for _, v in rows), default=0)
    figures: dict[str, object] = {
        "shapes": len(shapes),
        "residual_bytes": residual,
        "declared_maxima": {c.line(): spec.contract.workspace(c) for c in largest(spec) if spec.illegal(c) is None},
    }
    return Verdict(
        spec.name,
        NAME,
        f"{spec.name}: the workspace formula holds at {SHAPES} shapes or more, so it may be read at larger ones",
        dict.fromkeys(covered(spec, judged), _pooled(rows, len(shapes), residual)),
        figures=figures,
        pooled=True,
    )


def _pooled(rows: Judged, shapes: int, residual: int) -> OutputVerdict:
    over = [case for case, v in rows if not v.held]
    if over:
        return OutputVerdict(Status.FAIL, f"more than the formula says in {len(over)} of {len(rows)} Cases")
    if 2 * residual >= max(int(v.figures["formula"]) for _, v in rows) > 0:
        why = "the formula allows more than twice what was measured at its worst, so a doubling would not show"
        return OutputVerdict(Status.VACUOUS, why)
    if shapes < SHAPES:
        return OutputVerdict(Status.VACUOUS, f"{shapes} shapes, but it takes {SHAPES} to believe a formula")
    return OutputVerdict(Status.PASS, f"{shapes} shapes, largest distance from the formula {residual} bytes")


MEMORY = Law(
    NAME,
    "peak bytes of a call beyond its outputs stay within the Contract's formula",
    judge=judge,
    pool=pool,
    cases=cases,
    drawn=False,
)
