"""`numcheck shrink`: the smallest Case that fails like the given one."""

from __future__ import annotations

import argparse
import sys

from numcheck.case import Case
from numcheck.commands import common
from numcheck.failure import describe
from numcheck.profile import profile
from numcheck.record import replay_line


def main(options: argparse.Namespace) -> int:
    """Print the shrunk Case and its verdict; 0 where the given Case holds and there is nothing to shrink."""
    from numcheck.shrink import judged, shrink

    device = common.prepare(options)
    effort = profile(options.profile).on(device)
    Case.from_json(options.case)  # said before any kernel is imported
    spec, law = common.one_spec(options), common.one_law(options)
    case = common.one_case(options, spec, law)
    if judged(law, spec, case, effort).held:
        print("this Case holds, so there is nothing to shrink", file=sys.stderr)
        return 0
    smallest = shrink(law, spec, case, effort)
    verdict = judged(law, spec, smallest, effort)
    if options.json:
        common.print_json({"case": smallest.to_json(), "first": case.to_json(), **verdict.to_json()})
        return 1
    origin = ",".join(options.specs or common.DEFAULT_SPECS)
    print(describe(verdict, shrunk=smallest, first=case, replay=replay_line(origin, spec.name, law.name, smallest)))
    return 1
