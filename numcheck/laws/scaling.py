"""Relations of size: the VJP is linear in the cotangent, and powers of two pass through rounding exactly."""

from __future__ import annotations

from collections.abc import Generator, Mapping

import torch
from torch import Tensor

from numcheck.laws.relation import Held, same_values, within
from numcheck.laws.subject import Relations, Subject
from numcheck.reading import Truth, read
from numcheck.sample import Counter, exact
from numcheck.ulp import FORMATS

# Any power of two is exact; 4 moves exponents by more than a lost carry bit would.
FACTOR = 4.0
# Powers of two are exact as long as no product of three values leaves the normal range of FP32, 2^-126 to 2^127, and
# no difference of two such products has its last bit below it: 3 * 32 + 24 <= 126.
SAFE = 2.0**32


def _gradients(subject: Subject) -> list[str]:
    return [g.name for g in subject.spec.oracle.gradients] if subject.spec.vjp else []


def linear(subject: Subject) -> Relations:
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


def scaled_cotangent(subject: Subject) -> Relations:
    """vjp(-4 g) = -4 vjp(g), exactly."""
    names = _gradients(subject)
    if not names or not subject.sample.cotangents or not _safe(subject):
        return
    changed = subject.sample.but(**{n: t * -FACTOR for n, t in subject.sample.cotangents.items()})
    got = subject.rerun(changed, "the cotangent times -4", saved=True)
    reason = "the VJP is linear in the cotangent: times -4 is exact in binary"
    for name in names:
        yield name, _scaled(subject, name, got[name], -FACTOR, reason)


def scaled_inputs(subject: Subject) -> Relations:
    """Where the truth of inputs times 4 is a power of two times the truth, so are the kernel's bits.

    Inputs of one declared dtype are scaled together; only where no output follows exactly are they scaled one by one.
    """
    if not _safe(subject):
        return
    oracle, given = subject.spec.oracle, subject.sample.inputs
    truth = read(oracle, Truth(), subject.sample.exact(), None)
    groups: dict[object, list[str]] = {}
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
        allowed = 2 * abs(factor) * subject.own[name]
        return within(name, moved, base * factor, allowed, f"{reason}; in any order, within twice the radius")
    # A result that rounds on the subnormal grid on one side only is no power of two away.
    normal = FORMATS[subject.spec.oracle.result(name).dtype_for(subject.sample.case)].normal
    fine = ~((base.abs() < normal) & (base != 0) | (moved.abs() < normal) & (moved != 0))
    vacuous = "" if bool((base[fine] != 0).any()) else "every element is zero or subnormal"
    return same_values(name, moved[fine], base[fine] * factor, reason, vacuous)


def _safe(subject: Subject) -> bool:
    """Whether no product that a kernel could form overflows, or loses bits below the normal range."""
    tensors = {**subject.sample.exact(), **{n: exact(t) for n, t in subject.run.outputs.items()}}
    sizes = [t.abs() for t in tensors.values() if t.dtype == torch.float64 and t.numel()]
    return all(bool(((t == 0) | (t > 1 / SAFE) & (t < SAFE)).all()) for t in sizes)
