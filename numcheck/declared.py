"""Declared: a kernel's promise in words, so that a later run shows what of it moved."""

from __future__ import annotations

from numcheck.case import Case
from numcheck.contract import Sum
from numcheck.spec import KernelSpec


def declared(spec: KernelSpec) -> dict[str, str]:
    """What `spec` promises: roundings, sums and order for each dtype on one small Case, and what holds for all Cases.

    A Contract may be a function of the Case; the Case that it was read on stands beside it.
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
        case = _example(spec, dtype)
        if case is not None:
            lines |= {f"{what} ({dtype})": said for what, said in _on(spec, case).items()}
    return lines


def _on(spec: KernelSpec, case: Case) -> dict[str, str]:
    policy, order = spec.contract.policy(case), {name: spec.contract.order_of(name, case) for name in spec.judged}
    return {
        "roundings": ", ".join(f"{name} {r.words}" for name, r in sorted(policy.rounds.items())) or "none",
        "sums": ", ".join(f"{name or 'every total'} {_sum(how)}" for name, how in sorted(policy.sums.items())),
        "order": ", ".join(f"{name} {promise}" for name, promise in order.items()),
        "workspace": f"{spec.contract.workspace(case):,} bytes for {case.line()}",
    }


def _example(spec: KernelSpec, dtype: str) -> Case | None:
    """The first small Case that the Contract covers."""
    space = spec.oracle.space
    cases = (case.but(dtype=dtype) for case in (*space.tiny, *space.edges) if case.elements > 0)
    return next((case for case in cases if spec.illegal(case) is None), None)


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
