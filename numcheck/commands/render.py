"""`numcheck render`: records to an HTML or Markdown report. Needs neither torch nor triton."""

from __future__ import annotations

import argparse
from pathlib import Path

from numcheck.record import read
from numcheck.report import render_html, render_markdown


def main(options: argparse.Namespace) -> int:
    """Write the report and say where."""
    records = read([Path(p) for p in options.records])
    output = Path(options.output)
    text = render_markdown(records) if output.suffix == ".md" else render_html(records)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text, encoding="utf-8")
    print(f"report: {output}")
    return 0
