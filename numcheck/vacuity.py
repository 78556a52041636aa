"""Vacuity: could another order of summation have changed an output's bits here? Asked before any verdict.

The proof takes the oracle's own terms, cut into the partial sums that the kernel adds (as many as were measured,
declared or implied by the Contract), adds them in every distinct order in the accumulator's dtype, casts as the
kernel casts, and counts the addresses whose bits change. It is evidence and no certainty: the kernel's partial sums are
not exactly these, so a flip that was seen outranks it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from numcheck.case import Case
from numcheck.contract import Sum
from numcheck.errors import NumcheckError
from numcheck.evidence import Evidence, Footprint
from numcheck.oracle import CaseSpace
from numcheck.order import Order, orders
from numcheck.reading import Recording, read
from numcheck.sample import Sample, sample
from numcheck.spec import KernelSpec
from numcheck.ulp import cast, round_to

if TYPE_CHECKING:
    from torch import Tensor

Source = Literal["measured", "declared", "oracle"]
Terms = Mapping[str, tuple["Tensor", int | tuple[int, ...]]]

# IEEE addition commutes, so two addends onto zero give the same bits in either order; a third makes order matter.
ADDENDS = 3
# Four addends have twelve distinct orders of addition, the one written among them; more addends get as many tries.
ORDERS = 11
# One sensitive address proves that order could matter; a proof from the oracle's terms errs both ways, so aim for more.
SEVERAL = 8
# Partial sums added up per order at most, which keeps a proof near 10 ms: fewer addresses where each is long.
PARTIALS = 2**17
# Sizes tried above the Case's own for one that the ownership map gives three writers.
SEARCHED = 4096
# Half of the one-address Cases of three spread addends are sensitive, so four seeds in a row miss one time in sixteen.
SEEDS = 4
_NUMPY = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}


@dataclass(frozen=True)
class Proof:
    """What is known of one output's order of summation on one Case.

    addends: the most values added to one address, a non-zero start counting as one; source says who says so.
    terms: terms of the oracle's sum behind one address (0: it makes this output without a sum).
    addresses: how many were examined. sums: how many of them change bits in the accumulator's dtype under some other
    order; sensitive: how many still do after the output's cast, where bits are compared.
    """

    output: str
    addends: int = 1
    source: Source = "oracle"
    terms: int = 0
    addresses: int = 0
    sums: int = 0
    sensitive: int = 0

    @property
    def proven(self) -> bool:
        """Whether an order of these addends changes bits at the point of comparison."""
        return self.addends >= ADDENDS and self.sensitive > 0

    @property
    def why(self) -> str:
        """In one line, what the proof rests on or what it lacks."""
        if self.addresses == 0 and self.terms > 0:
            return "it has no elements"
        if self.addends < ADDENDS:
            count = {0: "no addend", 1: "one addend", 2: "two addends"}[self.addends]
            return f"{count} an address ({self.source}); order matters from three on"
        lost = f", {self.sums} before the cast" if self.sums else ""
        return (
            f"{self.addends} addends an address ({self.source}); another order changes "
            f"{self.sensitive} of {self.addresses} addresses{lost}"
        )

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object."""
        return {
            "addends": self.addends,
            "source": self.source,
            "addresses": self.addresses,
            "sums": self.sums,
            "sensitive": self.sensitive,
            "proven": self.proven,
        }


@dataclass(frozen=True)
class Recorded:
    """The oracle's truth on one Sample, and the terms of each of its totals: name -> (terms, summed dims), FP64."""

    truth: Mapping[str, Tensor]
    terms: Terms

    def saved(self, spec: KernelSpec, drawn: Sample) -> dict[str, Tensor] | None:
        """Saved outputs for a spec without a forward: the truth rounded once. None where its own forward makes them."""
        if spec.forward is not None or not spec.oracle.saved:
            return None
        dtypes = {name: spec.oracle.result(name).dtype_for(drawn.case) for name in spec.oracle.saved}
        device = next(iter(drawn.inputs.values())).device
        return {name: cast(self.truth[name], dtype).to(device) for name, dtype in dtypes.items()}


def record(spec: KernelSpec, drawn: Sample) -> Recorded:
    """Read the oracle's truth on a Sample and keep the terms of each total."""
    recording = Recording()
    truth = read(spec.oracle, recording, drawn.exact(), None)
    return Recorded(truth, recording.terms)


def prove(spec: KernelSpec, case: Case, terms: Terms, evidence: Evidence) -> dict[str, Proof]:
    """One Proof for each output that `spec` computes, from its measured, declared or implied addends.

    terms: of `record` on the same Case.
    """
    return {
        output: _proof(spec, case, terms, output, *_known(spec, case, output, evidence.footprints.get(output)))
        for output in spec.judged
    }


def _known(spec: KernelSpec, case: Case, output: str, footprint: Footprint | None) -> tuple[int | None, Source]:
    """Addends that something better than the oracle vouches for, and who does."""
    if footprint is not None and footprint.atomic:
        return footprint.addends, "measured"
    # A claim of one writer cannot be its own excuse: where it stays unproven, the oracle's addends judge it.
    if spec.writers is not None and spec.contract.order_of(output, case) != "single":
        return spec.writers(case).get(output), "declared"
    return None, "oracle"


def _proof(spec: KernelSpec, case: Case, terms: Terms, output: str, known: int | None, source: Source) -> Proof:
    if known is None:
        source = "oracle"
    if output not in terms:
        return Proof(output, 1 if known is None else known, source)
    policy = spec.contract.policy(case)
    how = policy.sum_of(output)
    rows = _rows(*terms[output])
    block = _block(rows.shape[1], how, known)
    count = math.ceil(rows.shape[1] / block)
    bare = Proof(output, count if known is None else known, source, rows.shape[1], rows.shape[0])
    if min(bare.addends, count) < ADDENDS or bare.addresses == 0:
        return bare
    rows = _some(rows, max(SEVERAL, PARTIALS // count))
    partials = _partials(rows, block)
    sums = [_added(partials, order, how.dtype) for order in (Order(), *orders(case.key, count, ORDERS))]
    rounding = policy.rounds.get(output)
    target = rounding.dtype if rounding else spec.oracle.result(output).dtype_for(case)
    casts = [round_to(total, target, rounding.mode if rounding else "nearest") for total in sums]
    return replace(bare, addresses=rows.shape[0], sums=_changed(sums), sensitive=_changed(casts))


def _rows(terms: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The terms as [addresses, terms of one address], in the oracle's order."""
    dims = tuple(d % terms.ndim for d in ((dim,) if isinstance(dim, int) else dim))
    length = math.prod(terms.shape[d] for d in dims)
    moved = terms.movedim(dims, tuple(range(terms.ndim - len(dims), terms.ndim)))
    return moved.reshape(math.prod(moved.shape[: terms.ndim - len(dims)]), length)


def _block(length: int, how: Sum, known: int | None) -> int:
    """Terms in one partial sum: the Contract's block unless other addends were measured or declared."""
    block = how.block or 1
    if known and math.ceil(length / block) != known:
        return max(1, math.ceil(length / known))
    return block


def _some(rows: Tensor, most: int) -> Tensor:
    """At most `most` rows, spread evenly."""
    if rows.shape[0] <= most:
        return rows
    return rows[torch.linspace(0, rows.shape[0] - 1, most).long()]


def _partials(rows: Tensor, block: int) -> Tensor:
    """Partial sums [addresses, partials] of `block` terms each."""
    short = -rows.shape[1] % block
    padded = torch.nn.functional.pad(rows, (0, short))
    return padded.reshape(rows.shape[0], -1, block).sum(-1)


def _added(partials: Tensor, order: Order, dtype: str) -> Tensor:
    """The partials rounded to `dtype` and added one after the other in `order`, each sum rounded to `dtype`."""
    permutation = order.permutation(partials.shape[1])
    if dtype not in _NUMPY:
        return _added_by_hand(partials, permutation, dtype)
    with np.errstate(all="ignore"):
        cast = partials.numpy()[:, permutation].astype(_NUMPY[dtype])
        # add.accumulate is a running sum, so no pairwise tree hides the order.
        total = np.add.accumulate(cast, axis=1)[:, -1]
    return torch.from_numpy(total.astype(np.float64))


def _added_by_hand(partials: Tensor, permutation: list[int], dtype: str) -> Tensor:
    total = round_to(partials[:, permutation[0]], dtype)
    for k in permutation[1:]:
        total = round_to(total + round_to(partials[:, k], dtype), dtype)
    return total


def _changed(results: list[Tensor]) -> int:
    """At how many addresses some result has other bits than the first."""
    raw = torch.stack([r.contiguous().view(torch.int64) for r in results])
    return int((raw[1:] != raw[0]).any(0).sum())


def nearest(spec: KernelSpec, case: Case, proof: Proof) -> Case | None:
    """The Case with the fewest changed facts whose proof holds, or None where none of those tried does."""
    for candidate in _candidates(spec, case, proof):
        if candidate == case or spec.illegal(candidate) is not None:
            continue
        try:
            terms = record(spec, sample(spec.oracle, candidate)).terms
        except NumcheckError:
            # A problem may refuse sizes that its space does not rule out; then this neighbour is no advice.
            continue
        known, source = _known(spec, candidate, proof.output, None)
        if proof.source == "measured" and known is None:
            known, source = max(ADDENDS, proof.addends), "measured"
        if _proof(spec, candidate, terms, proof.output, known, source).proven:
            return candidate
    return None


def advice(spec: KernelSpec, case: Case, proof: Proof) -> str:
    """The smallest change found that would make `proof` hold, as one clause."""
    found = nearest(spec, case, proof)
    if found is None:
        return f"no nearby Case is proven; where one program owns an address, claim {proof.output}='single'"
    return "non-vacuous with " + ", ".join(_changes(case, found))


def _candidates(spec: KernelSpec, case: Case, proof: Proof) -> Iterator[Case]:
    """Neighbours of `case`, the nearest first: sizes only where addends are lacking, then values."""
    for sized in _sized(spec, case.but(**{name: 1 for name, value in case.sizes if value == 0}), proof):
        yield sized
        yield sized.but(regime="wide")
        most = sized.but(regime="wide", dtype="fp32")
        yield most
        # With few addresses even spread-out values may add exactly by chance.
        yield from (most.but(seed=case.seed + k) for k in range(1, SEEDS + 1))


def _sized(spec: KernelSpec, case: Case, proof: Proof) -> Iterator[Case]:
    """`case` where it has addends enough, else with its summed size raised, or with each size raised by one step."""
    if proof.terms == 0:
        return
    if proof.addends >= ADDENDS:
        yield case
        return
    dims = spec.oracle.result(proof.output).dims
    summed = [n for n, value in case.sizes if value == proof.terms and (callable(dims) or n not in dims)]
    for name in summed or [n for n, _ in case.sizes]:
        wanted = _wanted(spec, case, proof, name) if summed else case[name] + 1
        value = _at_least(spec.oracle.space, name, wanted)
        if value is not None:
            yield case.but(**{name: value})


def _wanted(spec: KernelSpec, case: Case, proof: Proof, name: str) -> int:
    """The size that gives an address three addends: by the ownership map, the Contract's block, or a safe guess."""
    if spec.writers is not None:
        larger = range(case[name] + 1, case[name] + 1 + SEARCHED)
        found = (v for v in larger if spec.writers(case.but(**{name: v})).get(proof.output, 0) >= ADDENDS)
        return next(found, case[name] + SEARCHED)
    block = spec.contract.policy(case).sum_of(proof.output).block
    # Unknown blocks that cut the terms in two have fewer than all of them each.
    return (ADDENDS - 1) * (block or max(1, proof.terms + 1 - proof.addends)) + 1


def _at_least(space: CaseSpace, name: str, wanted: int) -> int | None:
    """The smallest value of a size that the problem has and that is not below `wanted`."""
    if name in space.choices:
        return min((v for v in space.choices[name] if v >= wanted), default=None)
    return wanted if name in space.sizes and wanted <= space.sizes[name][1] else None


def _changes(case: Case, other: Case) -> Iterator[str]:
    before = {**dict(case.sizes), "dtype": case.dtype, "regime": case.regime, "seed": case.seed}
    after = {**dict(other.sizes), "dtype": other.dtype, "regime": other.regime, "seed": other.seed}
    return (f"{name}={after[name]} (now {before[name]})" for name in before if after[name] != before[name])
