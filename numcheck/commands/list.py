"""`numcheck list`: kernels, their promises, and the laws that judge them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from numcheck.capability import Device, Unavailable
from numcheck.commands import common
from numcheck.oracle import Input, Oracle, Output
from numcheck.spec import KernelSpec


def main(options: argparse.Namespace) -> int:
    """Print one row a kernel; always held."""
    from numcheck.laws import LAWS

    device = common.prepare(options)
    specs = common.specs(options)
    if options.json:
        common.print_json(
            {"kernels": [row(s, device) for s in specs], "laws": [{"name": w.name, "doc": w.doc} for w in LAWS]}
        )
        return 0
    width = max(len(s.name) for s in specs)
    for spec in specs:
        facts = row(spec, device)
        print(
            f"{spec.name:<{width}}  {facts['oracle']}; {'/'.join(facts['dtypes'])}; order {promised(spec)}; "
            f"{facts['available']}"
        )
    print()
    for signature in signatures(specs):
        print(signature)
    print()
    width = max(len(law.name) for law in LAWS)
    for law in LAWS:
        print(f"{law.name:<{width}}  {law.doc}")
    return 0


def promised(spec: KernelSpec) -> str:
    """The order promises in one clause."""
    if callable(spec.contract.order):
        return "by Case"
    return ", ".join(f"{name}: {promise}" for name, promise in spec.contract.order.items()) or "fixed"


def signatures(specs: Sequence[KernelSpec]) -> list[str]:
    """What each oracle's kernels take and return, by name: a forward and a VJP an oracle.

    Optional tensors have a "?", and what is no tensor stands behind the star.
    """
    oracles = {spec.oracle.name: spec.oracle for spec in specs}.values()
    lines = []
    for oracle in oracles:
        scalars = _scalars(oracle)
        saved = [o for o in oracle.outputs if o.saved]
        outputs, gradients = ", ".join(_marked(oracle.outputs)), ", ".join(_marked(oracle.gradients))
        lines.append(f"{oracle.name}: forward({_taken(_marked(oracle.inputs), scalars)}) -> {outputs}")
        if oracle.cotangents and gradients:
            keywords = [*scalars, *_marked(oracle.cotangents)]
            lines.append(f"{oracle.name}: vjp({_taken(_marked((*oracle.inputs, *saved)), keywords)}) -> {gradients}")
    return lines


def _taken(tensors: Sequence[str], keywords: Sequence[str]) -> str:
    return ", ".join((*tensors, *(("*", *keywords) if keywords else ())))


def _marked(declared: Iterable[Input | Output]) -> list[str]:
    return [d.name + "?" * d.optional for d in declared]


def _scalars(oracle: Oracle) -> list[str]:
    """Names of the scalars that the oracle's named Cases have."""
    cases = (*oracle.space.tiny, *oracle.space.edges)
    return list(dict.fromkeys(name for case in cases for name in oracle.scalars(case)))


def row(spec: KernelSpec, device: Device) -> dict[str, Any]:
    """What a listing says of one kernel."""
    capability = spec.available(device)
    order = {} if callable(spec.contract.order) else dict(spec.contract.order)
    return {
        "name": spec.name,
        "oracle": spec.oracle.name,
        "inputs": [i.name for i in spec.oracle.inputs],
        "outputs": list(spec.judged),
        "dtypes": list(spec.dtypes),
        "order": order,
        "must_run": [getattr(k, "__name__", str(k)) for k in spec.must_run],
        "available": f"unavailable: {capability.reason}" if isinstance(capability, Unavailable) else "available",
        "doc": spec.doc,
    }
