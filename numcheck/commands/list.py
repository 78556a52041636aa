"""`numcheck list`: kernels, their promises, and the laws that judge them."""

from __future__ import annotations

import argparse
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
        order = ", ".join(f"{k}: {v}" for k, v in facts["order"].items()) or "fixed"
        print(
            f"{spec.name:<{width}}  {facts['oracle']}; {'/'.join(facts['dtypes'])}; order {order}; {facts['available']}"
        )
    print()
    for law in LAWS:
        print(f"{law.name:<{width}}  {law.doc}")
    return 0


def row(spec: KernelSpec, device: Device) -> dict[str, Any]:
    """What a listing says of one kernel."""
    capability = spec.available(device)
    order = {} if callable(spec.contract.order) else dict(spec.contract.order)
    return {
        "name": spec.name,
        "oracle": spec.oracle.name,
        "outputs": list(spec.judged),
        "dtypes": list(spec.dtypes),
        "order": order,
        "must_run": [getattr(k, "__name__", str(k)) for k in spec.must_run],
        "available": f"unavailable: {capability.reason}" if isinstance(capability, Unavailable) else "available",
        "doc": spec.doc,
    }
