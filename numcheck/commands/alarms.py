"""`numcheck alarms`: judge clean cases and count false alarms by gate, output and size."""

from __future__ import annotations

import argparse

from numcheck.commands import common
from numcheck.errors import InvalidCase


def main(options: argparse.Namespace) -> int:
    """Print the table; 1 where a gate that must never alarm did."""
    from numcheck.alarms import alarms

    if not options.cases + options.large:
        raise InvalidCase("--cases 0 --large 0 judges nothing; ask for at least one Case")
    options.device = "cpu"
    common.prepare(options)
    specs = common.specs(options)
    with common.ticking(options.cases + options.large, "alarms") as tick:
        found = alarms(
            specs, cases=options.cases, large=options.large, seed=options.seed, workers=options.workers, tick=tick
        )
    if options.json:
        common.print_json(found.to_json())
    else:
        print(found)
    return 0 if found.held else 1
