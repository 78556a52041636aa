"""The report: a pure function from Records to one HTML file, and to Markdown. Needs no torch."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numcheck.record import Records, write_whole
from numcheck.target import MARK, spare_others

if TYPE_CHECKING:
    from jinja2 import Environment

    from numcheck.baseline import Baseline
    from numcheck.compare import Comparison

TEMPLATES = Path(__file__).parent / "templates"
STYLES = ("style.css", "card.css", "print.css")
SCRIPTS = ("page.js", "case.js", "table.js", "highlight.js", "find.js", "sort.js")


def render_html(records: Records, base: Baseline | Comparison | None = None) -> str:
    """One self-contained HTML page: no network, no script from elsewhere, text of records inert.

    base: what to compare with, or the comparison, made before; its three answers then come first.
    """
    from markupsafe import Markup

    from numcheck.report.page import build

    css, script = (_gathered(*names) for names in (STYLES, SCRIPTS))
    page = build(records, base)
    return (
        _templates()
        .get_template("page.html")
        .render(
            page=page,
            data=Markup(page.cases.data),
            css=Markup(css),
            script=Markup(script),
            policy=f"default-src 'none'; style-src '{_digest(css)}'; script-src '{_digest(script)}'; base-uri 'none'; "
            "form-action 'none'",
        )
    )


def render_markdown(records: Records, base: Baseline | Comparison | None = None, brief: bool = False) -> str:
    """The same content as Markdown. brief: what fits a comment: answers, and each kernel in a few lines."""
    from numcheck.report import brief as short
    from numcheck.report import markdown
    from numcheck.report.page import build

    page = build(records, base)
    return short.write(page) if brief else markdown.write(page)


def render_annotations(records: Records, base: Baseline | Comparison | None = None) -> list[str]:
    """Workflow commands of GitHub Actions, a line each: what failed, what fell, what was not run."""
    from numcheck.report.annotations import lines
    from numcheck.report.page import build

    return lines(build(records, base))


def save(output: Path, records: Records, base: Baseline | Comparison | None = None, brief: bool = False) -> None:
    """Write the report to `output`: Markdown where that ends in .md, else HTML. Raises BadRecords over another file."""
    spare_others(output, "report")
    text = render_markdown(records, base, brief) if output.suffix == ".md" else render_html(records, base)
    write_whole(output, [text, MARK] if output.suffix == ".md" else [text])


def _gathered(*names: str) -> str:
    return "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in names)


def _digest(text: str) -> str:
    """The hash by which the page's policy lets this one style or script through, and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


@functools.cache
def _templates() -> Environment:
    """The templates, compiled once a process."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from numcheck.record import replay_line
    from numcheck.report import cases, failures, ledger, svg, text

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.globals |= {
        "breakable": _breakable,
        "case_key": cases.case_key,
        "replay_line": replay_line,
        "count": text.count,
        "glyphs": text.GLYPHS,
        "line": cases.line,
        "rung_glyphs": text.RUNG_GLYPHS,
        "scale": svg.scale(),
        "share": svg.share,
        "short": text.short,
        "shown": failures.SHOWN,
        "table_rows": ledger.ROWS,
    }
    return templates


def _breakable(name: str) -> Any:
    """A kernel's name that may break after an underscore, and nowhere else where that is enough."""
    from markupsafe import Markup, escape

    from numcheck.harmless import clean

    return Markup(str(escape(clean(name))).replace("_", "_<wbr>"))


def _finalize(value: Any) -> Any:
    """Whatever a template prints: plain text is made visible first, and then escaped by the template."""
    from numcheck.harmless import clean

    return clean(value) if type(value) is str else value
