"""`numcheck certify`: each oracle's forward and VJP against its mpmath twin at 50 digits."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from numcheck.commands import common
from numcheck.oracle import Oracle

if TYPE_CHECKING:
    from numcheck.certify import Certificate


def main(options: argparse.Namespace) -> int:
    """Print one certificate an oracle; 1 where one FAILED."""
    from numcheck.certify import certify

    common.writable(options)
    options.device = "cpu"
    common.prepare(options)
    found = oracles(options)
    with common.progress(found, len(found), "certify") as items:
        certificates = [certify(oracle) for oracle in items]
    if options.json:
        common.print_json([c.to_json() for c in certificates])
    else:
        for certificate in certificates:
            print(said(certificate))
    if options.records:
        from numcheck.record import append_certificates

        append_certificates(options.records, [c.to_json() for c in certificates])
    return 1 if any(c.status == "FAILED" for c in certificates) else 0


def said(certificate: Certificate) -> str:
    """One certificate for a person: the status, what it rests on, and the error of each output."""
    c = certificate
    if c.status == "UNCERTIFIED":
        return f"{c.oracle}: UNCERTIFIED: {c.note}"
    outputs = ", ".join(f"{name} {error:.2g}" for name, error in c.by_output.items())
    return f"{c.oracle}: {c.status} on {c.cases} tiny Cases, {c.vjp} VJP; error at most {c.limit:g}: {outputs}"


def oracles(options: argparse.Namespace) -> list[Oracle]:
    """The oracles of the kernels asked for, each once."""
    found: list[Oracle] = []
    for spec in common.specs(options):
        if spec.oracle not in found:
            found.append(spec.oracle)
    return found
