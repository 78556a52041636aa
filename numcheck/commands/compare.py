"""`numcheck compare`: two runs side by side. Needs neither torch nor triton."""

from __future__ import annotations

import argparse
from pathlib import Path

from numcheck.baseline import Baseline, load
from numcheck.commands.common import print_json, spare
from numcheck.compare import compare
from numcheck.compare.text import as_json, as_text
from numcheck.errors import BadRecords
from numcheck.record import read
from numcheck.target import spare_others


def main(options: argparse.Namespace) -> int:
    """Print the three answers and what moved, or write them; 1 where it does not hold (`Comparison.held`).

    Raises BadRecords where a side judged nothing at all, and where the report would replace a file of another kind.
    """
    if options.output:
        spare(options.output, options.base, options.head)
        spare_others(options.output, "report")
    base, head = _side(options.base), _side(options.head)
    comparison = compare(base, head)
    if options.json:
        print_json(as_json(comparison))
    else:
        print(as_text(comparison))
    if options.output:
        _write(Path(options.output), Path(options.head), base)
    return 0 if comparison.held else 1


def _side(path: str) -> Baseline:
    found = load(Path(path))
    if not any(known.cases or known.skipped for known in found.kernels.values()):
        why = f" ({'; '.join(found.unfinished)})" if found.unfinished else ""
        raise BadRecords(f"{path}: no Case was judged{why}; give records of a run, or a baseline")
    return found


def _write(output: Path, head: Path, base: Baseline) -> None:
    from numcheck.report import save

    try:
        records = read(head)
    except BadRecords as error:
        raise BadRecords(f"{error}; a report (-o) needs the head's records, not its baseline") from None
    save(output, records, base)
    print(f"report: {output}")
