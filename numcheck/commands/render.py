"""`numcheck render`: records to an HTML or Markdown report. Needs neither torch nor triton."""

from __future__ import annotations

import argparse
from pathlib import Path

from numcheck.baseline import load
from numcheck.record import read
from numcheck.report import render_annotations, render_html, render_markdown


def main(options: argparse.Namespace) -> int:
    """Write the report and say where."""
    records = read([Path(p) for p in options.records])
    output = Path(options.output)
    base = load(Path(options.baseline)) if options.baseline else None
    text = render_markdown(records, base, options.brief) if output.suffix == ".md" else render_html(records, base)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    print(f"report: {output}")
    if options.github:
        print("\n".join(render_annotations(records, base)))
    return 0
