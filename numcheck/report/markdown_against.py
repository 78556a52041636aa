"""Base against head in Markdown: the three answers, what moved, and a line that judges each of it again."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from numcheck.compare import Compared, Comparison, told, words
from numcheck.compare.outputs import law_of
from numcheck.compare.told import fallen
from numcheck.harmless import one_line
from numcheck.record import replay_line
from numcheck.report.marks import code, plain, table
from numcheck.report.text import count, figure

# Sentences of an answer, and replay lines: the HTML page has the rest.
SHOWN = 10


def compared(comparison: Comparison | None, shown: Collection[str]) -> Iterator[str]:
    """The three answers, then one table of everything that moved; shown: replay lines that stand elsewhere."""
    if comparison is None:
        return
    yield f"## Against {plain(comparison.at or 'the base')}"
    claims = [f"- **{c.state}**: {plain(c.told(comparison.at))}" for c in comparison.repairs[:SHOWN]]
    rest = len(comparison.repairs) - SHOWN
    yield "\n".join([*claims, *([f"- ... and {count(rest, 'more', 'more')}"] if rest > 0 else [])])
    for answer in comparison.answers:
        lines = [f"- {plain(sentence)}" for sentence in answer.sentences[:SHOWN]]
        rest = len(answer.sentences) - SHOWN
        lines += [f"- ... and {count(rest, 'more', 'more')}"] if rest > 0 else []
        yield "\n".join([f"**{plain(answer.question)}** {plain(answer.word)}", "", *lines]).rstrip()
    for accepted in comparison.base.accepted[-1:]:
        yield f"The base was accepted on {plain(accepted.when)}: {plain(accepted.reason)}"
    yield table(
        ["Kernel", "What", "Cases", "Base", "Head"],
        [
            [kernel.subject.name, t.what, t.cases if t.case else "all", t.before, t.after]
            for kernel in comparison.kernels
            for t in told(kernel.moved)
        ],
    )
    yield _replays(comparison, shown)
    times = table(
        ["Kernel", "Seconds, head over base", "95 % interval", "Cases"],
        [
            [k.subject.name, figure(k.time.ratio), f"{figure(k.time.low)} to {figure(k.time.high)}", k.time.cases]
            for k in comparison.kernels
            if k.time and k.time.clear
        ],
    )
    yield times
    if times:
        yield f"Times: {words.HINT}."


def _replays(comparison: Comparison, shown: Collection[str]) -> str:
    """Of each output that moved one Case, with the line that judges it again, each once."""
    found: dict[str, list[str]] = {}
    for kernel in comparison.kernels:
        for what, replay in _moved_cases(comparison, kernel):
            found.setdefault(replay, []).append(what)
    moved = [(said, replay) for replay, said in found.items() if replay not in shown]
    lines = [line for said, replay in moved[:SHOWN] for line in (*said, replay)]
    rest = len(moved) - SHOWN
    lines += [f"# and {count(rest, 'more', 'more')}"] if rest > 0 else []
    return code("\n".join(lines)) if lines else ""


def _moved_cases(comparison: Comparison, kernel: Compared) -> Iterator[tuple[str, str]]:
    """Pairs of lines: what moved, and the replay of a Case in which it did."""
    name, (specs, spec) = kernel.subject.name, kernel.subject.kernel
    then, now = (side.kernels[kernel.subject.key].cases for side in (comparison.base, comparison.head))
    for bits in (b for b in kernel.bits if b.changed or b.unhashed):
        case = (bits.changed or bits.unhashed)[0]
        what = f"# {name}: {'other' if bits.changed else 'no'} bits of {bits.output}, the smallest Case on both sides"
        law = law_of(bits.output, then[case.key], now[case.key])
        yield one_line(what), one_line(replay_line(specs, spec, law, case))
    for one in fallen(kernel.losses):
        if one.case is not None:
            what = f"# {name}: {one.what}: {one.before}, now {one.after}"
            yield one_line(what), one_line(replay_line(specs, spec, one.law, one.case))
