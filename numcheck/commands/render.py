"""`numcheck render`: records to an HTML or Markdown report. Needs neither torch nor triton."""

from __future__ import annotations

import argparse
from pathlib import Path

from numcheck.baseline import load
from numcheck.commands.common import spare
from numcheck.cycles import left_alone
from numcheck.record import read
from numcheck.report import render_annotations, save
from numcheck.target import spare_others


@left_alone()
def main(options: argparse.Namespace) -> int:
    """Write the report and say where. Raises BadRecords where that is a file of another kind."""
    spare(options.output, *options.records, options.baseline)
    spare_others(options.output, "report")
    records = read([Path(p) for p in options.records])
    output = Path(options.output)
    base = load(Path(options.baseline)) if options.baseline else None
    save(output, records, base, options.brief)
    print(f"report: {output}")
    if options.github:
        print("\n".join(render_annotations(records, base)))
    return 0
