"""Certificate: an oracle's forward and VJP against its mpmath twin, at 50 digits, on tiny Cases.

The twin's VJP is not typed again: a reverse tape differentiates the twin's forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import mpmath
import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.errors import InvalidSpec
from numcheck.gate import finite
from numcheck.oracle import Oracle
from numcheck.reading import Truth, read
from numcheck.sample import Sample, sample
from numcheck.tape import Functions, Var, backward
from numcheck.unspecified import unspecified

Status = Literal["CERTIFIED", "UNCERTIFIED", "FAILED"]

DIGITS = 50
# A tiny Case's sums have at most a few dozen terms: 90 unit roundoffs of FP64 relative to their summed size is more
# than any right formula loses, and ten digits less than a wrong one shows.
LIMIT = 1e-14
# FP64 has no number above zero that is smaller.
NOTHING = 2.0**-1074
# Step of the one-sided differences: half the digits go to the step, half are left for the slope.
STEP_DIGITS = 20


@dataclass(frozen=True)
class Certificate:
    """How far an oracle is from its twin.

    worst: the largest error of any element relative to its summed-term size; by_output: the same per output;
    cases: how many were tried. status: UNCERTIFIED where there is no twin. vjp: "autograd" where the oracle has none.
    """

    oracle: str
    worst: float
    by_output: Mapping[str, float]
    cases: int
    status: Status
    limit: float = LIMIT
    vjp: Literal["analytic", "autograd"] = "analytic"
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object; a figure that is no number is written as a string."""
        plain = {name: finite(value) for name, value in self.by_output.items()}
        return {
            "oracle": self.oracle,
            "status": self.status,
            "worst": finite(self.worst),
            "by_output": plain,
            "cases": self.cases,
            "limit": self.limit,
            "vjp": self.vjp,
            "note": self.note,
        }


def certify(oracle: Oracle) -> Certificate:
    """Certify `oracle` on its tiny Cases."""
    vjp: Literal["analytic", "autograd"] = "analytic" if oracle.vjp else "autograd"
    if oracle.twin is None:
        return Certificate(oracle.name, math.nan, {}, 0, "UNCERTIFIED", vjp=vjp, note="the oracle has no mpmath twin")
    if not oracle.space.tiny:
        raise InvalidSpec(f"oracle {oracle.name} has a twin but no tiny Cases; give its space some, say sizes 1 to 5")
    worst: dict[str, float] = {}
    for case in oracle.space.tiny:
        for name, error in _errors(oracle, case).items():
            # NaN must not hide behind a comparison that is false.
            worst[name] = error if math.isnan(error) else max(worst.get(name, 0.0), error)
    unseen = [output.name for output in oracle.results if output.name not in worst]
    if unseen:
        raise InvalidSpec(f"oracle {oracle.name}: no tiny Case has {', '.join(unseen)}; give its space one that does")
    overall = math.nan if any(math.isnan(e) for e in worst.values()) else max(worst.values())
    status: Status = "CERTIFIED" if overall <= LIMIT else "FAILED"
    return Certificate(oracle.name, overall, worst, len(oracle.space.tiny), status, vjp=vjp)


def slope(oracle: Oracle, case: Case, values: Mapping[str, Any], name: str, index: int, side: int) -> float:
    """One-sided derivative of sum(cotangent * output) with respect to element `index` of the input `name`.

    For a kink, where the two sides differ and the oracle takes one by its policy: side is 1 or -1. By differences of
    the twin at 50 digits; `values` stand in for drawn inputs and cotangents.
    """
    if oracle.twin is None:
        raise InvalidSpec(f"oracle {oracle.name} has no twin to take differences of")
    mp = _context()
    drawn = sample(oracle, case, values=values)
    exact = drawn.exact()
    step = mp.mpf(10) ** -STEP_DIGITS * side

    def loss(shift: Any) -> Any:
        inputs = _inputs(oracle, drawn, mp.mpf)
        flat = list(_leaves(inputs[name]))
        shifted = iter([x + shift if k == index else x for k, x in enumerate(flat)])
        inputs[name] = _rebuilt(inputs[name], shifted)
        outputs = _twin(oracle, mp, drawn, inputs)
        return mp.fsum(
            x * mp.mpf(seed)
            for c in oracle.cotangents_for(case)
            for x, seed in zip(
                _leaves(outputs[c.name.removeprefix("d_")]), exact[c.name].flatten().tolist(), strict=True
            )
        )

    return float((loss(step) - loss(mp.mpf(0))) / step)


def _errors(oracle: Oracle, case: Case) -> dict[str, float]:
    """Output -> largest error over its elements, relative to the summed-term size."""
    mp, drawn = _context(), sample(oracle, case)
    exact, open_ = drawn.exact(), unspecified(oracle, drawn)
    got = read(oracle, Truth(), exact)
    inputs = _inputs(oracle, drawn, lambda v: Var(mp.mpf(v), abs(mp.mpf(v))))
    outputs = {name: list(_leaves(v)) for name, v in _twin(oracle, mp, drawn, inputs).items()}
    errors = {
        o.name: _worst(mp, oracle, got[o.name], [_parts(mp, v) for v in outputs[o.name]], o.name, open_.get(o.name))
        for o in oracle.outputs_for(case)
    }
    roots = [
        (value, mp.mpf(seed))
        for c in oracle.cotangents_for(case)
        for value, seed in zip(outputs[c.name.removeprefix("d_")], exact[c.name].flatten().tolist(), strict=True)
        if isinstance(value, Var)
    ]
    backward(roots)
    for g in oracle.gradients_for(case):
        leaves = _leaves(inputs[g.name.removeprefix("d_")])
        adjoints = [(v.adjoint, v.adjoint_size) for v in leaves]
        errors[g.name] = _worst(mp, oracle, got[g.name], adjoints, g.name, open_.get(g.name))
    return errors


def _worst(
    mp: Any, oracle: Oracle, got: Tensor, expected: list[tuple[Any, Any]], name: str, left_open: Tensor | None
) -> float:
    """The largest error over the elements that the problem specifies."""
    flat = got.flatten().tolist()
    if len(flat) != len(expected):
        raise InvalidSpec(f"oracle {oracle.name}: {name} has {len(flat)} elements, its twin {len(expected)}")
    skipped = [False] * len(flat) if left_open is None else left_open.flatten().tolist()
    worst = 0.0
    for mine, (value, size), skip in zip(flat, expected, skipped, strict=True):
        if skip:
            continue
        error = _relative(mp, mine, value, size)
        if math.isnan(error):
            return error
        worst = max(worst, error)
    return worst


def _relative(mp: Any, got: float, value: Any, size: Any) -> float:
    if not mp.isfinite(value) or not math.isfinite(got):
        return 0.0 if mp.mpf(got) == value else math.nan
    difference = abs(mp.mpf(got) - value)
    if difference == 0 or (got == 0 and size < NOTHING):
        return 0.0
    return float(difference / size) if size else math.inf


def _inputs(oracle: Oracle, drawn: Sample, make: Any) -> dict[str, Any]:
    """The inputs as nested lists, floats by `make`; None for those that the Case does not have."""
    exact = drawn.exact_tensors()
    inputs = {i.name: _nested(exact[i.name], make) if i.name in exact else None for i in oracle.inputs}
    return inputs | _increments(oracle, drawn.case, make)


def _increments(oracle: Oracle, case: Case, make: Any) -> dict[str, Any]:
    """Zeros for what has a gradient but is no input, as a backward may find a bias inside its input already.

    The twin adds them where the tensor of that name enters.
    """
    known = {i.name for i in oracle.inputs}
    gradients = {g.name.removeprefix("d_"): g.shape(case) for g in oracle.gradients_for(case)}
    return {
        name: _nested(torch.zeros(shape, dtype=torch.float64), make)
        for name, shape in gradients.items()
        if name not in known
    }


def _twin(oracle: Oracle, mp: Any, drawn: Sample, inputs: dict[str, Any]) -> dict[str, Any]:
    assert oracle.twin is not None
    # In FP64 the twin's own arithmetic on a scalar would round.
    scalars = {name: mp.mpf(v) if isinstance(v, float) else v for name, v in drawn.scalars.items()}
    outputs = oracle.twin(Functions(mp), drawn.case, **inputs, **scalars)
    missing = {o.name for o in oracle.outputs_for(drawn.case)} - set(outputs)
    if missing:
        raise InvalidSpec(f"oracle {oracle.name}: its twin returns no {', '.join(sorted(missing))}")
    return outputs


def _context() -> Any:
    """A context of our own, so that mpmath's global precision stays what the host made it."""
    context = mpmath.MPContext()
    context.dps = DIGITS
    return context


def _parts(mp: Any, x: Any) -> tuple[Any, Any]:
    return (x.value, x.size) if isinstance(x, Var) else (mp.mpf(x), abs(mp.mpf(x)))


def _nested(t: Tensor, make: Any) -> Any:
    """Nested lists of numbers; integers and bools stay plain, since nothing is differentiated by an index."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(v) for v in value]
        return make(value) if isinstance(value, float) else value

    return walk(t.tolist())


def _rebuilt(nested: Any, leaves: Iterator[Any]) -> Any:
    return [_rebuilt(v, leaves) for v in nested] if isinstance(nested, list) else next(leaves)


def _leaves(nested: Any) -> Iterator[Any]:
    if isinstance(nested, list | tuple):
        for value in nested:
            yield from _leaves(value)
    else:
        yield nested
