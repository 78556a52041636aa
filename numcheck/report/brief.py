"""The report as a comment on a pull request: the verdict first, the three answers, then each kernel in a few lines.

Its length is bounded, whatever the records hold: each kernel has its share, and what is left out is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from numcheck.baseline import Subject
from numcheck.compare import Answer, Compared, Comparison, told
from numcheck.compare.outputs import law_of
from numcheck.compare.told import Told, fallen
from numcheck.record import replay_line
from numcheck.report.failures import Failure
from numcheck.report.marks import ROWS, code, plain, span, table
from numcheck.report.page import Page
from numcheck.report.sources import place
from numcheck.report.summary import Cell, Line
from numcheck.report.text import BROKEN, GLYPHS, count, cut

# GitHub takes comments of up to 65,536 characters and refuses longer ones whole. Counted in bytes, of which there are
# never fewer, and with room for the mark and the link that a workflow adds.
COMMENT = 60_000
# What comes before the kernels: of honest records a tenth of it.
HEAD = 30_000
# A kernel's share: a reviewer reads a dozen lines of each, and opens the page for more.
KERNEL = 1_400
# Below this not even one failure and its replay line fit: then fewer kernels are told.
LEAST = 600
# Sentences of an answer, and kernels named on one line.
SENTENCES, NAMES = 5, 20
# Characters of one sentence, of one figure with its place, and of a name.
SENTENCE, WHERE, NAME = 300, 160, 120
PAGE = "in the HTML page"
# What a count of Cases says of those that its mark does not stand for.
WORDS = {"ORDER_DEPENDENT": "order-dependent", "VACUOUS": "vacuous", "UNAVAILABLE": "not run"}

# What is said of a kernel, and the line that replays it or "".
Piece = tuple[str, str]


def write(page: Page) -> str:
    """The whole text, of at most `COMMENT` bytes."""
    whole = [block for block in _head(page) if block]
    head = whole[: _fitting(whole, HEAD)]
    head += [f"{count(len(whole) - len(head), 'more part')} of the summary {PAGE}."] if len(head) < len(whole) else []
    room = COMMENT - size(head) - KERNEL
    kernels = list(_kernels(page))
    share = min(KERNEL, max(LEAST, room // max(1, len(kernels))))
    blocks = [_kernel(name, pieces, share) for name, pieces in kernels]
    kept = _fitting(blocks, room)
    left = [name for name, _ in kernels[kept:]]
    return "\n\n".join([*head, *blocks[:kept], *([_left(left)] if left else [])]) + "\n"


def size(blocks: Iterable[str]) -> int:
    """Bytes of these blocks with the empty line after each."""
    return sum(len(block.encode()) + 2 for block in blocks)


def _fitting(blocks: Sequence[str], room: int) -> int:
    """How many of the first blocks fit."""
    for index in range(len(blocks)):
        room -= size(blocks[index : index + 1])
        if room < 0:
            return index
    return len(blocks)


def _left(names: Sequence[str]) -> str:
    """Kernels for which there is no room: how many, and the first of them by name."""
    shown: list[str] = []
    for name in (plain(cut(name, NAME)) for name in names[:NAMES]):
        if size([*shown, name]) > KERNEL // 2:
            break
        shown.append(name)
    more = f" and {len(names) - len(shown):,} more" if len(names) > len(shown) else ""
    return f"{count(len(names), 'more kernel')}, for which there is no room here, {PAGE}: {', '.join(shown)}{more}."


def _head(page: Page) -> Iterator[str]:
    s = page.summary
    first = next((f"{span(cut(c.kernel.spec, NAME))} under {plain(c.law)}" for c in s.failed), "")
    others = f", and {count(len(s.failed) - 1, 'more claim')}" if len(s.failed) > 1 else ""
    yield f"# {s.headline}" + (f": {first}{others}" if first else "")
    places = ", ".join(s.places) or "nothing ran"
    figures = f"{count(s.kernels, 'kernel')}, {count(len(s.laws), 'law')}, {count(s.cases, 'Case')}; {places}."
    yield plain(cut("; ".join(s.sentences), 2 * SENTENCE) + ". " + cut(figures, SENTENCE))
    if page.comparison:
        yield _repairs(page.comparison)
        yield from map(_answer, page.comparison.answers)
        for accepted in page.comparison.base.accepted[-1:]:
            yield f"The base was accepted on {plain(accepted.when)}: {plain(cut(accepted.reason, 2 * SENTENCE))}"
    yield _matrix(s.laws, s.lines)
    if page.troubles:
        yield f"{count(len(page.troubles), 'problem')} in the records, listed {PAGE}."


def _repairs(comparison: Comparison) -> str:
    """What failed at the base and holds now, or is judged no more."""
    lines = []
    for c in comparison.repairs[:SENTENCES]:
        said = c.told(comparison.at).removesuffix(f"; the smallest on both sides {c.case.line() if c.case else ''}")
        lines.append(f"- **{c.state.capitalize()}**: {plain(cut(said, SENTENCE))}")
    rest = len(comparison.repairs) - SENTENCES
    return "\n".join([*lines, *([f"- and {rest:,} more {PAGE}"] if rest > 0 else [])])


def _answer(answer: Answer) -> str:
    lines = [f"- {plain(cut(sentence, SENTENCE))}" for sentence in answer.sentences[:SENTENCES]]
    rest = len(answer.sentences) - SENTENCES
    lines += [f"- and {rest:,} more {PAGE}"] if rest > 0 else []
    return "\n".join([f"**{plain(answer.question)} {plain(answer.word.capitalize())}.**", "", *lines]).rstrip()


def _matrix(laws: Sequence[str], lines: Sequence[Line]) -> str:
    """Every kernel and law in a mark and a count, folded: those that did not hold first."""
    ordered = sorted(lines, key=lambda line: not any(c and c.status in BROKEN for c in line.cells))
    rows = table(
        ["Kernel", "Ran as", *(plain(cut(law, NAME)) for law in laws)],
        [[cut(line.kernel.spec, NAME), line.ran, *map(_cell, line.cells)] for line in ordered[:ROWS]],
    )
    if not rows:
        return ""
    legend = _legend([cell for line in ordered for cell in line.cells if cell])
    left = f" {count(len(ordered) - ROWS, 'more row')} {PAGE}." if len(ordered) > ROWS else ""
    said = f"Kernels and laws: {count(len(ordered), 'row')}"
    return f"<details><summary>{said}</summary>\n\n{rows}\n\n{legend}{left}\n</details>"


def _cell(cell: Cell | None) -> str:
    if cell is None:
        return ""
    broken = sum(n for status, n in cell.parts if status in BROKEN)
    said = [f"{broken} of {cell.cases}" if broken else str(cell.cases or "")]
    # What proved nothing is not covered by the mark of what did.
    beside = [f"{n} {WORDS[status]}" for status, n in cell.parts if status in WORDS and len(cell.parts) > 1]
    said += [f"of them {', '.join(beside)}"] if beside else []
    said += [f"pooled {cell.pooled}"] if cell.pooled not in ("", "PASS", cell.status) else []
    return f"{GLYPHS[cell.status]} {', '.join(said)}".strip()


def _legend(cells: Sequence[Cell]) -> str:
    """What the marks and words of the matrix mean."""
    used = {cell.status for cell in cells}
    marks = ", ".join(f"{GLYPHS[status]} {status}" for status in GLYPHS if status in used)
    said = f"{marks}; of how many Cases."
    if any(cell.counts["VACUOUS"] for cell in cells):
        said += " Vacuous: nothing in those Cases could have failed, so they prove nothing."
    if any(cell.pooled not in ("", "PASS", cell.status) for cell in cells):
        said += " Pooled: the verdict on all Cases together, beside those on each."
    return plain(said)


def _kernels(page: Page) -> Iterator[tuple[str, list[Piece]]]:
    """Each kernel of which there is something to say, those that do not hold first: its name, and what is said."""
    failed: dict[Subject, list[Failure]] = defaultdict(list)
    for failure in page.failures:
        failed[Subject(failure.kernel, failure.place)].append(failure)
    compared: Mapping[Subject, Compared] = {}
    if page.comparison:
        compared = {k.subject: k for k in page.comparison.kernels if not k.quiet}
    for subject in sorted(dict.fromkeys((*failed, *compared)), key=page.order):
        pieces = [_failure(page, f) for f in failed.get(subject, [])]
        if page.comparison and subject in compared:
            laws = {f.law for f in failed.get(subject, [])}
            pieces += _moved(page.comparison, compared[subject], laws)
        yield subject.name, pieces


def _kernel(name: str, pieces: Sequence[Piece], room: int) -> str:
    """One kernel in at most so many bytes: of what does not fit, how much it is."""
    head = f"### {plain(cut(name, NAME))}"
    room -= size((head, f"- and {len(pieces):,} more of it {PAGE}"))
    kept: list[str] = []
    left = 0
    for line, replay in pieces:
        whole = f"{line}\n{code(replay)}" if replay else line
        # Without the line that replays it, rather than not at all.
        told = next((text for text in (whole, line) if size((text,)) <= room), "")
        room -= size((told,)) if told else 0
        kept += [told] if told else []
        left += not told
    return "\n".join([head, "", *kept, *([f"- and {left:,} more of it {PAGE}"] if left else [])])


def _failure(page: Page, f: Failure) -> Piece:
    if f.pooled and f.judged:
        cases = f"over all {count(f.judged, 'Case')} together"
    else:
        cases = f"{f.failed} of {count(f.judged, 'Case')}" if f.judged else "no Case judged"
    why = "; ".join(f"{name}: {why}" if name != "*" else why for name, _, _, why in f.outputs)
    where = next((where for _, _, where, _ in f.outputs if where), "")
    line = f"- **{f.status}** under {plain(cut(f.law, NAME))}, {cases}: {plain(cut(why, SENTENCE))}"
    line += f"\n  {span(cut(where, WHERE))}" if where else ""
    at = place(page.sources, f.kernel, (name for name, *_ in f.outputs))
    line += f"\n  in {span(str(at))}" if at else ""
    return line, f.replay


def _moved(comparison: Comparison, k: Compared, failing: set[str]) -> Iterator[Piece]:
    """Bits, then what fell, then what else is otherwise; a law that fails has told its own."""
    base, head = (side.kernels[k.subject.key].cases for side in (comparison.base, comparison.head))
    moved = [b for b in k.bits if b.changed]
    if moved:
        case = moved[0].changed[0]
        law = law_of(moved[0].output, base[case.key], head[case.key])
        said = ", ".join(f"{b.output} in {len(b.changed)} of {count(b.same + len(b.changed), 'Case')}" for b in moved)
        # The line that shows a failure shows that the bits are others too.
        replay = "" if law in failing else replay_line(*k.subject.kernel, law, case)
        yield f"- Other bits: {plain(cut(said, SENTENCE))}", replay
    lost = ", ".join(f"{b.output} in {count(len(b.unhashed), 'Case')}" for b in k.bits if b.unhashed)
    if lost:
        yield f"- No bits where the base has some: {plain(cut(lost, SENTENCE))}", ""
    for one in (one for one in fallen(k.losses) if one.law not in failing):
        replay = replay_line(*k.subject.kernel, one.law, one.case) if one.case is not None else ""
        yield f"- Fell: {_told(one)}", replay
    if k.vanished:
        yield f"- {count(len(k.vanished), 'named Case')} no longer run", ""
    for one in told(m for m in k.moved if not m.loss and m.law not in failing):
        yield f"- Moved: {_told(one)}", ""


def _told(one: Told) -> str:
    where = f" in {count(one.cases, 'Case')}" if one.case is not None else ""
    return plain(cut(f"{one.what}: {one.before}, now {one.after}{where}", SENTENCE))
