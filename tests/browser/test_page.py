"""The page in a real browser, opened from a file: what it does, asked of the page and not of its template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from numcheck.baseline import of
from numcheck.record import Records, read, replay_line
from numcheck.report import render_html
from numcheck.report.cases import SEVERITY, case_key, line
from numcheck.report.inputs import made
from numcheck.selection import CPU, Kernel
from tests.browser.chromium import Browser
from tests.browser.conftest import REASON
from tests.report import scene

Pages = dict[str, Path]
AXE = Path(__file__).parent / "axe" / "axe.min.js"
# A reviewer waits 2 s without minding. CPU time of the page's own thread, from before it is opened to after its load
# event, so that a busy machine does not decide.
SECONDS = 2.0
# A page of ten thousand records takes some time: less than this would be the time of something else.
LEAST_SECONDS = 0.02


def opened(chromium: Browser, path: Path, hash_: str = "") -> Browser:
    chromium.open(path.as_uri() + hash_)
    return chromium


def texts(chromium: Browser, selector: str) -> list[str]:
    """The text of every element of `selector` that is seen."""
    found: list[str] = chromium.run(
        f"[...document.querySelectorAll({json.dumps(selector)})].filter((e) => e.checkVisibility())"
        ".map((e) => e.innerText.replace(/\\s+/g, ' ').trim())"
    )
    return found


def type_into_search(chromium: Browser, text: str) -> None:
    chromium.run(
        f"(() => {{ const s = document.getElementById('search'); s.value = {json.dumps(text)};"
        " s.dispatchEvent(new Event('input')); })()"
    )


def click(chromium: Browser, selector: str) -> None:
    chromium.run(f"document.querySelector({json.dumps(selector)}).click()")


def settled(chromium: Browser, condition: str) -> bool:
    """Whether it comes to that: going back in the history takes a moment."""
    look = f"({condition}) ? done(true) : n++ > 100 ? done(false) : setTimeout(look, 10)"
    return bool(chromium.run(f"new Promise((done) => {{ let n = 0; const look = () => {look}; look(); }})"))


def leave(chromium: Browser) -> None:
    """Closes an open Case; the way back in the history, which that takes, is at its end."""
    chromium.press("Escape")
    assert settled(chromium, "!document.getElementById('case').open && !page.state().has('case')")


def hash_of(chromium: Browser) -> str:
    return str(chromium.run("decodeURIComponent(location.hash)"))


@pytest.mark.parametrize("name", ["clean", "failing", "compared"])
def test_it_opens_from_a_file_and_asks_for_nothing_else(chromium: Browser, pages: Pages, name: str) -> None:
    opened(chromium, pages[name])
    assert chromium.requests() == [pages[name].as_uri()]
    assert chromium.complaints() == []


def test_the_first_screen_answers(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["compared"])
    chromium.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    bottoms = chromium.run("[...document.querySelectorAll('.answer')].map((e) => e.getBoundingClientRect().bottom)")
    assert len(bottoms) == 3
    assert max(bottoms) < 900
    answers = texts(chromium, ".answer")
    assert answers[0].startswith("Did bits change? ✕ Yes triton on CPU: out in ")
    assert answers[1].startswith("Did accuracy or coverage fall? ✓ No")
    assert answers[2].startswith("What was not run? ○ Something")
    assert REASON in texts(chromium, ".accepted")[0]


def test_a_repair_says_first_what_it_fixed_and_leads_to_the_case(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["fixed"])
    assert texts(chromium, "h1") == ["Fixed what failed at main"]
    (claim,) = (text for text in texts(chromium, ".repairs > li") if "triton" in text)
    assert claim.startswith(
        "Fixed: triton on CPU under accuracy, out: FAIL at main in 8 Cases, PASS here; the smallest on both sides:"
    )
    assert "✕" not in " ".join(texts(chromium, ".answer h3"))
    shown = chromium.run("[...document.querySelectorAll('.repairs a.case')].at(-1).textContent")
    assert "{" not in shown
    click(chromium, ".repairs > li:last-child a.case")
    assert texts(chromium, "#case-h") == [shown]
    assert texts(chromium, "#case-claim")[0].startswith("PASS: triton under accuracy")
    leave(chromium)
    click(chromium, ".repairs > li:last-child summary")
    assert any("ceiling 2.41 beyond 1" in text for text in texts(chromium, ".repairs details p"))


@pytest.mark.parametrize("name", ["failing", "compared", "fixed"])
def test_on_a_phone_the_verdict_is_on_the_first_screen(chromium: Browser, pages: Pages, name: str) -> None:
    opened(chromium, pages[name])
    chromium.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    try:
        assert chromium.run("document.querySelector('.lede').getBoundingClientRect().bottom") < 844
        assert chromium.run("document.querySelector('h1').getBoundingClientRect().top") < 844 / 3
        assert chromium.run("document.documentElement.scrollWidth") <= 390
    finally:
        chromium.call("Emulation.clearDeviceMetricsOverride")


def test_only_the_card_that_moved_says_so(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["compared"])
    assert [t.split(" as ")[0] for t in texts(chromium, ".moved-card h3")] == ["triton"]
    assert texts(chromium, ".moved-card .otherwise b") == ["out"]
    assert "No change seen in" in texts(chromium, ".card:not(.moved-card) .against")[0]
    click(chromium, ".chips button:last-child")
    assert [t.split(" as ")[0] for t in texts(chromium, ".card h3")] == ["triton"]
    assert hash_of(chromium) == "#?moved=1"


def test_search_narrows_entries_and_cases_and_a_link_carries_it(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    before = len(texts(chromium, "#kernels .card"))
    type_into_search(chromium, "split_atomic D 4096 bf16")
    assert texts(chromium, "#kernels .card h3") == ["triton_split_atomic as interpreter, CPU"]
    rows = texts(chromium, "#cases-table tbody tr")
    assert rows
    assert all("triton_split_atomic" in row and "D 4096" in row and "bf16" in row for row in rows)
    link = chromium.run("location.href")
    opened(chromium, pages["clean"])
    chromium.open(link)
    assert chromium.run("document.getElementById('search').value") == "split_atomic D 4096 bf16"
    assert texts(chromium, "#cases-table tbody tr") == rows
    type_into_search(chromium, "")
    assert len(texts(chromium, "#kernels .card")) == before


def test_search_finds_cases_beyond_those_that_are_shown(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["clean"])
    total = chromium.run("page.data.rows.length")
    assert texts(chromium, "#cases-told") == [f"60 of {total} judged Cases"]
    type_into_search(chromium, "split_ordered accuracy wide")
    rows = texts(chromium, "#cases-table tbody tr")
    assert 0 < len(rows) < 24
    assert all("split_ordered" in row and "accuracy" in row and "wide" in row for row in rows)


def entries(chromium: Browser) -> dict[str, int]:
    """How many kernels, failures and Cases are seen."""
    kinds = {"kernels": "#kernels .card", "failures": "#failures .failure", "cases": "#cases-table tbody tr"}
    return {name: len(texts(chromium, selector)) for name, selector in kinds.items()}


@pytest.mark.parametrize(
    ("word", "card"),
    [
        ("d_residual", "triton"),  # an output
        ("cancellation", "triton"),  # a law
        ("split_ordered", "triton_split_ordered"),  # a kernel
        ("ceiling", "triton"),  # a gate
    ],
)
def test_a_search_finds_whatever_has_a_name_and_says_what_it_left(
    chromium: Browser, pages: Pages, word: str, card: str
) -> None:
    opened(chromium, pages["failing"])
    assert texts(chromium, "#filtered") == []
    whole = entries(chromium)
    type_into_search(chromium, word)
    assert texts(chromium, "#cases-table tbody tr")
    assert any(text.split(" as ")[0] == card for text in texts(chromium, ".card h3"))
    assert texts(chromium, "#matrix tbody tr")
    told = texts(chromium, "#filtered-told")[0]
    cards = entries(chromium)["kernels"]
    assert told.startswith(f"Filtered to “{word}”: {cards} kernel")
    assert re.search(r"[1-9][\d,]* Cases\.$", told)
    assert len(texts(chromium, "#filtered-jumps a")) == cards
    assert chromium.run("CSS.highlights.get('found').size") > 0
    click(chromium, "#filtered-clear")
    assert entries(chromium) == whole
    assert texts(chromium, "#filtered") == []
    assert hash_of(chromium) == ""
    assert chromium.run("CSS.highlights.has('found')") is False


def test_a_section_without_a_match_goes_and_its_link_with_it(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    type_into_search(chromium, "no such thing")
    assert texts(chromium, "#filtered-told") == ["Filtered to “no such thing”: nothing has all of it."]
    assert texts(chromium, "#matrix, #failures, #kernels, #cases, #near") == []
    assert [t for t in texts(chromium, "nav ol a") if t.startswith(("Failures", "Cases", "Nearest"))] == []
    assert texts(chromium, "h1") == ["Did not hold"]
    chromium.run("document.getElementById('search').focus()")
    chromium.press("Escape")
    assert texts(chromium, "#failures h2") == ["Failures"]


def test_a_law_that_is_searched_stays_bright_in_the_matrix(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    type_into_search(chromium, "memory")
    laws = chromium.run(
        "[...new Set([...document.querySelectorAll('td:not(.dim)[data-law]')].map((c) => c.dataset.law))]"
    )
    assert laws == ["memory"]


def test_what_moved_narrows_cases_down_too(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["compared"])
    assert "Against the base" in texts(chromium, "#cases-table thead th")[5]
    click(chromium, ".chips button:last-child")
    rows = texts(chromium, "#cases-table tbody tr")
    assert rows
    assert all("other bits: out" in row and " triton CPU" in row for row in rows)
    type_into_search(chromium, "same bits")
    assert texts(chromium, "#cases-table tbody tr") == []


def test_a_jump_keeps_what_was_asked_for(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    type_into_search(chromium, "d_post")
    click(chromium, "#filtered-jumps li:nth-child(2) a")
    assert hash_of(chromium) == "#?q=d_post"
    assert chromium.run("document.activeElement.matches('.card .self')")


def test_status_filters_show_those_alone(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    chips = texts(chromium, ".chips button")
    assert chips[:2] == ["ERROR", "FAIL"]
    click(chromium, ".chips button:nth-child(2)")
    assert chromium.run("document.querySelector('.chips button:nth-child(2)').getAttribute('aria-pressed')") == "true"
    assert set(texts(chromium, "#cases-table .badge")) == {"✕ FAIL"}
    assert hash_of(chromium) == "#?status=FAIL"
    assert [t.split(" as ")[0] for t in texts(chromium, "#kernels h3")] == ["triton"]


def rank(text: str) -> str:
    """What a cell is sorted by: the number that it begins with, else its words. Cells of one rank keep their order."""
    found = re.match(r"[≤≥]? ?[\d,.]+(e-?\d+)?", text)
    return found[0] if found else text


@pytest.mark.parametrize("table", ["#near table", "#skips table"])
def test_a_table_sorts_by_any_column_and_back(chromium: Browser, pages: Pages, table: str) -> None:
    opened(chromium, pages["clean"])

    def column(index: int) -> list[str]:
        return texts(chromium, f"{table} tbody tr > :nth-child({index})")

    columns = chromium.run(f"document.querySelectorAll('{table} thead th').length")
    for index in range(1, columns + 1):
        head = f"{table} thead th:nth-child({index})"
        before = column(index)
        click(chromium, f"{head} button")
        assert chromium.run(f"document.querySelector('{head}').ariaSort") == "ascending"
        up = column(index)
        click(chromium, f"{head} button")
        assert sorted(up) == sorted(before)
        assert list(dict.fromkeys(map(rank, column(index)))) == list(dict.fromkeys(map(rank, up)))[::-1]
        click(chromium, f"{head} button")
        assert column(index) == before
        numbers = [float(t.split()[0]) for t in up if t.split()[0].replace(".", "", 1).isdigit()]
        assert numbers == sorted(numbers)


def sort_by(chromium: Browser, column: int) -> str:
    """Presses a column's head in the table of Cases; how it says that it is sorted."""
    head = f"#cases-table thead th:nth-child({column})"
    click(chromium, f"{head} button")
    return str(chromium.run(f"document.querySelector('{head}').ariaSort"))


def test_sorting_cases_sorts_all_of_them_and_not_those_alone_that_are_shown(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["clean"])
    rooms = chromium.run("page.data.rows.map((row) => row[5]).filter((room) => room !== null)")
    assert sort_by(chromium, 6) == "ascending"
    assert [float(t.split()[0]) for t in texts(chromium, "#cases-table td.n")] == sorted(rooms)[:60]
    assert sort_by(chromium, 6) == "descending"
    while chromium.run("!document.getElementById('cases-more').hidden"):
        click(chromium, "#cases-more button")
    shown = [t.split()[0] for t in texts(chromium, "#cases-table td.n")]
    assert [float(t) for t in shown if t != "none"] == sorted(rooms, reverse=True)
    assert len(shown) == chromium.run("page.data.rows.length")
    assert sort_by(chromium, 6) == "none"


def test_sizes_and_seeds_sort_as_numbers_and_the_worst_status_comes_first(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    assert sort_by(chromium, 1) == "ascending"
    click(chromium, "#cases-more button:last-child")
    plain = [re.findall(r"[A-Z] (\d+)", t) for t in texts(chromium, "#cases-table tbody th")]
    sizes = [tuple(map(int, row[:3])) for row in plain]
    assert sizes == sorted(sizes)
    assert sort_by(chromium, 4) == "ascending"
    statuses = [t.split()[1] for t in texts(chromium, "#cases-table .badge")]
    assert statuses[:2] == ["ERROR", "FAIL"]
    assert statuses == sorted(statuses, key=list(SEVERITY).index)


def test_a_search_keeps_the_order_that_was_asked_for(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    sort_by(chromium, 6)
    sort_by(chromium, 6)
    type_into_search(chromium, "split_ordered accuracy")
    rooms = [float(t.split()[0]) for t in texts(chromium, "#cases-table td.n")]
    assert rooms == sorted(rooms, reverse=True)
    assert len(rooms) > 1
    assert chromium.run("document.querySelector('#cases-table thead th:nth-child(6)').ariaSort") == "descending"


def test_the_rest_of_the_cases_is_a_press_of_a_key_away(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["clean"])
    total = chromium.run("page.data.rows.length")
    assert texts(chromium, "#cases-told") == [f"60 of {total} judged Cases"]
    chromium.run("document.querySelector('#cases-more button').focus()")
    chromium.press("Enter", "\r")
    assert len(texts(chromium, "#cases-table tbody tr")) == min(260, total)
    assert chromium.run("document.activeElement.closest('tr').rowIndex") == 61
    while chromium.run("!document.getElementById('cases-more').hidden"):
        click(chromium, "#cases-more button")
    assert texts(chromium, "#cases-told") == [f"All {total} judged Cases"]
    assert texts(chromium, "#cases-more") == []


def test_back_closes_a_case_and_leads_to_where_it_was_opened(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    type_into_search(chromium, "triton")
    click(chromium, "#cases-table a.case")
    assert chromium.run("document.getElementById('case').open")
    chromium.run("history.back()")
    assert settled(chromium, "!document.getElementById('case').open")
    assert hash_of(chromium) == "#?q=triton"
    assert chromium.run("location.pathname.endsWith('failing.html')")
    chromium.run("history.forward()")
    assert settled(chromium, "document.getElementById('case').open")
    leave(chromium)
    assert hash_of(chromium) == "#?q=triton"
    assert chromium.run("document.getElementById('search').value") == "triton"


def test_a_case_that_is_opened_while_another_closes_opens(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    chromium.run("page.open([0, 1])")
    chromium.run("document.getElementById('case-close').click(); setTimeout(() => page.open([2, 3], 3), 0)")
    assert settled(chromium, "page.state().get('case') === page.data.rows[3][6]")
    assert chromium.run("document.getElementById('case').open")
    assert re.fullmatch(r"[12] of 2", texts(chromium, "#case-place")[0])


def test_from_a_case_to_its_kernel_and_back(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    chromium.run("page.open([0])")
    click(chromium, "#case-card")
    assert settled(chromium, "location.hash === `#${page.row(0).anchor}`")
    assert not chromium.run("document.getElementById('case').open")
    chromium.run("history.back()")
    assert settled(chromium, "document.getElementById('case').open")


@pytest.mark.parametrize(
    ("hash_", "said"),
    [
        ("#?case=x0000000000", "the Case x0000000000"),
        ("#?status=FAIL,NEVER", "anything that is FAIL and anything that is NEVER"),
        ("#?moved=1", "anything that moved"),
        ("#xffff", "the place #xffff"),
    ],
)
def test_a_link_to_what_is_not_here_says_so(chromium: Browser, pages: Pages, hash_: str, said: str) -> None:
    opened(chromium, pages["clean"], hash_)
    (lost,) = texts(chromium, "#lost")
    assert said in lost
    assert chromium.run("document.getElementById('lost').getBoundingClientRect().bottom") < 900
    type_into_search(chromium, "triton")
    assert texts(chromium, "#lost") == []


def test_a_case_that_failed_says_why_and_what_it_was_at_the_base(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["fell"])
    failed = "page.data.rows.findIndex((r, i) => page.row(i).status === 'FAIL')"
    chromium.run(f"page.open([{failed}])")
    (why,) = texts(chromium, "#case-why p")
    assert why == "out ✕ FAIL (PASS at the base) match 61 beyond 4; ceiling 2.41 beyond 1"
    facts = texts(chromium, "#case-why .element > div")
    assert facts == ["worst element [0, 1, 17]", "got 0.00390625", "expected 0.0030059814453125"]
    rows = texts(chromium, "#case-why tbody tr")
    assert rows[0].startswith("out match 61 at most 4 beyond ")
    assert rows[1].startswith("out ceiling 2.41 at most 1 beyond 0.")
    assert axe(chromium) == []


def test_a_search_for_an_output_is_not_met_by_a_fact_of_that_name(chromium: Browser, tmp_path: Path) -> None:
    rows = []
    for row in read(scene.write(tmp_path / "r.jsonl", count=6, failing=True)).rows:
        if row["kind"] == "case":
            row = {**row, "case": {**row["case"], "facts": {"d_post": "data", "sink": "finite"}}}
        rows.append(row)
    path = tmp_path / "facts.html"
    path.write_text(render_html(Records(tuple(rows))), encoding="utf-8")
    opened(chromium, path)
    type_into_search(chromium, "d_post")
    found = texts(chromium, "#cases-told")[0]
    judged = chromium.run("page.data.rows.filter((r, i) => page.row(i).words.split(' ').includes('d_post')).length")
    assert found.startswith(f"{judged} of ")
    assert judged < chromium.run("page.data.rows.length")
    type_into_search(chromium, "sink")
    total = chromium.run("page.data.rows.length")
    assert texts(chromium, "#cases-told") == [f"60 of {total} judged Cases"]


def test_from_a_mark_to_its_case_and_on_to_the_next(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    spot = chromium.run("""(() => {
      document.documentElement.style.scrollBehavior = "auto";
      const path = document.querySelector("path.failed[data-rows]"), svg = path.ownerSVGElement;
      svg.scrollIntoView({block: "center"});
      const [, x, y] = /M([\\d.]+) ([\\d.]+)/.exec(path.getAttribute("d")).map(Number);
      const box = svg.getBoundingClientRect(), row = Number(path.dataset.rows.split(" ")[0]);
      return {x: box.left + x, y: box.top + y, replay: page.row(row).replay, rows: page.row(row)};
    })()""")
    chromium.click(spot["x"], spot["y"])
    assert chromium.run("document.getElementById('case').open")
    assert texts(chromium, "#case-replay") == [spot["replay"]]
    assert spot["rows"]["status"] == "FAIL"
    assert hash_of(chromium) == f"#?case={spot['rows']['key']}"
    place = texts(chromium, "#case-place")[0]
    chromium.press("ArrowRight")
    assert texts(chromium, "#case-place") != [place]
    leave(chromium)
    assert hash_of(chromium) in ("", "#")


def test_a_gate_s_mark_in_the_head_leads_to_its_case(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["compared"])
    found = chromium.run("""[...document.querySelectorAll("svg.thennow")].map((svg) => ({
      label: svg.getAttribute("aria-label"),
      kernel: svg.closest(".card").querySelector("h3").innerText,
      leads: [...svg.querySelectorAll(".now[data-rows]")].flatMap((path) => path.dataset.rows.split(" "))
        .map((row) => page.row(Number(row))),
    }))""")
    assert found
    for picture in found:
        assert picture["leads"], picture["label"]
        for row in picture["leads"]:
            assert f"under {row['law']}," in picture["label"]
            assert picture["kernel"].startswith(f"{row['spec']} as ")
    chromium.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    chromium.run("document.querySelector('svg.thennow').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}))")
    assert chromium.run("document.getElementById('case').open")


def test_a_link_to_a_case_opens_it_with_its_inputs_and_its_replay(chromium: Browser, pages: Pages) -> None:
    records = read(pages["failing"].with_suffix(".jsonl"))
    row = next(r for r in records.of("case") if r["status"] == "FAIL" and r["phase"] == "grid")
    # The key is the same in every rendering.
    key = case_key(Kernel("kernels", "triton"), CPU, "accuracy", line(row["case"]))
    opened(chromium, pages["failing"], f"#?case={key}")
    assert texts(chromium, "#case-replay") == [replay_line("kernels", "triton", "accuracy", row["case"])]
    assert texts(chromium, "#case-made") == [made(row["case"])]
    assert texts(chromium, "#case-facts dd")[:4] == [str(v) for v in row["case"]["sizes"].values()] + [
        row["case"]["dtype"]
    ]


@pytest.mark.parametrize(("room", "shown"), [(100, "100"), (120, "120"), (1.5, "1.5"), (2, "2"), (0.0123, "0.0123")])
def test_a_headroom_keeps_its_zeros(chromium: Browser, pages: Pages, room: float, shown: str) -> None:
    opened(chromium, pages["few"])
    chromium.run(f"page.data.rows[0][5] = {room}; page.open([0])")
    assert re.search(rf"lowest headroom {re.escape(shown)}(, \w+ of \w+)?\.$", texts(chromium, "#case-claim")[0])


def test_every_case_reads_in_the_browser_as_it_does_elsewhere(chromium: Browser, pages: Pages) -> None:
    """Replay lines and how inputs are made are composed in the page: they must be numcheck's own, letter by letter."""
    opened(chromium, pages["clean"])
    found: list[dict[str, Any]] = chromium.run(
        "page.data.rows.map((r, i) => ({...page.row(i), made: page.made(page.row(i).line)}))"
    )
    for one in found:
        case = json.loads(one["line"])
        assert one["replay"] == replay_line(one["specs"], one["spec"], one["law"], case)
        assert one["made"] == made(case)


@pytest.mark.parametrize("section", ["ladder", "order"])
def test_a_rung_that_flipped_and_an_output_whose_order_shows_lead_to_a_case(
    chromium: Browser, pages: Pages, section: str
) -> None:
    opened(chromium, pages["clean"])
    shown = chromium.run(f"document.querySelector('#{section} a.case').textContent")
    click(chromium, f"#{section} a.case")
    assert texts(chromium, "#case-h") == [shown]
    assert texts(chromium, "#case-claim")[0].startswith("ORDER_DEPENDENT: triton_split_atomic under bitwise")
    leave(chromium)


def test_a_place_that_a_filter_hides_is_shown_by_its_link(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    anchor = chromium.run("document.querySelectorAll('.card')[1].id")
    type_into_search(chromium, "eager_bf16")
    assert not chromium.run(f"document.getElementById('{anchor}').checkVisibility()")
    chromium.run(f"location.hash = '{anchor}'")
    chromium.run("new Promise((done) => setTimeout(done, 50))")
    assert chromium.run(f"document.getElementById('{anchor}').checkVisibility()")
    assert chromium.run("document.getElementById('search').value") == ""


def test_links_within_the_page_lead_somewhere(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["compared"])
    assert (
        chromium.run("""[...document.querySelectorAll("a[href]")].map((a) => a.getAttribute("href"))
      .filter((href) => href.startsWith("#?")
        ? !page.data.rows.some((row) => row[6] === new URLSearchParams(href.slice(2)).get("case"))
        : !document.getElementById(href.slice(1)))""")
        == []
    )


def test_it_can_be_used_by_keyboard_alone(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    chromium.press("/", "/")
    assert chromium.run("document.activeElement.id") == "search"
    chromium.run("document.querySelector('svg.walkable[tabindex=\"0\"]').focus()")
    chromium.press("ArrowRight")
    assert chromium.run("document.activeElement.matches('svg.walkable[tabindex=\"0\"]')")
    chromium.press("Enter")
    assert chromium.run("document.getElementById('case').open")
    assert chromium.run("document.getElementById('case').contains(document.activeElement)")
    leave(chromium)
    assert chromium.run("document.activeElement.matches('svg.walkable')")


def axe(chromium: Browser, scheme: str = "light", rules: str = "{}") -> list[str]:
    """What the checker finds; rules: options of axe.run."""
    chromium.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    chromium.run(AXE.read_text(encoding="utf-8") + "; 0")
    found = chromium.run(f"axe.run(document, {rules}).then((r) => r.violations)")
    return [f"{v['id']}: {v['help']}: {[n['html'][:160] for n in v['nodes'][:3]]}" for v in found]


def test_an_accessibility_checker_finds_nothing(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["few"])
    chromium.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert axe(chromium) == []
    # Colours alone are otherwise in the dark.
    assert axe(chromium, "dark", "{runOnly: ['color-contrast']}") == []


def test_the_checker_would_find_something(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["few"])
    chromium.run("document.documentElement.removeAttribute('lang')")
    chromium.run("document.querySelector('h1').style.color = '#eeeeee'")
    rules = "{runOnly: ['color-contrast', 'html-has-lang']}"
    assert {said.split(":")[0] for said in axe(chromium, rules=rules)} == {"color-contrast", "html-has-lang"}


def test_a_case_has_no_violation_either(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["few"])
    chromium.run("page.open([0, 1])")
    assert axe(chromium) == []


def test_in_print_the_page_is_light_and_without_controls(chromium: Browser, pages: Pages) -> None:
    opened(chromium, pages["failing"])
    chromium.call("Emulation.setEmulatedMedia", media="print")
    try:
        assert texts(chromium, "nav, .replay button, .filter") == []
        assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        chromium.call("Emulation.setEmulatedMedia", media="")


def test_without_scripts_it_still_reads(chromium: Browser, pages: Pages) -> None:
    chromium.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        opened(chromium, pages["failing"])
    finally:
        chromium.call("Emulation.setScriptExecutionDisabled", value=False)
    assert texts(chromium, "h1") == ["Did not hold"]
    assert texts(chromium, ".filter") == texts(chromium, "dialog") == texts(chromium, ".with-script") == []


def metrics(chromium: Browser) -> dict[str, float]:
    return {m["name"]: m["value"] for m in chromium.call("Performance.getMetrics")["metrics"]}


def test_ten_thousand_records_are_there_within_two_seconds(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "many.html"
    many = read(scene.write(tmp_path / "r.jsonl", count=355, failing=True))
    path.write_text(render_html(scene.moved(many), of(many)), encoding="utf-8")
    chromium.call("Performance.enable", timeDomain="threadTicks")
    before = metrics(chromium)
    opened(chromium, path)
    spent = metrics(chromium)["TaskDuration"] - before["TaskDuration"]
    assert LEAST_SECONDS < spent < SECONDS
    type_into_search(chromium, "triton seed 34")
    assert texts(chromium, "#cases-table tbody tr")
