"""`numcheck compare`: two runs side by side. Needs neither torch nor triton."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from numcheck.baseline import Baseline, loaded
from numcheck.commands.common import print_json, spare
from numcheck.compare import compare
from numcheck.compare.text import as_json, as_text
from numcheck.cycles import left_alone
from numcheck.errors import BadRecords
from numcheck.record import Records
from numcheck.target import spare_others


@left_alone()
def main(options: argparse.Namespace) -> int:
    """Print the three answers and what moved, or write them; 1 where it does not hold (`Comparison.held`).

    Raises BadRecords where a side judged nothing at all, and where the report would replace a file of another kind.
    """
    if options.output:
        spare(options.output, options.base, options.head)
        spare_others(options.output, "report")
    base, (head, records) = _side(options.base)[0], _side(options.head)
    if options.output and records is None:
        raise BadRecords(f"{options.head}: a baseline; a report (-o) needs the head's records")
    comparison = compare(base, head)
    if options.json:
        print_json(as_json(comparison))
    else:
        print(as_text(comparison))
    if options.output and records is not None:
        from numcheck.report import save

        save(Path(options.output), records, comparison)
        # What reads JSON reads all of the output.
        print(f"report: {options.output}", file=sys.stderr if options.json else sys.stdout)
    return 0 if comparison.held else 1


def _side(path: str) -> tuple[Baseline, Records | None]:
    """One side, and the records that it was made from; None where it is a baseline file."""
    found, records = loaded(Path(path))
    if not any(known.cases or known.skipped for known in found.kernels.values()):
        why = f" ({'; '.join(found.unfinished)})" if found.unfinished else ""
        raise BadRecords(f"{path}: no Case was judged{why}; give records of a run, or a baseline")
    return found, records
