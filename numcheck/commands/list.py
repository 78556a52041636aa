"""`numcheck list`: kernels, their promises, and the laws that judge them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from numcheck.capability import Device, Unavailable
from numcheck.commands import common
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
    """What each oracle's kernels take and return, by name: a forward and a VJP an oracle."""
    oracles = {spec.oracle.name: spec.oracle for spec in specs}.values()
    lines = []
    for oracle in oracles:
        inputs = ", ".join(i.name for i in oracle.inputs)
        given = ", ".join((*(i.name for i in oracle.inputs), *oracle.saved))
        cotangents = ", ".join(c.name for c in oracle.cotangents)
        gradients = ", ".join(g.name for g in oracle.gradients)
        lines.append(f"{oracle.name}: forward({inputs}) -> {', '.join(o.name for o in oracle.outputs)}")
        if cotangents and gradients:
            lines.append(f"{oracle.name}: vjp({given}, *, {cotangents}) -> {gradients}")
    return lines


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
