"""The page as a document: self-contained, inert, and usable by keyboard, screen reader and any eye."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numcheck import schema
from numcheck.record import Problem, Records, Row, read
from numcheck.report import SCRIPTS, TEMPLATES, render_html, render_markdown
from numcheck.report.failures import failures
from numcheck.selection import select
from tests.report import scene
from tests.report.tree import Node, parse

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</style></script><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt;&#x3c;",
    "\u202egnirts\u202c\x00\x1b[31m\ud800",
    "[x](javascript:alert(1)) **b** `c` | d @someone #1 https://example.org <!-- -->",
    "Www.example.org (www.example.org) GH-12 _gh-12 a/b#12 #12 @org/team me@example.org HTTP://example.org",
)
# Elements that the templates use: whatever else turns up came out of a record.
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "a", "nav", "p", "ol", "ul", "li", "b", "div", "label", "kbd"),
    *("input", "main", "header", "h1", "h2", "h3", "h4", "dl", "dt", "dd", "time", "span", "section", "table", "thead"),
    *("tbody", "tr", "th", "td", "caption", "article", "pre", "code", "details", "summary", "svg", "path", "text"),
    *("figure", "figcaption", "sup", "br", "wbr", "script", "dialog", "button", "blockquote", "tfoot"),
}


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("run") / "r.jsonl"
    return render_html(read(scene.write(path, count=6, failing=True, devices=("cpu", "cuda"))))


@pytest.fixture(scope="module")
def tree(html: str) -> Node:
    return parse(html)


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run(html: str, tree: Node) -> None:
    assert not [node for node in tree.walk() if {"src", "srcset", "action", "style"} & set(node.attrs)]
    assert all(a.attrs["href"].startswith("#") for a in tree.all("a"))
    assert "url(" not in html
    assert "@import" not in html
    policy = tree.one("meta", http_equiv="Content-Security-Policy").attrs["content"]
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
        assert "'unsafe-" not in policy


def test_the_script_makes_no_request_and_no_html() -> None:
    script = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)
    for forbidden in ("fetch", "XMLHttpRequest", "innerHTML", "eval", "import(", "http", "</"):
        assert forbidden not in script


def test_links_lead_somewhere_and_ids_are_unique(tree: Node) -> None:
    ids = [node.attrs["id"] for node in tree.walk() if "id" in node.attrs]
    assert len(ids) == len(set(ids))
    assert {a.attrs["href"][1:] for a in tree.all("a")} <= set(ids)


def test_headings_never_skip_a_level(tree: Node) -> None:
    levels = [int(node.tag[1]) for node in tree.walk() if re.fullmatch("h[1-6]", node.tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_tables_have_headers_and_can_be_scrolled_by_keyboard(tree: Node) -> None:
    for region in tree.all("div", cls="wide"):
        assert region.attrs["tabindex"] == "0"
        assert region.attrs["role"] == "region"
        assert region.attrs["aria-label"]
    tables = tree.all("table")
    assert len(tables) == sum(len(region.all("table")) for region in tree.all("div", cls="wide"))
    for table in tables:
        assert table.one("thead").all("th", scope="col")
        assert all(th.attrs.get("scope") in ("col", "row") for th in table.all("th"))
        assert table.one("tbody").all("th", scope="row"), table.text[:80]


def test_pictures_have_words_and_controls_labels(tree: Node) -> None:
    for svg in tree.all("svg"):
        assert svg.attrs.get("aria-hidden") == "true" or (svg.attrs["role"] == "img" and svg.attrs["aria-label"])
    for control in tree.all("input"):
        assert tree.all("label", for_=control.attrs["id"])
    for named in tree.walk():
        if "aria-labelledby" in named.attrs:
            assert tree.one("", id=named.attrs["aria-labelledby"]).text


def test_without_script_nothing_is_hidden_but_the_filter(tree: Node) -> None:
    assert {node.attrs["class"] for node in tree.walk() if "hidden" in node.attrs} == {
        "filter",
        "filtered",
        "with-script",
    }
    buttons = [*tree.one("dialog").all("button"), *tree.one("div", cls="filtered").all("button")]
    assert len(tree.all("button")) == len(buttons)


def test_no_status_rests_on_its_colour(tree: Node) -> None:
    badges = tree.all("span", cls="badge")
    assert badges
    glyphs = {b.text.split()[0] for b in badges if b.text.split()[-1] in schema.STATUSES}
    assert len(glyphs) == len({b.text.split()[-1] for b in badges if b.text.split()[-1] in schema.STATUSES})


def palettes() -> Iterator[tuple[str, dict[str, str]]]:
    """The colours of the light and the dark page, by name."""
    css = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    blocks = [
        dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)
    ]
    yield "light", blocks[0]
    yield "dark", {**blocks[0], **blocks[1]}


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour (WCAG 2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(("name", "colours"), [*palettes()], ids=["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(name: str, colours: dict[str, str]) -> None:
    for text in ("ink", "soft", "pass", "order", "vacuous", "unavailable", "fail", "error"):
        for ground in ("paper", "card", "wash"):
            bright, dim = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
            # 4.5 is level AA for text of any size.
            assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{text} on {ground} in the {name} page"


def hostile(value: Any, text: str, key: str = "") -> Any:
    """`value` with every free text in it, and every free key, replaced."""
    if isinstance(value, dict):
        free = key in ("outputs", "hashes", "sizes", "facts", "joint", "flips", "by_output", "footprints", "versions")
        return {(f"{k}{text}" if free else k): hostile(v, text, k) for k, v in value.items()}
    if isinstance(value, list):
        return [hostile(v, text, key) for v in value]
    kept = {
        "status",
        "kind",
        "phase",
        "backend",
        "id",
        "time",
        "environment",
        "value",
        "limit",
        "lower",
        "spread",
        "worst",
    }
    return f"{value}{text}" if isinstance(value, str) and key not in kept else value


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Row, ...]:
    path = scene.write(tmp_path_factory.mktemp("h") / "r.jsonl", count=4, failing=True, devices=("cpu", "cuda"))
    return read(path).rows


def poisoned(rows: tuple[Row, ...], text: str) -> Records:
    return Records(tuple(hostile(row, text) for row in rows), (Problem(f"f{text}", 3, text),))


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_records_is_inert(rows: tuple[Row, ...], text: str) -> None:
    page = render_html(poisoned(rows, text))
    page.encode("utf-8")
    tree = parse(page)
    assert {node.tag for node in tree.walk()} <= {"", *TAGS}
    runs, data = sorted(tree.all("script"), key=lambda node: node.attrs.get("type", ""))
    assert (runs.attrs, data.attrs["type"]) == ({}, "application/json")
    # A Case has three; one shows everything again.
    assert (len(tree.all("button")), len(tree.one("dialog").all("button"))) == (4, 3)
    assert not [name for node in tree.walk() for name in node.attrs if name.startswith("on")]
    assert all(a.attrs["href"].startswith("#") for a in tree.all("a"))
    assert len({node.attrs["id"] for node in tree.walk() if "id" in node.attrs})
    if text.isprintable():
        assert text in tree.one("ul", cls="troubles").text or " ".join(text.split()) in tree.text


@pytest.mark.parametrize("sign", ["\u202e", "\x00", "\x1b", "\ud800", "\u200b", "\u2028"])
def test_signs_that_hide_or_reorder_are_written_out(rows: tuple[Row, ...], sign: str) -> None:
    records = poisoned(rows, f"a{sign}b")
    for text in (render_html(records), render_markdown(records)):
        assert sign not in text
        assert f"u{ord(sign):04x}b" in text


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_records_is_inert_in_markdown(rows: tuple[Row, ...], text: str) -> None:
    told = render_markdown(poisoned(rows, text))
    told.encode("utf-8")
    prose = re.sub(r"^```.*?^```$", "", told, flags=re.DOTALL | re.MULTILINE)
    assert "<" not in prose
    assert not re.search(r"(?<!\\)\]\(", prose)
    assert not re.search(r"(?<![\\\w])@\w", prose)
    # Links and calls are found in what is left once marks are read, escaped or not.
    left = re.sub(r"\\(?=[^\w\s])", "", prose)
    assert not re.search(r"www\.|gh-\d|#\d|@\w|://", left, re.IGNORECASE)
    tables = [line for line in prose.splitlines() if line.startswith("|")]
    heads = [i for i, line in enumerate(tables) if set(line) <= set("|- ")]
    for head in heads:
        columns = len(re.findall(r"(?<!\\)\|", tables[head]))
        body = tables[head - 1 : next((h - 1 for h in heads if h > head), len(tables))]
        assert all(len(re.findall(r"(?<!\\)\|", line)) == columns for line in body)


def test_text_of_absurd_length_is_cut(rows: tuple[Row, ...]) -> None:
    page = render_html(Records(rows, (Problem("f", 1, "x" * 10_000_000),)))
    assert "more characters)" in page
    assert len(page) < 2_000_000


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.text(max_size=30))
def test_any_text_renders(text: str) -> None:
    case = {"sizes": {text: 1}, "dtype": text, "regime": text, "layout": text, "offset": 0, "facts": {text: text}}
    records = Records((minimal("case", case=case, specs=text, spec=text, law=text, claim=text),))
    assert {node.tag for node in parse(render_html(records)).walk()} <= {"", *TAGS}
    assert "<" not in render_markdown(records)


def minimal(kind: str, **values: Any) -> Row:
    """A row with the required keys of its kind and no other, the emptiest that its schema allows."""
    shapes = {**schema.HEAD, **{k: schema.BODIES[kind]["properties"][k] for k in schema.BODIES[kind]["required"]}}
    row = {**{name: empty(shape) for name, shape in shapes.items()}, "schema": 1, "kind": kind, **values}
    assert schema.parse(json.dumps(row).encode())[1] == ""
    return row


def empty(shape: dict[str, Any]) -> Any:
    """The emptiest value of a shape."""
    if "enum" in shape:
        return shape["enum"][-1]
    if "required" in shape:
        return {k: empty(shape["properties"][k]) for k in shape["required"]}
    kind = shape.get("type", "number")
    return {"string": "", "integer": 0, "number": 0, "boolean": False, "object": {}, "array": []}[kind]


@pytest.mark.parametrize("kind", schema.KINDS)
def test_the_emptiest_row_of_each_kind_renders(kind: str) -> None:
    records = Records((minimal(kind),))
    parse(render_html(records))
    assert render_markdown(records).startswith("# ")


def test_the_emptiest_parts_of_a_verdict_render() -> None:
    parts = {
        "outputs": {"out": empty(schema.VERDICT["outputs"]["additionalProperties"])},
        "gates": [
            {**empty(schema.GATE), "value": v, "limit": m} for v in (0, "nan", "inf", -1) for m in (0, "inf", "nan")
        ],
        "rungs": [empty(schema.RUNG)],
        "figures": {"fingerprint": {"best": "p"}, "needs": 3},
    }
    records = Records((minimal("case", **parts), minimal("pooled", **parts)))
    parse(render_html(records))
    assert render_markdown(records).startswith("# ")


def test_a_pooled_failure_ran_where_its_cases_ran() -> None:
    claim = {"specs": "mine", "spec": "kernel", "law": "accuracy"}
    evidence = empty(schema.BODIES["case"]["properties"]["evidence"])
    case = minimal("case", **claim, phase="grid", status="PASS", evidence={**evidence, "backend": "interpreter"})
    pooled = minimal("pooled", **claim, status="FAIL", evidence={**evidence, "backend": "torch"})
    (failure,) = failures(select(Records((case, pooled))))
    assert failure.pooled
    assert failure.ran.startswith("interpreter")
