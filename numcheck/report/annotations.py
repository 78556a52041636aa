"""Workflow commands of GitHub Actions: what failed, fell or was not run, beside the change that is reviewed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from numcheck.compare import Compared
from numcheck.compare.told import fallen
from numcheck.harmless import clean
from numcheck.report.page import Page
from numcheck.report.sources import Place, kernels, place
from numcheck.report.text import count, cut
from numcheck.selection import Kernel

# GitHub shows ten annotations of a kind in a step; the last of ours says how many there are besides.
SHOWN = 10
# Longest title and message: an annotation is a pointer, the report has the rest.
TITLE, LONGEST = 160, 1_000
# Of that, characters for the kernel's functions.
CODE = 300
# What a reviewer does about bits that are meant to be others, in a change that is otherwise whole.
ACCEPT = "if that is meant: numcheck accept RECORDS --reason TEXT"


@dataclass(frozen=True)
class Note:
    """One annotation: where in the repository, what about, and what to say."""

    title: str
    message: str
    place: Place | None = None


def lines(page: Page) -> list[str]:
    """One line each, the gravest first. No line of a record can begin a command of its own, or end one."""
    bits = list(_bits(page))
    errors = [*_failed(page), *_fell(page)]
    return [
        *_cut("error", errors or ([] if bits else list(_whole(page)))),
        *_cut("warning", bits),
        *_cut("notice", list(_not_run(page))),
    ]


def _whole(page: Page) -> Iterator[Note]:
    """What did not hold, finish or prove anything though no claim failed: a run that was cut off, faults that live."""
    if page.summary.word != "held":
        yield Note(page.summary.headline, "; ".join(page.summary.sentences))


def _failed(page: Page) -> Iterator[Note]:
    for cell in page.summary.failed:
        where = next(
            (f for f in page.failures if (f.kernel, f.law, f.place) == (cell.kernel, cell.law, cell.place)), None
        )
        outputs = where.outputs if where else []
        why = "; ".join(f"{name}: {why}" if name != "*" else why for name, _, _, why in outputs)
        replay = _replay(where.replay, where.shrunk) if where else ""
        code = _code(page, cell.kernel)
        title = f"{cell.status}: {cell.kernel.spec} under {cell.law}, {cell.place.name}"
        # The replay line is what a reader copies: the reasons make room for it.
        told = cut(why, max(0, LONGEST - len(code) - len(replay))) + code + replay
        yield Note(title, told, place(page.sources, cell.kernel, (name for name, *_ in outputs)))


def _replay(line: str, shrunk: bool) -> str:
    """The line that a reader copies, under what it replays."""
    return f"\nThe {'shrunk Case' if shrunk else 'first Case that failed'}:\n{line}" if line else ""


def _code(page: Page, kernel: Kernel) -> str:
    """The functions that must run: any of them may be the one that was changed."""
    names = kernels(page.sources, kernel)
    return f"\nIts kernels: {cut(', '.join(names), CODE)}" if names else ""


def _fell(page: Page) -> Iterator[Note]:
    """What fell, kernel by kernel, but for the laws that fail: those have been told."""
    answer = page.comparison.answers[1] if page.comparison else None
    if page.comparison is None or answer is None or answer.word != "yes":
        return
    failing = {(cell.kernel, cell.place, cell.law) for cell in page.summary.failed}
    for k in page.comparison.kernels:
        losses = [m for m in k.losses if (k.subject.kernel, k.subject.place, m.law) not in failing]
        said = [f"{t.what}: {t.before}, now {t.after}" for t in fallen(losses)]
        said += [f"{count(len(k.vanished), 'named Case')} no longer run"] if k.vanished else []
        if said:
            outputs = [m.output for m in losses if m.output]
            told = cut("; ".join(said), LONGEST - CODE) + _code(page, k.subject.kernel)
            yield Note(f"Fell: {k.subject.name}", told, place(page.sources, k.subject.kernel, outputs))
    for subject in page.comparison.gone:
        if any(sentence.startswith(f"{subject.name} ") for sentence in answer.sentences):
            yield Note(f"Gone: {subject.name}", "it is no longer judged")


def _bits(page: Page) -> Iterator[Note]:
    answer = page.comparison.answers[0] if page.comparison else None
    if page.comparison is None or answer is None or answer.word == "no":
        return
    if answer.word == "unknown":
        yield from (Note(answer.question, sentence) for sentence in answer.sentences)
        return
    # Nobody accepts what does not hold.
    whole = not page.summary.failed and page.comparison.answers[1].word != "yes"
    for k in page.comparison.kernels:
        said = [*_changed(k), *_lost(k)]
        if said:
            outputs = [b.output for b in k.bits if b.changed or b.unhashed]
            told = cut("; ".join([*said, *([ACCEPT] if whole else [])]), LONGEST - CODE) + _code(page, k.subject.kernel)
            yield Note(f"Other bits: {k.subject.name}", told, place(page.sources, k.subject.kernel, outputs))


def _changed(k: Compared) -> list[str]:
    return [f"{b.output} in {len(b.changed)} of {count(b.same + len(b.changed), 'Case')}" for b in k.changed]


def _lost(k: Compared) -> list[str]:
    return [f"{b.output} has no bits in {count(len(b.unhashed), 'Case')}" for b in k.bits if b.unhashed]


def _not_run(page: Page) -> Iterator[Note]:
    answer = page.comparison.answers[2] if page.comparison else None
    if answer is not None:
        yield from (Note(answer.question, sentence) for sentence in answer.sentences)


def _cut(kind: str, found: list[Note]) -> Iterator[str]:
    shown = found if len(found) <= SHOWN else found[: SHOWN - 1]
    for note in shown:
        yield command(kind, note)
    if len(found) > len(shown):
        yield command(kind, Note("numcheck", f"and {len(found) - len(shown)} more, in the report"))


def command(kind: str, note: Note) -> str:
    """One workflow command, its text escaped as GitHub's runner asks for: it ends at a line's end, and % escapes."""
    facts = [f"file={_property(note.place.file)}"] if note.place else []
    facts += [f"line={note.place.line}"] if note.place and note.place.line else []
    facts.append(f"title={_property(cut(note.title, TITLE))}")
    return f"::{kind} {','.join(facts)}::{_message(cut(clean(note.message), LONGEST))}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(clean(text)).replace(":", "%3A").replace(",", "%2C")
