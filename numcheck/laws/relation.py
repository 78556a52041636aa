"""What the relation-like laws share: two tensors set against each other, exactly or within a derived allowance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from numcheck.difference import difference
from numcheck.gate import Gate
from numcheck.verdict import OutputVerdict, Status, worst


@dataclass(frozen=True)
class Held:
    """One output under one relation: the Gate, and "tensor got= expected= at index" where it did not hold."""

    gate: Gate
    where: str = ""


def same_bits(output: str, got: Tensor, expected: Tensor, reason: str, vacuous: str = "") -> Held:
    """Held if every bit of `got` equals `expected`'s; the gate's value is the number of elements that differ."""
    found = difference(got, expected, reason)
    count = found.count if found else 0
    gate = Gate("exact", output, float(count), 0.0, reason, vacuous="" if count else vacuous or _empty(expected))
    return Held(gate, found.where(output) if found else "")


def same_values(output: str, got: Tensor, expected: Tensor, reason: str, vacuous: str = "") -> Held:
    """Held if every element of the FP64 tensors is equal, -0.0 and 0.0 alike; a NaN equals nothing."""
    wrong = ~(got == expected)
    count = int(wrong.sum())
    gate = Gate("exact", output, float(count), 0.0, reason, vacuous="" if count else vacuous or _empty(expected))
    return Held(gate, _where(output, got, expected, wrong.to(torch.float64)) if count else "")


def whole(tensor: Tensor) -> Tensor:
    """An integer or bool tensor, or exact whole numbers, as int64 on the CPU."""
    return tensor.detach().cpu().to(torch.int64)


def within(output: str, got: Tensor, expected: Tensor, allowed: Tensor, reason: str, *, huge: float) -> Held:
    """Held if |got - expected| <= allowed for every element; the gate's value is the largest share of the allowance.

    All three are FP64 on the CPU; huge: the largest number of the output's own format. Where both are the same infinity
    they agree, and where one is an infinity that the other overflows to; a NaN never does.
    """
    agree = (got == expected) | overflowed(got, expected, allowed, huge) | overflowed(expected, got, allowed, huge)
    apart = torch.where(agree, torch.zeros_like(got), (got - expected).abs())
    share = torch.where(agree, torch.zeros_like(got), apart / allowed)
    share = torch.nan_to_num(share, nan=math.inf, posinf=math.inf)
    value = float(share.max()) if share.numel() else 0.0
    toothless = _empty(expected) or _loose(expected, allowed)
    gate = Gate("ceiling", output, value, 1.0, reason, vacuous="" if value > 1.0 else toothless)
    return Held(gate, _where(output, got, expected, share) if value > 1.0 else "")


def added(
    output: str, parts: tuple[Tensor, Tensor], whole: Tensor, allowed: Tensor, reason: str, *, huge: float
) -> Held:
    """As `within`, of the sum of two parts; one of them may have overflowed where the rest of the whole says so."""
    one, two = parts
    apart = overflowed(one, whole - two, allowed, huge) | overflowed(two, whole - one, allowed, huge)
    return within(output, torch.where(apart, whole, one + two), whole, allowed, reason, huge=huge)


def overflowed(got: Tensor, exact: Tensor, allowed: Tensor, huge: float) -> Tensor:
    """Where `got` is the infinity that a cast makes of `exact`: within `allowed` of it lies what is beyond `huge`."""
    return torch.isinf(got) & (exact.abs() + allowed > huge) & (torch.sign(got) == torch.sign(exact))


def verdicts(held: dict[str, list[Held]], silent: str) -> dict[str, OutputVerdict]:
    """One verdict an output: FAIL with what broke, VACUOUS where nothing had teeth (`silent`: why nothing ran)."""
    return {output: _verdict(relations, silent) for output, relations in held.items()}


def merged(first: OutputVerdict, second: OutputVerdict) -> OutputVerdict:
    """The worse of two verdicts of one output, with both reasons where both are failures."""
    if first.status >= Status.FAIL and second.status >= Status.FAIL:
        return OutputVerdict(
            worst((first.status, second.status)), f"{first.why}; {second.why}", first.where or second.where
        )
    return first if first.status >= second.status else second


def _verdict(relations: list[Held], silent: str) -> OutputVerdict:
    broken = [r for r in relations if not r.gate.held]
    if broken:
        return OutputVerdict(Status.FAIL, "; ".join(r.gate.reason for r in broken), broken[0].where)
    if all(r.gate.vacuous for r in relations):
        return OutputVerdict(Status.VACUOUS, relations[0].gate.vacuous if relations else silent)
    return OutputVerdict(Status.PASS)


def _empty(expected: Tensor) -> str:
    return "" if expected.numel() else "the output is empty"


def _loose(expected: Tensor, allowed: Tensor) -> str:
    """Why an allowance has no teeth: not one element is larger than what it allows."""
    return "" if bool((expected.abs() > allowed).any()) else "every element is within its allowance of zero"


def _where(output: str, got: Tensor, expected: Tensor, badness: Tensor) -> str:
    index = tuple(int(i) for i in torch.unravel_index(badness.flatten().argmax(), badness.shape))
    return f"{output} got={float(got[index])!r} expected={float(expected[index])!r} at {index}"
