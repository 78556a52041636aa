"""`numcheck faults`: which law catches which broken kernel, declared or made from source, and what survives."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

from numcheck.commands import common
from numcheck.errors import InvalidSpec

if TYPE_CHECKING:
    from numcheck.capability import Device
    from numcheck.report.faults import Faults, Line, Mark
    from numcheck.score import Scorer
    from numcheck.spec import KernelSpec
    from numcheck.suspect import Suspect

Row = dict[str, Any]
# What a shell expects of a command that Ctrl-C has ended.
INTERRUPTED = 130
NAMELESS = (
    "no fault has that in its kernel's name or its id; `numcheck list` names the kernels, `numcheck faults --list` "
    "their faults"
)


def main(options: argparse.Namespace) -> int:
    """Score and print; 1 where a declared fault survives, a reason is refuted, or too few mutants of a kernel die."""
    if options.serve:
        return _serve(options)
    from numcheck.commands import child

    rows: list[Row] = []
    try:
        with child.ended():
            return _main(options, rows)
    except KeyboardInterrupt:
        # The workers have ended by now.
        print(f"\nnumcheck faults: interrupted, with {len(rows)} scored", file=sys.stderr)
        return INTERRUPTED


def _main(options: argparse.Namespace, found: list[Row]) -> int:
    common.writable(options)
    device = common.prepare(options)
    every = common.specs(options)
    suspects, notes = _suspects(options, every, device)
    # Of a name that nothing has, an empty list would be no answer.
    if not suspects and (options.keyword or not options.list):
        raise InvalidSpec(f"there is nothing to score: {'; '.join(notes) or NAMELESS}")
    if options.list:
        return _listed(suspects, options.json)
    with (
        closing(_rows(options, suspects, device)) as scored,
        common.progress(_told(scored, len(suspects)), len(suspects), "faults") as rows,
    ):
        _keep(options, rows, device, found)
    from numcheck.report.faults import board

    shown = board(found)
    if options.json:
        common.print_json({"held": shown.held, **_figures(shown), "notes": list(notes), "faults": found})
    else:
        print("\n".join(_text(shown, notes)))
    return 0 if shown.held else 1


def _suspects(
    options: argparse.Namespace, every: Sequence[KernelSpec], device: Device
) -> tuple[tuple[Suspect, ...], tuple[str, ...]]:
    from numcheck.load import all_faults
    from numcheck.suspect import suspects

    faults = () if options.only == "mutants" else all_faults(options.specs or common.DEFAULT_SPECS)
    return suspects(every, faults, mutants=options.only != "declared", device=device, keyword=options.keyword or "")


def _scorer(options: argparse.Namespace, every: Sequence[KernelSpec], device: Device) -> Scorer:
    import torch

    from numcheck.profile import profile
    from numcheck.score import Scorer
    from numcheck.trials import LARGEST

    # Interpreted kernels gain nothing from threads, and workers would take them from each other.
    torch.set_num_threads(1)
    effort = profile(options.profile).on(device)
    return Scorer(effort, options.all_laws, options.largest or LARGEST, known=lambda spec: every)


def _rows(options: argparse.Namespace, suspects: Sequence[Suspect], device: Device) -> Generator[Row, None, None]:
    from numcheck.crew import score_apart

    workers = options.workers or (1 if device == "cuda" else os.cpu_count() or 1)
    # A single one too: a fault may end its process, never end, or leave a device in error.
    return score_apart(suspects, _command(options, device), workers)


def _told(rows: Iterable[Row], total: int) -> Iterator[Row]:
    """The rows, each with a line on standard error as it comes, where no terminal shows a progress bar."""
    for number, row in enumerate(rows, 1):
        if not sys.stderr.isatty():
            fared = f"{row['status']} {row['law']}".strip()
            print(f"{number}/{total}  {fared}  {row['spec']}  {row['fault']}", file=sys.stderr, flush=True)
        yield row


def _command(options: argparse.Namespace, device: Device) -> list[str]:
    line = [sys.executable, "-m", "numcheck", "faults", "--serve", "--device", device, "--profile", options.profile]
    for source in options.specs or ():
        line += ["--specs", source]
    for name, value in (("-k", options.keyword), ("--largest", options.largest)):
        line += [name, str(value)] if value else []
    line += [f"--{options.only}"] if options.only else []
    return [*line, *(["--all-laws"] if options.all_laws else [])]


def _serve(options: argparse.Namespace) -> int:
    from numcheck.commands import child
    from numcheck.crew import serve

    child.end_with_parent()
    # Kernels may print; only this end of the pipe may be read as an answer.
    told = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    device = common.prepare(options)
    every = common.specs(options)
    suspects, _ = _suspects(options, every, device)
    try:
        serve(suspects, _scorer(options, every, device), sys.stdin, told, lambda: _alive(device))
    except BaseException:
        traceback.print_exc()
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    """End this process as it is: Python would wait for the threads that a kernel may have started and never ended."""
    sys.stderr.flush()
    os._exit(code)


def _alive(device: Device) -> bool:
    if device == "cpu":
        return True
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def _keep(options: argparse.Namespace, rows: Iterable[Row], device: Device, found: list[Row]) -> None:
    """Add the rows to `found`, and to the records, as they come; make a report at the end, if asked for."""
    if not options.records and not options.report:
        found.extend(rows)
        return
    from pathlib import Path

    from numcheck.environment import environment
    from numcheck.record import Writer, new_run, read

    path = Path(options.records or Path(options.report).with_suffix(".jsonl"))
    run = new_run()
    with Writer(path, run, profile=options.profile, device=device, command="faults") as writer:
        writer.environment(environment(device, variables=dict(os.environ)))
        for row in rows:
            writer.fault(row)
            found.append(row)
    if options.report:
        from numcheck.report import save

        save(Path(options.report), read(path).of_runs(run))


def _listed(suspects: Sequence[Suspect], as_json: bool) -> int:
    rows = [suspect.describe() for suspect in suspects]
    if as_json:
        common.print_json(rows)
        return 0
    for row in rows:
        if row["made"] == "declared":
            print(f"{row['fault']}  {row['expected']}: {row['doc']}")
        else:
            print(f"{row['spec']}  {row['fault']}  line {row['line']}: {row['before']} -> {row['after']}")
    return 0


def _figures(shown: Faults) -> Mapping[str, Any]:
    def figures(line: Line) -> dict[str, Any]:
        return {
            "faults": line.judged,
            "killed": line.dead,
            "raised": line.raised,
            "explained": line.statuses["EQUIVALENT"],
            "survivors": line.alive,
            "hung": line.hung,
            "judged_elsewhere": line.elsewhere,
            "allclose": {"caught": line.caught, "of": line.compared},
            "by_law": dict(line.killed),
            "seconds": round(line.seconds, 1),
            "seconds_each": round(line.each, 2),
        }

    return {
        "declared": figures(shown.faults),
        "mutants": figures(shown.mutants),
        "kernels": {line.name: figures(line) for line in shown.specs},
        "operators": {line.name: figures(line) for line in shown.operators},
        "laws_that_caught_nothing": shown.idle,
    }


def _text(shown: Faults, notes: Sequence[str]) -> Iterator[str]:
    yield from notes
    if shown.declared:
        yield from _declared(shown)
    if shown.operators:
        yield ""
        yield from _matrix("mutants by operator", shown.operators, shown.laws)
        yield ""
        yield from _scores(shown)
    for title, marks in (
        ("survivors", shown.survivors),
        ("survivors whose written reason says what finding them would take", shown.reasoned),
        ("refuted reasons", shown.refuted),
        ("hung where the honest kernel ended, so that no law has judged them", shown.hung),
    ):
        if marks:
            yield ""
            yield f"{title}:"
            yield from (line for mark in marks for line in _mark(mark))
    if shown.idle:
        yield ""
        yield shown.idleness
    yield ""
    yield "; ".join(shown.sentences)


def _declared(shown: Faults) -> Iterator[str]:
    width = max(len(line.name) for line in shown.declared)
    yield f"{'declared fault':<{width}}  {'caught by':<12}  {'allclose':<8}  {'s':>5}  Case"
    for line in shown.declared:
        law = next(iter(line.killed), "") if line.dead else line.statuses.most_common(1)[0][0]
        usual = "" if not line.compared else "catches" if line.caught else "passes"
        where = line.case if line.dead else line.why
        yield f"{line.name:<{width}}  {law:<12}  {usual:<8}  {line.seconds:5.1f}  {where}"


def _matrix(title: str, lines: Sequence[Line], laws: Sequence[str]) -> Iterator[str]:
    width = max(len(title), *(len(line.name) for line in lines))
    heads = [*laws, "explained", "survived", "allclose"]
    yield f"{title:<{width}}  {'all':>4}  " + "  ".join(heads)
    for line in lines:
        counts = [*(line.killed[law] for law in laws), line.statuses["EQUIVALENT"], line.alive, line.usual or 0]
        cells = (f"{count or '.':>{len(head)}}" for head, count in zip(heads, counts, strict=True))
        yield f"{line.name:<{width}}  {line.judged:>4}  " + "  ".join(cells)


def _scores(shown: Faults) -> Iterator[str]:
    width = max(len("kernel"), *(len(line.name) for line in shown.specs))
    yield f"{'kernel':<{width}}  mutants  killed  share  raised  explained  survived  elsewhere    allclose     s  each"
    for line in shown.specs:
        explained = line.statuses["EQUIVALENT"]
        counts = f"{line.raised:>6}  {explained:>9}  {line.alive:>8}  {line.elsewhere:>9}  {line.usual:>10}"
        time = f"{line.seconds:>4.0f}  {line.each:>4.2f}"
        yield f"{line.name:<{width}}  {line.judged:>7}  {line.dead:>6}  {line.share:>5}  {counts}  {time}"


def _mark(mark: Mark) -> Iterator[str]:
    yield f"  {mark.id}  {mark.spec}  {mark.where}"
    yield f"    - {mark.before}"
    yield f"    + {mark.after}"
    yield f"    {mark.why}{f' ({mark.tried})' if mark.tried else ''}"
    if mark.reason:
        yield f"    {' '.join(mark.reason.split())}"
