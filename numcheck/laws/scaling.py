"""Relations of size: the VJP is linear in the cotangent, and powers of two pass through rounding exactly."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping

import torch
from torch import Tensor

from numcheck.laws.curves import Curves
from numcheck.laws.relation import Held, added, same_values, within
from numcheck.laws.subject import Relations, Subject
from numcheck.reading import Truth, read
from numcheck.sample import Counter, Sample, exact
from numcheck.ulp import FORMATS

# Any power of two is exact; 4 moves exponents by more than a lost carry bit would.
FACTOR = 4.0
# Powers of two are exact as long as no product of three values leaves the normal range of FP32, 2^-126 to 2^127, and
# no difference of two such products has its last bit below it: 3 * 32 + 24 <= 126.
SAFE = 2.0**32


def in_cotangent(subject: Subject) -> Relations:
    """vjp(g) = vjp(g where mask) + vjp(g elsewhere) within the three radii, and vjp(-4 g) = -4 vjp(g) exactly.

    Saved outputs stay as they are. Only for gradients whose truth is linear: not for one that is given a start value.
    """
    whole = subject.sample
    if not subject.spec.vjp or not whole.cotangents:
        return
    negated = whole.but(**{n: t * -FACTOR for n, t in whole.cotangents.items()})
    before, after = (_truth(subject, s, saved=True) for s in (whole, negated))
    given = {g.name for g in subject.spec.oracle.gradients}
    names = [n for n in subject.judged if n in given and torch.equal(before[n] * -FACTOR, after[n])]
    if names:
        yield from _added_up(subject, names)
        if _safe(subject) and _fits(subject, negated):
            yield from _negated(subject, names, negated)


def _added_up(subject: Subject, names: list[str]) -> Relations:
    whole = subject.sample
    masks = {n: Counter(whole.case.seed, f"mask/{n}").signs(tuple(t.shape)) > 0 for n, t in whole.cotangents.items()}
    parts = [
        whole.but(**{n: _where(masks[n] == side, t) for n, t in whole.cotangents.items()}) for side in (True, False)
    ]
    got = [subject.rerun(part, "half of the cotangent", saved=True) for part in parts]
    radii = [subject.radius(s, saved=True) for s in (whole, *parts)]
    for name in names:
        two = exact(got[0][name]), exact(got[1][name])
        allowed = radii[0][name] + radii[1][name] + radii[2][name]
        reason = "the VJP is linear in the cotangent: two halves add up to the whole within their radii"
        yield name, added(name, two, exact(subject.outputs[name]), allowed, reason, huge=subject.huge(name))


def _where(mask: Tensor, tensor: Tensor) -> Tensor:
    mask = mask.to(tensor.device)
    return torch.where(mask, tensor, torch.zeros_like(tensor))


def _negated(subject: Subject, names: list[str], negated: Sample) -> Relations:
    got = subject.rerun(negated, "the cotangent times -4", saved=True)
    for name in names:
        reason = "the VJP is linear in the cotangent: times -4 is exact in binary"
        yield name, _scaled(subject, name, got[name], -FACTOR, reason, negated, saved=True)


def scaled_inputs(subject: Subject) -> Relations:
    """Where the truth of inputs times 4 is a power of two times the truth, so are the kernel's bits.

    Inputs of one dtype are scaled together; only where no output follows exactly are they scaled one by one. Integers,
    bools and scalars stay, and so does an input on which an exponential or its like depends.
    """
    if not _safe(subject):
        return
    given = subject.sample.inputs
    truth = _truth(subject, subject.sample)
    groups: dict[str, list[str]] = {}
    for source in subject.spec.oracle.inputs_for(subject.sample.case):
        if given[source.name].dtype.is_floating_point and given[source.name].numel():
            groups.setdefault("data" if source.dtype == "data" else source.dtype_for(subject.sample.case), []).append(
                source.name
            )
    for group in groups.values():
        if not (yield from _scaled_group(subject, truth, group)) and len(group) > 1:
            for name in group:
                yield from _scaled_group(subject, truth, [name])


def _scaled_group(
    subject: Subject, truth: Mapping[str, Tensor], names: list[str]
) -> Generator[tuple[str, Held], None, bool]:
    """The inputs `names` times 4; returns whether any output moves by a power of two other than 1."""
    changed = subject.sample.but(**{n: subject.sample.inputs[n] * FACTOR for n in names})
    if not _fits(subject, changed):
        return False
    with Curves() as curves:
        moved = _truth(subject, changed, follow=names)
    if curves.seen:
        return False
    powers = {name: _power(truth[name], moved[name]) for name in subject.judged}
    if all(power in (None, 1.0) for power in powers.values()):
        return False
    what = f"{' and '.join(names)} times 4"
    got = subject.rerun(changed, what)
    for name, power in powers.items():
        if power is not None:
            reason = f"{what} gives {name} times {power:g}, exact in binary"
            yield name, _scaled(subject, name, got[name], power, reason, changed)
    return True


def _truth(
    subject: Subject, changed: Sample, *, saved: bool = False, follow: list[str] | None = None
) -> Mapping[str, Tensor]:
    """The truth of a changed Sample; `saved`: on this run's saved outputs; `follow`: inputs that autograd watches."""
    given = changed.exact()
    given |= {name: given[name].requires_grad_() for name in follow or ()}
    kept = {name: exact(t) for name, t in subject.run.saved.items()} if saved else None
    # On the CPU, whose sums have one order: that a truth moved by a power of two is asked of every bit.
    found = subject.blanked(read(subject.spec.oracle, Truth(), given, kept or None), changed)
    return {name: value.detach() for name, value in found.items()}


def _power(before: Tensor, after: Tensor) -> float | None:
    """The power of two by which a truth moved as a whole, or None; None too where it is zero throughout."""
    sizes = torch.where(torch.isfinite(before), before.abs(), torch.zeros_like(before)).flatten()
    if not sizes.numel() or not bool(sizes.max()):
        return None
    largest = int(sizes.argmax())
    power = float(after.flatten()[largest]) / float(before.flatten()[largest])
    # frexp's mantissa of a power of two is one half.
    if math.frexp(power)[0] != 0.5 or not torch.equal(before * power, after):
        return None
    return power


def _scaled(
    subject: Subject, name: str, got: Tensor, factor: float, reason: str, changed: Sample, *, saved: bool = False
) -> Held:
    base, moved = exact(subject.outputs[name]), exact(got)
    if subject.whole(name):
        return same_values(name, moved, base, reason)
    if not subject.exactly(name) or _rounds_narrowly(subject):
        # Below the normal range each has a grid of its own, so that neither radius stands for the other.
        radii = [subject.radius(s, saved=saved)[name] for s in (subject.sample, changed)]
        allowed = abs(factor) * radii[0] + radii[1]
        near = f"{reason}; here within both radii"
        return within(name, moved, base * factor, allowed, near, huge=subject.huge(name))
    # A result that rounds on the subnormal grid, or overflows, on one side only is no power of two away, nor one whose
    # size says that something on the way to it may have.
    form = FORMATS[subject.spec.oracle.result(name).dtype_for(subject.sample.case)]
    smallest = max(form.normal, 1 / SAFE)
    fine = ~((base.abs() < smallest) & (base != 0) | (moved.abs() < smallest) & (moved != 0))
    fine &= torch.isinf(base) | ((base * factor).abs() <= min(form.huge, SAFE))
    vacuous = "" if bool((base[fine] != 0).any()) else "every element is zero, or near the ends of its format's range"
    return same_values(name, moved[fine], base[fine] * factor, reason, vacuous)


def _rounds_narrowly(subject: Subject) -> bool:
    """Whether a value on the way rounds to a format of less range than FP32, where scaling may lose its last bits."""
    results = {r.name for r in subject.spec.oracle.results}
    rounds = subject.spec.contract.policy(subject.sample.case).rounds
    inside = (rounding.dtype for point, rounding in rounds.items() if point not in results)
    return any(FORMATS[dtype].normal > FORMATS["fp32"].normal for dtype in inside)


def _safe(subject: Subject) -> bool:
    """Whether no product of what a kernel is given overflows, or loses bits below the normal range."""
    tensors = subject.sample.exact_tensors().values()
    sizes = [t[torch.isfinite(t)].abs() for t in tensors if t.dtype == torch.float64]
    return all(bool(((t == 0) | (t > 1 / SAFE) & (t < SAFE)).all()) for t in sizes)


def _fits(subject: Subject, changed: Sample) -> bool:
    """Whether scaling has taken no value out of its dtype's range, as FP16's is soon left."""
    before = subject.sample.tensors
    return not any(bool((torch.isinf(t) & ~torch.isinf(before[n])).any()) for n, t in changed.tensors.items())
