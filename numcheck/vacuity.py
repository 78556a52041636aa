"""Vacuity: could another order of summation have changed an output's bits here? Asked before any verdict.

The proof takes the oracle's own terms, cut into the partial sums that the kernel adds (as many as were measured,
declared or implied by the Contract), adds them in every distinct order in the accumulator's dtype, casts as the
kernel casts, and counts the addresses whose bits change. It is evidence and no certainty: the kernel's partial sums are
not exactly these, so a flip that was seen outranks it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from numcheck.case import Case
from numcheck.clock import timed
from numcheck.contract import Sum
from numcheck.evidence import ADDENDS, Evidence, Footprint
from numcheck.oracle import Input, Oracle, Output
from numcheck.order import Order, orders
from numcheck.reading import Recording, read
from numcheck.reading.addends import Addends, Scattered, chained, thinned
from numcheck.reading.pieces import Pieces
from numcheck.reading.slices import rows_that_fit, sliced
from numcheck.reading.walk import walk
from numcheck.sample import Sample, in_layout
from numcheck.spec import KernelSpec
from numcheck.ulp import cast, round_to

if TYPE_CHECKING:
    from torch import Tensor

Numbers = npt.NDArray[Any]
Source = Literal["measured", "declared", "oracle"]
Terms = Mapping[str, Addends]

# Four addends have twelve distinct orders of addition, the one written among them; more addends get as many tries.
ORDERS = 11
# One sensitive address proves that order could matter; a proof from the oracle's terms errs both ways, so aim for more.
SEVERAL = 8
# Partial sums added up per order at most, which keeps a proof near 10 ms: fewer addresses where each is long.
PARTIALS = 2**17
# Elements (the product of a Case's sizes) whose truth is read for a proof; 15,000 are enough to see a bf16 flip.
ELEMENTS = 2**17
# Elements of the terms of a scatter over a whole batch that are kept: some columns of it where it has more.
KEPT = 2**22
_NATIVE = {"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}
_WORKS_IN = {**_NATIVE, "bf16": np.float64}


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
class Vouched:
    """How many values are added to one address, and who says so."""

    addends: int
    source: Source


@dataclass(frozen=True)
class Recorded:
    """The oracle's truth on one Sample, and the addends of each of its named sums, FP64."""

    truth: Mapping[str, Tensor]
    terms: Terms

    def saved(self, spec: KernelSpec, drawn: Sample) -> dict[str, Tensor] | None:
        """Saved outputs for a spec without a forward: the truth rounded once, in the Case's layout.

        None where its own forward makes them.
        """
        if spec.forward is not None or not spec.oracle.saved:
            return None
        dtypes = {name: spec.oracle.result(name).dtype_for(drawn.case) for name in spec.oracle.saved_for(drawn.case)}
        device = str(next(iter(drawn.inputs.values())).device)
        rounded = {name: cast(self.truth[name], dtype) for name, dtype in dtypes.items()}
        return {name: in_layout(tensor, drawn.case, device) for name, tensor in rounded.items()}


def record(spec: KernelSpec, drawn: Sample) -> Recorded:
    """Read the oracle's truth on a Sample and keep the terms of each named sum.

    Of a large Case, what is a sum over the batch is read slice by slice, and so are the saved outputs that a spec
    without a forward needs. Where there is neither, only as many rows are read as a proof looks at.
    """
    oracle, case = spec.oracle, drawn.case
    batch = case[oracle.batch] if oracle.batch else 0
    summed = any(name in oracle.partial for name in spec.judged_for(case))
    if not summed and (spec.forward is not None or not oracle.saved):
        recording = Recording()
        truth = read(oracle, recording, _first_rows(spec, case, drawn.exact()), None)
        return Recorded(truth, recording.terms)
    rows = rows_that_fit(oracle, drawn, "cpu") if batch else 0
    if rows >= batch:
        recording = Recording()
        return Recorded(read(oracle, recording, drawn.exact(), None), recording.terms)
    return _recorded_in_slices(oracle, drawn, batch, rows)


def _recorded_in_slices(oracle: Oracle, drawn: Sample, batch: int, rows: int) -> Recorded:
    """The truth of every row; the terms of the sums over the batch, of anything else those of the first slice."""
    links: dict[str, list[Addends]] = {}
    stretches: dict[str, list[Tensor]] = {}
    recording = Recording()
    recording.pieces = Pieces(frozenset(oracle.partial))
    for start in range(0, batch, rows):
        stop = min(start + rows, batch)
        recording.start()
        for name, value in walk(oracle, recording, sliced(oracle, drawn, start, stop, "cpu"), None).items():
            if name in oracle.partial:
                recording.keep(name, value)
            else:
                stretches.setdefault(name, []).append(recording.leave(value))
        for name, addends in recording.terms.items():
            if name in oracle.partial or not start:
                links.setdefault(name, []).append(_bounded(addends, batch / (stop - start)))
    truth = {name: torch.cat(values) for name, values in stretches.items()}
    summed = {name: recording.settle(name) for name in recording.pieces.before}
    return Recorded(truth | summed, {name: chained(found) for name, found in links.items()})


def _bounded(addends: Addends, slices: float) -> Addends:
    """Addends of one of so many slices, of a scatter as many columns as leave all of them with KEPT elements."""
    if not isinstance(addends, Scattered):
        return addends
    return thinned(addends, max(1, int(KEPT / max(1.0, addends.terms.shape[0] * slices))))


def _first_rows(spec: KernelSpec, case: Case, exact: dict[str, Any]) -> dict[str, Any]:
    """The first rows of each tensor whose first axis is the batch; all of them where the Case is small."""
    oracle = spec.oracle
    declared: tuple[Input | Output, ...] = (*oracle.inputs, *oracle.cotangents)
    if not oracle.batch or any(callable(d.dims) for d in declared):
        return exact
    others = math.prod(value for name, value in case.sizes if name != oracle.batch)
    rows = max(1, ELEMENTS // max(1, others))
    batched = {d.name for d in declared if not callable(d.dims) and d.dims[:1] == (oracle.batch,)}
    return {name: value[:rows].contiguous() if name in batched else value for name, value in exact.items()}


@timed("judge")
def prove(spec: KernelSpec, case: Case, terms: Terms, evidence: Evidence) -> dict[str, Proof]:
    """One Proof for each output that `spec` computes. terms: those of `record` on the same Case."""
    return {
        output: prove_output(spec, case, terms, output, vouched(spec, case, output, evidence.footprints.get(output)))
        for output in spec.judged_for(case)
    }


def vouched(spec: KernelSpec, case: Case, output: str, footprint: Footprint | None) -> Vouched | None:
    """The addends that something better than the oracle vouches for: the measured map or the declared one."""
    if footprint is not None and footprint.atomic:
        return Vouched(footprint.addends, "measured")
    # A claim of one writer cannot be its own excuse: where it stays unproven, the oracle's addends judge it.
    if spec.writers is None or spec.contract.order_of(output, case) == "single":
        return None
    declared = spec.writers(case).get(output)
    return None if declared is None else Vouched(declared, "declared")


def prove_output(spec: KernelSpec, case: Case, terms: Terms, output: str, given: Vouched | None) -> Proof:
    """The Proof of one output with `given` addends an address, or as many as the Contract's blocks of terms imply."""
    if output not in terms or spec.oracle.result(output).whole:
        # Integers add up alike in any order.
        return Proof(output, given.addends if given else 1, given.source if given else "oracle")
    policy = spec.contract.policy(case)
    how = policy.sum_of(output)
    addends = terms[output]
    block = _block(addends.most, how, given)
    count = math.ceil(addends.most / block)
    source: Source = given.source if given else "oracle"
    bare = Proof(output, given.addends if given else count, source, addends.most, addends.addresses)
    if min(bare.addends, count) < ADDENDS or bare.addresses == 0:
        return bare
    rows = addends.rows(max(SEVERAL, PARTIALS // count))
    partials = _partials(rows, block, how.dtype)
    sums = [_added(partials, order, how.dtype) for order in (Order(), *orders(case.key, count, ORDERS))]
    rounding = policy.rounds.get(output)
    target = rounding.dtype if rounding else spec.oracle.result(output).dtype_for(case)
    casts = [round_to(total, target, rounding.mode if rounding else "nearest") for total in sums]
    return replace(bare, addresses=rows.shape[0], sums=_changed(sums), sensitive=_changed(casts))


def _block(length: int, how: Sum, given: Vouched | None) -> int:
    """Terms in one partial sum: the Contract's block unless other addends were measured or declared.

    Those fix a block only within limits; kernels cut by powers of two where one lies within them.
    """
    block = how.block or 1
    if given is None or given.addends == 0 or math.ceil(length / block) == given.addends:
        return block
    smallest = max(1, math.ceil(length / given.addends))
    power = 1 << (smallest - 1).bit_length()
    return power if math.ceil(length / power) == given.addends else smallest


def _partials(rows: Tensor, block: int, dtype: str) -> Numbers:
    """Partial sums [addresses, partials] of `block` terms each, added in halves in `dtype` as a block's reduction does.

    Summed exactly they would keep low bits that a kernel's partial sums have lost, and depend on order more often.
    """
    width = 1 << (block - 1).bit_length()
    count = math.ceil(rows.shape[1] / block)
    padded = torch.nn.functional.pad(rows, (0, count * block - rows.shape[1]))
    blocks = torch.nn.functional.pad(padded.reshape(rows.shape[0], count, block), (0, width - block))
    sums: Numbers = round_to(blocks, dtype).numpy().astype(_WORKS_IN[dtype])
    with np.errstate(all="ignore"):
        while sums.shape[-1] > 1:
            half = sums.shape[-1] // 2
            sums = _held(sums[..., :half] + sums[..., half:], dtype)
    return sums[..., 0]


def _added(partials: Numbers, order: Order, dtype: str) -> Tensor:
    """The partials added one after the other in `order`, each sum rounded to `dtype`; as FP64."""
    moved = partials[:, order.permutation(partials.shape[1])]
    with np.errstate(all="ignore"):
        if dtype in _NATIVE:
            # add.accumulate is a running sum, so no pairwise tree hides the order.
            return torch.from_numpy(np.add.accumulate(moved, axis=1)[:, -1].astype(np.float64))
        total = moved[:, 0]
        for k in range(1, moved.shape[1]):
            total = _held(total + moved[:, k], dtype)
    return torch.from_numpy(total.astype(np.float64))


def _held(sums: Numbers, dtype: str) -> Numbers:
    """Sums as `dtype` holds them; numpy has no bf16, whose sums are exact in FP64 before their one rounding."""
    return sums if dtype in _NATIVE else round_to(torch.from_numpy(sums), dtype).numpy()


def _changed(results: list[Tensor]) -> int:
    """At how many addresses some result has other bits than the first."""
    raw = torch.stack([r.contiguous().view(torch.int64) for r in results])
    return int((raw[1:] != raw[0]).any(0).sum())
