"""Workflow commands of GitHub Actions: what failed, fell or was not run, beside the change that is reviewed."""

from __future__ import annotations

from collections.abc import Iterator

from numcheck.harmless import clean
from numcheck.report.page import Page

# GitHub shows ten annotations of a kind in a step; the last of ours says how many there are besides.
SHOWN = 10
# Longest message: an annotation is a pointer, the report has the rest.
LONGEST = 600


def lines(page: Page) -> list[str]:
    """One line each, the gravest first. No line of a record can begin a command of its own, or end one."""
    return [
        *_cut("error", [*_failed(page), *_fell(page)]),
        *_cut("warning", list(_bits(page))),
        *_cut("notice", list(_not_run(page))),
    ]


def _failed(page: Page) -> Iterator[tuple[str, str, str]]:
    for cell in page.summary.failed:
        where = next(
            (f for f in page.failures if (f.kernel, f.law, f.place) == (cell.kernel, cell.law, cell.place)), None
        )
        why = "; ".join(f"{name}: {why}" for name, _, _, why in where.outputs) if where else ""
        replay = f"\n{where.replay}" if where and where.replay else ""
        title = f"{cell.status}: {cell.kernel.spec} under {cell.law}, {cell.place.name}"
        yield _file(cell.kernel.specs), title, why + replay


def _fell(page: Page) -> Iterator[tuple[str, str, str]]:
    answer = page.comparison.answers[1] if page.comparison else None
    if answer is not None and answer.word == "yes":
        yield from (("", answer.question, sentence) for sentence in answer.sentences)


def _bits(page: Page) -> Iterator[tuple[str, str, str]]:
    answer = page.comparison.answers[0] if page.comparison else None
    if answer is not None and answer.word != "no":
        yield from (("", answer.question, sentence) for sentence in answer.sentences)


def _not_run(page: Page) -> Iterator[tuple[str, str, str]]:
    answer = page.comparison.answers[2] if page.comparison else None
    if answer is not None:
        yield from (("", answer.question, sentence) for sentence in answer.sentences)


def _file(specs: str) -> str:
    """The specs file as the repository knows it; "" for a module, or a path that is somewhere else."""
    return specs if specs.endswith(".py") and not specs.startswith(("/", "..")) else ""


def _cut(kind: str, found: list[tuple[str, str, str]]) -> Iterator[str]:
    shown = found if len(found) <= SHOWN else found[: SHOWN - 1]
    for file, title, message in shown:
        yield command(kind, file, title, message)
    if len(found) > len(shown):
        yield command(kind, "", "numcheck", f"and {len(found) - len(shown)} more, in the report")


def command(kind: str, file: str, title: str, message: str) -> str:
    """One workflow command, its text escaped as GitHub's runner asks for: it ends at a line's end, and % escapes."""
    facts = [f"file={_property(file)}"] if file else []
    facts.append(f"title={_property(title)}")
    text = clean(message)
    return f"::{kind} {','.join(facts)}::{_message(text if len(text) <= LONGEST else text[:LONGEST] + '...')}"


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(clean(text)).replace(":", "%3A").replace(",", "%2C")
