"""The invariance law: what must follow from a run when its Case is changed in a way whose effect is known.

The VJP is linear in the cotangent; powers of two pass through rounding exactly; layout and storage offset do not
matter; a slice of the batch gives the slice of the result; and whatever relations the oracle declares. An output
promised in `any` order is held to its radius where others are held to their bits.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from numcheck.capability import Unavailable
from numcheck.case import Case
from numcheck.execute import Run, execute
from numcheck.laws.law import Law
from numcheck.laws.measured import everywhere, found, hashes
from numcheck.laws.relation import Held, same_bits, same_values, verdicts, within
from numcheck.oracle import Output, Relation
from numcheck.profile import Profile
from numcheck.reading import Radius, Truth, read
from numcheck.sample import Counter, Sample, exact, move, place, sample
from numcheck.spec import KernelSpec
from numcheck.ulp import FORMATS
from numcheck.verdict import OutputVerdict, Status, Verdict

NAME = "invariance"
# Any power of two is exact; 4 moves exponents by more than a lost carry bit would.
FACTOR = 4.0
# Powers of two are exact as long as no product of three values leaves the normal range of FP32, 2^-126 to 2^127, and
# no difference of two such products has its last bit below it: 3 * 32 + 24 <= 126.
SAFE = 2.0**32


class Broken(Exception):
    """The kernel raised for a changed Case although it had run for the Case itself."""


@dataclass
class Subject:
    """One Case that ran, with what its relations need."""

    spec: KernelSpec
    sample: Sample
    device: str
    run: Run
    radii: dict[str, Tensor] = field(default_factory=dict)

    def rerun(self, changed: Sample, what: str, *, saved: bool = False) -> Mapping[str, Tensor]:
        """Outputs for a changed Sample; `saved`: the backward alone, on this run's saved outputs."""
        spec = replace(self.spec, forward=None) if saved else self.spec
        run = execute(spec, changed, device=self.device, guard=False, saved=dict(self.run.saved) if saved else None)
        if run.error:
            raise Broken(f"{what}: {run.error}")
        return run.outputs

    def radius(self, changed: Sample, *, saved: bool = False) -> dict[str, Tensor]:
        """Worst-case error of each output for a changed Sample of the same sizes."""
        policy = self.spec.contract.policy(changed.case)
        kept = {name: exact(t) for name, t in self.run.saved.items()} if saved else None
        return read(self.spec.oracle, Radius(policy), changed.exact(), kept or None)

    def exactly(self, output: str) -> bool:
        """Whether the same launch has to give the same bits: not where atomics may arrive in any order."""
        return self.spec.contract.order_of(output, self.sample.case) != "any"

    def same_tree(self, output: str) -> bool:
        """Whether another layout or another number of rows has to give the same bits.

        A compiler specialises on strides and alignment, and a reduction on its shape; where the Contract leaves the
        tree of a sum open, each specialisation may take its own.
        """
        tree = self.spec.contract.policy(self.sample.case).sum_of(output).tree
        return self.exactly(output) and tree != "any"


Relations = Iterator[tuple[str, Held]]


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The Verdict of one Case: every relation that applies to it, output by output."""
    blank = Verdict(spec.name, NAME, f"{spec.name}: outputs follow when the Case is changed in a known way", {})
    capability = spec.available(profile.device)
    if isinstance(capability, Unavailable):
        return everywhere(spec, blank, Status.UNAVAILABLE, capability.reason)
    illegal = spec.illegal(case)
    if illegal is not None:
        return everywhere(spec, blank, Status.VACUOUS, f"outside the promise: {illegal}")
    drawn = sample(spec.oracle, case, device=profile.device)
    run = execute(spec, drawn, device=profile.device)
    if run.error:
        return everywhere(spec, blank, Status.ERROR, run.error, run)
    subject = Subject(spec, drawn, profile.device, run)
    held: dict[str, list[Held]] = {name: [] for name in spec.judged}
    outputs: dict[str, OutputVerdict] = {}
    try:
        for relation in (_linear, _scaled_cotangent, _scaled_inputs, _laid_out, _sliced, _declared):
            for output, result in relation(subject):
                held[output].append(result)
    except Broken as error:
        outputs = dict.fromkeys(spec.judged, OutputVerdict(Status.ERROR, str(error)))
    return Verdict(
        spec.name,
        NAME,
        blank.claim,
        outputs or found(spec, run, verdicts(held, "no relation applies to this Case")),
        gates=tuple(h.gate for relations in held.values() for h in relations),
        hashes=hashes(run),
        evidence=run.evidence,
    )


def _gradients(subject: Subject) -> list[str]:
    return [g.name for g in subject.spec.oracle.gradients] if subject.spec.vjp else []


def _linear(subject: Subject) -> Relations:
    """vjp(g) = vjp(g where mask) + vjp(g elsewhere), within the three radii."""
    names = _gradients(subject)
    if not names or not subject.sample.cotangents:
        return
    whole = subject.sample
    masks = {n: Counter(whole.case.seed, f"mask/{n}").signs(tuple(t.shape)) > 0 for n, t in whole.cotangents.items()}
    parts = [
        whole.but(**{n: _where(masks[n] == side, t) for n, t in whole.cotangents.items()}) for side in (True, False)
    ]
    got = [subject.rerun(part, "half of the cotangent", saved=True) for part in parts]
    radii = [subject.radius(s, saved=True) for s in (whole, *parts)]
    for name in names:
        together = exact(got[0][name]) + exact(got[1][name])
        allowed = radii[0][name] + radii[1][name] + radii[2][name]
        reason = "the VJP is linear in the cotangent: two halves add up to the whole within their radii"
        yield name, within(name, together, exact(subject.run.outputs[name]), allowed, reason)


def _where(mask: Tensor, tensor: Tensor) -> Tensor:
    mask = mask.to(tensor.device)
    return torch.where(mask, tensor, torch.zeros_like(tensor))


def _scaled_cotangent(subject: Subject) -> Relations:
    """vjp(-4 g) = -4 vjp(g), exactly."""
    names = _gradients(subject)
    if not names or not subject.sample.cotangents or not _safe(subject):
        return
    changed = subject.sample.but(**{n: t * -FACTOR for n, t in subject.sample.cotangents.items()})
    got = subject.rerun(changed, "the cotangent times -4", saved=True)
    reason = "the VJP is linear in the cotangent: times -4 is exact in binary"
    for name in names:
        yield name, _scaled(subject, name, got[name], -FACTOR, reason)


def _scaled_inputs(subject: Subject) -> Relations:
    """Where the truth of inputs times 4 is a power of two times the truth, so are the kernel's bits.

    Inputs of one declared dtype are scaled together; only where no output follows exactly are they scaled one by one.
    """
    if not _safe(subject):
        return
    oracle, given = subject.spec.oracle, subject.sample.inputs
    truth = read(oracle, Truth(), subject.sample.exact(), None)
    groups: dict[str, list[str]] = {}
    for source in oracle.inputs:
        if given[source.name].dtype.is_floating_point and given[source.name].numel():
            groups.setdefault(source.dtype, []).append(source.name)
    for group in groups.values():
        if not (yield from _scaled_group(subject, truth, group)) and len(group) > 1:
            for name in group:
                yield from _scaled_group(subject, truth, [name])


def _scaled_group(
    subject: Subject, truth: Mapping[str, Tensor], names: list[str]
) -> Generator[tuple[str, Held], None, bool]:
    """The inputs `names` times 4; returns whether any output moves by a power of two other than 1."""
    changed = subject.sample.but(**{n: subject.sample.inputs[n] * FACTOR for n in names})
    moved = read(subject.spec.oracle, Truth(), changed.exact(), None)
    powers = {name: _power(truth[name], moved[name]) for name in subject.spec.judged}
    if all(power in (None, 1.0) for power in powers.values()):
        return False
    what = f"{' and '.join(names)} times 4"
    got = subject.rerun(changed, what)
    for name, power in powers.items():
        if power is not None:
            reason = f"{what} gives {name} times {power:g}, exact in binary"
            yield name, _scaled(subject, name, got[name], power, reason)
    return True


def _power(before: Tensor, after: Tensor) -> float | None:
    """The power of two (1, 4 or 16) by which FP64 truth moved as a whole, or None; None too where it is all zero."""
    if not bool((before != 0).any()):
        return None
    for power in (1.0, FACTOR, FACTOR**2):
        if torch.equal(before * power, after):
            return power
    return None


def _scaled(subject: Subject, name: str, got: Tensor, factor: float, reason: str) -> Held:
    base, moved = exact(subject.run.outputs[name]), exact(got)
    if not subject.exactly(name):
        allowed = 2 * abs(factor) * _own_radius(subject)[name]
        return within(name, moved, base * factor, allowed, f"{reason}; in any order, within twice the radius")
    # A result that rounds on the subnormal grid on one side only is no power of two away.
    normal = FORMATS[subject.spec.oracle.result(name).dtype_for(subject.sample.case)].normal
    fine = ~((base.abs() < normal) & (base != 0) | (moved.abs() < normal) & (moved != 0))
    vacuous = "" if bool((base[fine] != 0).any()) else "every element is zero or subnormal"
    return same_values(name, moved[fine], base[fine] * factor, reason, vacuous)


def _own_radius(subject: Subject) -> dict[str, Tensor]:
    if not subject.radii:
        subject.radii.update(subject.radius(subject.sample))
    return subject.radii


def _safe(subject: Subject) -> bool:
    """Whether no product that a kernel could form overflows, or loses bits below the normal range."""
    tensors = {**subject.sample.exact(), **{n: exact(t) for n, t in subject.run.outputs.items()}}
    sizes = [t.abs() for t in tensors.values() if t.dtype == torch.float64 and t.numel()]
    return all(bool(((t == 0) | (t > 1 / SAFE) & (t < SAFE)).all()) for t in sizes)


def _laid_out(subject: Subject) -> Relations:
    """Other layouts and storage offsets give the same bits."""
    for other in _layouts(subject):
        if subject.spec.illegal(other) is None:
            what = f"{other.layout} at storage offset {other.offset}"
            got = subject.rerun(_placed(subject.sample, other), what)
            yield from _same(subject, got, f"the same values {what}: the same bits")


def _layouts(subject: Subject) -> list[Case]:
    """Every other storage offset that the problem has, in the layouts by turns, another one first."""
    case, space = subject.sample.case, subject.spec.oracle.space
    layouts = [*(layout for layout in space.layouts if layout != case.layout), case.layout]
    offsets = [offset for offset in space.offsets if offset != case.offset] or [case.offset]
    turns = [case.but(layout=layouts[k % len(layouts)], offset=offset) for k, offset in enumerate(offsets)]
    return [other for other in turns if other != case]


def _placed(whole: Sample, case: Case) -> Sample:
    """The Sample's own values in another Case's layout and offset."""

    def moved(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {n: move(place(t.cpu(), case.layout, case.offset), str(t.device)) for n, t in tensors.items()}

    return Sample(case, moved(whole.inputs), moved(whole.cotangents))


def _same(subject: Subject, got: Mapping[str, Tensor], reason: str) -> Relations:
    for name in subject.spec.judged:
        if subject.same_tree(name):
            yield name, same_bits(name, got[name], subject.run.outputs[name], reason)
        else:
            allowed = 2 * _own_radius(subject)[name]
            expected = exact(subject.run.outputs[name])
            yield (
                name,
                within(
                    name, exact(got[name]), expected, allowed, f"{reason}, or for a tree left open twice the radius"
                ),
            )


def _sliced(subject: Subject) -> Relations:
    """The first rows alone and the last rows alone give their part of the result."""
    oracle, case = subject.spec.oracle, subject.sample.case
    if not oracle.batch or case[oracle.batch] < 2:
        return
    rows, cut = case[oracle.batch], case[oracle.batch] // 2
    spans = ((0, cut), (cut, rows))
    parts = []
    for low, high in spans:
        other = case.but(**{oracle.batch: high - low})
        if subject.spec.illegal(other) is not None:
            return
        parts.append(subject.rerun(_rows(subject, other, low, high), f"rows {low} to {high - 1} alone"))
    for output in oracle.results:
        if output.name not in subject.spec.judged:
            continue
        if _batched(subject, output.dims):
            for (low, high), part in zip(spans, parts, strict=True):
                yield output.name, _row_slice(subject, output, part[output.name], low, high)


def _rows(subject: Subject, case: Case, low: int, high: int) -> Sample:
    oracle = subject.spec.oracle
    dims = {i.name: i.dims for i in oracle.inputs} | {c.name: c.dims for c in oracle.cotangents}

    def cut(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        rows = {n: t[low:high] if _batched(subject, dims[n]) else t for n, t in tensors.items()}
        return {n: move(place(t.cpu(), case.layout, case.offset), str(t.device)) for n, t in rows.items()}

    return Sample(case, cut(subject.sample.inputs), cut(subject.sample.cotangents))


def _batched(subject: Subject, dims: object) -> bool:
    return isinstance(dims, tuple) and bool(dims) and dims[0] == subject.spec.oracle.batch


def _row_slice(subject: Subject, output: Output, got: Tensor, low: int, high: int) -> Held:
    expected = subject.run.outputs[output.name][low:high]
    reason = f"rows {low} to {high - 1} alone: the same bits as in the whole batch"
    if subject.same_tree(output.name):
        return same_bits(output.name, got, expected, reason)
    allowed = 2 * _own_radius(subject)[output.name][low:high]
    return within(
        output.name, exact(got), exact(expected), allowed, f"{reason}, or for a tree left open twice the radius"
    )


def _declared(subject: Subject) -> Relations:
    """The relations that the oracle declares."""
    for relation in subject.spec.oracle.relations:
        yield from _one_declared(subject, relation)


def _one_declared(subject: Subject, relation: Relation) -> Relations:
    whole = subject.sample
    tensors = relation.transform(whole.case, {**whole.inputs, **whole.cotangents})
    if tensors is None:
        return
    changed = whole.but(**tensors)
    got = relation.back(whole.case, dict(subject.rerun(changed, relation.name)))
    radii: dict[str, Tensor] = {}
    for name in subject.spec.judged:
        if name not in got:
            continue
        if relation.exact and subject.exactly(name):
            yield name, same_bits(name, got[name], subject.run.outputs[name], f"{relation.name}: the same bits")
            continue
        radii = radii or relation.back(whole.case, subject.radius(changed))
        allowed = _own_radius(subject)[name] + radii[name].abs()
        expected = exact(subject.run.outputs[name])
        yield name, within(name, exact(got[name]), expected, allowed, f"{relation.name}: within both radii")


INVARIANCE = Law(
    NAME,
    "Outputs follow when a Case is changed in a way whose effect is known: linear, scaled, laid out, sliced.",
    judge=judge,
)
