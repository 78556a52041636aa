"""`numcheck replay`: judge one Case again, from the line that a failure or a report prints."""

from __future__ import annotations

import argparse

from numcheck.case import Case
from numcheck.commands import common
from numcheck.failure import describe
from numcheck.profile import profile


def main(options: argparse.Namespace) -> int:
    """Print the verdict; 0 where it holds, 1 where it does not."""
    from numcheck.shrink import judged

    device = common.prepare(options)
    Case.from_json(options.case)  # said before any kernel is imported
    spec, law = common.one_spec(options), common.one_law(options)
    case = common.one_case(options, spec, law)
    verdict = judged(law, spec, case, profile(options.profile).on(device))
    if options.json:
        common.print_json({"spec": spec.name, "law": law.name, "case": case.to_json(), **verdict.to_json()})
    else:
        print(describe(verdict))
    return 0 if verdict.held else 1
