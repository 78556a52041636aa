"""`numcheck merge`: one records file from many, as the plugin does at the end of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from numcheck.cycles import left_alone
from numcheck.errors import BadRecords
from numcheck.harmless import one_line
from numcheck.record import merge
from numcheck.target import spare_others


@left_alone()
def main(options: argparse.Namespace) -> int:
    """Merge and say what was kept and what could not be read; 1 where something could not."""
    paths = [part for given in options.records for part in parts(Path(given))]
    spare_others(options.output, "records")
    merged = merge(paths, Path(options.output))
    for problem in merged.problems:
        print(one_line(f"problem: {problem}"))
    print(f"{len(merged.rows)} rows from {len(paths)} file(s): {options.output}")
    return 1 if merged.problems else 0


def parts(given: Path) -> list[Path]:
    """The records files that `given` names: itself, or those in the folder."""
    if given.is_dir():
        found = sorted(given.glob("*.jsonl"))
        if not found:
            raise BadRecords(f"no *.jsonl in {given}; name a folder that a run wrote, or the files themselves")
        return found
    return [given]
