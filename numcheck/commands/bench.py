"""`numcheck bench`: cases a second by law and where the time goes, or two kernels interleaved (`--ab`)."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from numcheck.capability import Available, Device
from numcheck.case import Case
from numcheck.clock import STAGES
from numcheck.commands import common
from numcheck.errors import InvalidSpec
from numcheck.profile import profile

if TYPE_CHECKING:
    from numcheck.bench import Ratio


def main(options: argparse.Namespace) -> int:
    """Print the timings; always held, since a time is no verdict."""
    common.writable(options)
    return ab(options) if options.ab else speeds(options)


def speeds(options: argparse.Namespace) -> int:
    """One row a kernel and law, then the sums."""
    from numcheck.bench import speed
    from numcheck.laws import LAWS

    device = common.prepare(options)
    effort = replace(profile(options.profile).on(device), grid=options.cases, examples=options.cases)
    specs = [
        s for s in common.specs(options) if options.keyword in s.name and isinstance(s.available(device), Available)
    ]
    if not specs:
        raise InvalidSpec(f"no kernel that can run on {device} has {options.keyword!r} in its name; see numcheck list")
    work = [(law, spec) for spec in specs for law in LAWS if law.drawn and law.applies(spec) is None]
    rows = []
    with common.progress(work, len(work), "bench") as items:
        for law, spec in items:
            rows.append(speed(law, spec, effort))
    if options.json:
        common.print_json([r.to_json() for r in rows])
        return 0
    print(f"{'kernel':<34}{'law':<14}{'cases/s':>8}  " + "".join(f"{s:>8}" for s in STAGES) + f"{'outside':>9}")
    for row in rows:
        shares = "".join(f"{row.stages[s] / row.seconds:>8.1%}" for s in STAGES)
        print(f"{row.spec:<34}{row.law:<14}{row.cases / row.seconds:>8.1f}  {shares}{row.outside:>9.1%}")
    print("stages as shares of a law's seconds; outside: neither kernel nor oracle")
    return 0


def ab(options: argparse.Namespace) -> int:
    """Time two kernels on one Case."""
    from numcheck.bench import against

    if not options.case:
        raise InvalidSpec("--ab times one Case: give it with --case, as one line of JSON")
    device = common.prepare(options)
    specs = common.specs(options)
    a, b = (common.by_name(specs, name, "kernel") for name in options.ab)
    ratio = against(a, b, Case.from_json(options.case), profile(options.profile).on(device), options.pairs)
    if options.records:
        append(ratio, a.origin, device, options.records)
    if options.json:
        common.print_json(ratio.to_json())
    else:
        print(ratio)
    return 0


def append(ratio: Ratio, specs: str, device: Device, path: str) -> None:
    """Add the ratio to a records file, as a run of its own: the report shows it at the card of either kernel."""
    from numcheck.environment import environment
    from numcheck.record import Writer, new_run

    with Writer(path, new_run(), device=device, command="bench --ab") as writer:
        writer.environment(environment(device, variables=os.environ))
        writer.bench(specs, ratio.to_json())
