"""Declared: a kernel's promise in words, so that a later run shows what of it moved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, product

from numcheck.case import Case
from numcheck.contract import ORDER_PROMISES, Sum
from numcheck.oracle import CaseSpace
from numcheck.spec import KernelSpec

# Corners of the grid that a Contract is read on: two ends of each of six sizes, more than any problem here has.
CORNERS = 64


def declared(spec: KernelSpec) -> dict[str, str]:
    """What `spec` promises: roundings, sums and order for each dtype, and what holds for all Cases.

    A Contract may be a function of the Case. It is read on the named Cases and on the corners of the grid: each
    rounding and sum is said that one of them has, and the weakest order; workspace of the first, which is named.
    """
    lines = {
        "dtypes": ", ".join(spec.dtypes),
        "outputs": ", ".join(spec.judged),
        "must run": ", ".join(_name(kernel) for kernel in spec.must_run) or "torch operators",
        "flat caps": ", ".join(f"{name} {cap:g}" for name, cap in spec.caps.items()) or "none",
        "compiled": "the same bits" if spec.compiled else "not claimed",
    }
    if spec.contract.addresses == 32:
        lines["addresses"] = "32 bits"
    if spec.agrees:
        lines["agrees"] = ", ".join(f"{name} with {other.name}" for name, other in spec.agrees.items())
    for dtype in spec.dtypes:
        cases = list(_examples(spec, dtype))
        if cases:
            lines |= {f"{what} ({dtype})": said for what, said in _on(spec, cases).items()}
    return lines


def _on(spec: KernelSpec, cases: Sequence[Case]) -> dict[str, str]:
    roundings: dict[str, None] = {}
    sums: dict[str, None] = {}
    order: dict[str, str] = {}
    for case in cases:
        policy = spec.contract.policy(case)
        said = [f"{name} {r.words}" for name, r in sorted(policy.rounds.items())]
        roundings |= dict.fromkeys(said or ["none"])
        sums |= dict.fromkeys(f"{name or 'every total'} {_sum(how)}" for name, how in sorted(policy.sums.items()))
        for name in spec.judged:
            promises = (order.get(name, ORDER_PROMISES[0]), spec.contract.order_of(name, case))
            order[name] = max(promises, key=ORDER_PROMISES.index)
    return {
        "roundings": ", ".join(roundings),
        "sums": ", ".join(sums),
        "order": ", ".join(f"{name} {promise}" for name, promise in order.items()),
        "workspace": f"{spec.contract.workspace(cases[0]):,} bytes for {cases[0].line()}",
    }


def _examples(spec: KernelSpec, dtype: str) -> Iterator[Case]:
    """The named Cases that the Contract covers, the small ones first, then the corners of the grid."""
    space = spec.oracle.space
    named = [case for case in (*space.tiny, *space.edges) if case.elements > 0]
    corners = [named[0].but(**sizes) for sizes in _corners(space, named[0])] if named else []
    for case in dict.fromkeys(case.but(dtype=dtype) for case in (*named, *corners)):
        if spec.illegal(case) is None:
            yield case


def _corners(space: CaseSpace, case: Case) -> Iterator[dict[str, int]]:
    """Each size at the least and at the most that the grid has, beside each of the others."""
    values = {name: [v for v in space.grid.get(name, ()) if type(v) is int] for name, _ in case.sizes}
    ends = {name: sorted({min(found), max(found)}) for name, found in values.items() if found}
    for corner in islice(product(*ends.values()), CORNERS):
        yield dict(zip(ends, corner, strict=True))


def _sum(how: Sum) -> str:
    parts = [how.dtype, how.tree]
    parts += [f"blocks of {how.block}"] if how.block else []
    parts += [f"rounding {how.rounding}"] if how.rounding != "nearest" else []
    parts += [f"{how.split} shares a term"] if how.split > 1 else []
    parts += [f"{how.aligned} terms aligned and cut"] if how.aligned else []
    parts += ["flushed below the normal range"] if how.flush else []
    parts += [] if how.products else ["exact products"]
    parts += [how.dot] if how.dot != "ieee" else []
    return " ".join(parts)


def _name(kernel: object) -> str:
    return str(getattr(kernel, "__name__", kernel))
