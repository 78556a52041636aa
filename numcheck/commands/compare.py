"""`numcheck compare`: two runs side by side. Needs neither torch nor triton."""

from __future__ import annotations

import argparse
from pathlib import Path

from numcheck.baseline import load
from numcheck.commands.common import print_json
from numcheck.compare import compare
from numcheck.compare.text import as_json, as_text
from numcheck.errors import BadRecords
from numcheck.record import read


def main(options: argparse.Namespace) -> int:
    """Print the three answers and what moved, or write them; 1 where bits changed or something fell."""
    comparison = compare(load(Path(options.base)), load(Path(options.head)))
    if options.json:
        print_json(as_json(comparison))
    else:
        print(as_text(comparison))
    if options.output:
        _write(options, Path(options.output))
    return 0 if comparison.held else 1


def _write(options: argparse.Namespace, output: Path) -> None:
    from numcheck.report import render_html, render_markdown

    render = render_markdown if output.suffix == ".md" else render_html
    try:
        records = read(Path(options.head))
    except BadRecords as error:
        raise BadRecords(f"{error}; a report (-o) needs the head's records, not its baseline") from None
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(records, load(Path(options.base))), encoding="utf-8")
    print(f"report: {output}")
