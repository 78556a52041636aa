"""`numcheck run --at REV`: the same judge on the kernels of another revision; what fails there must hold here."""

from __future__ import annotations

import argparse
import copy
import os
from collections.abc import Callable
from pathlib import Path

import numcheck
from numcheck.baseline import Baseline, Known, of
from numcheck.commands.checkout import checkout, folder
from numcheck.commands.child import ended, run
from numcheck.compare import compare
from numcheck.compare.text import as_text
from numcheck.compare.words import count
from numcheck.errors import InvalidSpec
from numcheck.harmless import one_line
from numcheck.record import read
from numcheck.verdict import Status

Command = Callable[[argparse.Namespace], list[str]]


def judged_at(options: argparse.Namespace, command: Command) -> int:
    """Judge both, print what the change did, and report both; 0 where it fixed something and broke nothing.

    The base's kernels come from a checkout of the revision; the judge is this one, so that both are held to one law.
    """
    if options.baseline:
        raise InvalidSpec("--at already says what to compare with; leave --baseline out")
    with ended(), folder() as temporary:
        records = Path(options.records) if options.records else temporary / "head.jsonl"
        base_records = records.with_name(f"{records.stem}.at-{options.at.replace(os.sep, '-')}.jsonl")
        _absent(records, base_records)
        judge = _judge_alone(temporary / "judge")
        with checkout(options.at, temporary) as base:
            code = _judge(options, command, base_records, base, judge)
        # Said now: the other run may take an hour, and would be of no use.
        if code not in (0, 1) or not _judged(base_records):
            print(f"nothing could be judged at {options.at}: see above, or name a revision that has these kernels")
            return 2
        code = _judge(options, command, records, Path.cwd(), judge)
        if code not in (0, 1) or not _judged(records):
            print("nothing could be judged here: see above")
            return 2
        head, then = read(records), of(read(base_records))
        if options.report:
            from numcheck.report import save

            save(Path(options.report), head, then)
            print(f"report: {options.report}")
        now = of(head)
        print(as_text(compare(then, now)))
        shown = _verdict(options.at, then, now)
        if code and not shown:
            print("pytest failed here although no claim did: see above, nothing is shown to be fixed until it passes")
        return shown or code


def _absent(*paths: Path) -> None:
    """Both runs must be these alone: verdicts of an earlier one would count where this one has none."""
    for path in paths:
        if path.exists():
            raise InvalidSpec(f"{path} exists; --at needs fresh records, so remove it or name another file")


def _judged(records: Path) -> bool:
    """Whether a run left a verdict of any Case or claim."""
    return records.exists() and any(known.laws or known.skipped for known in of(read(records)).kernels.values())


def _judge(options: argparse.Namespace, command: Command, records: Path, cwd: Path, judge: Path) -> int:
    """Run pytest in `cwd`; `judge` is the first folder that Python looks in."""
    one = copy.copy(options)
    one.records, one.report, one.baseline = str(records.resolve()), "", ""
    python, *rest = command(one)
    found = os.pathsep.join((str(judge), str(cwd), os.environ.get("PYTHONPATH", "")))
    return run([python, "-P", *rest], cwd=cwd, env={**os.environ, "PYTHONPATH": found})


def _judge_alone(folder: Path) -> Path:
    """A folder with this numcheck and nothing else, so that what lies beside either is not in the way."""
    folder.mkdir()
    (folder / "numcheck").symlink_to(Path(numcheck.__file__).resolve().parent, target_is_directory=True)
    return folder


def _verdict(rev: str, then: Baseline, now: Baseline) -> int:
    """What the change did to each claim; 0 where some claim failed at the base and is shown to hold here, none that
    failed there is left unjudged, and none fails here."""
    fixed: list[str] = []
    open_: list[str] = []
    broken: list[str] = []
    for key, law in _claims(then, now):
        name = (now.kernels.get(key) or then.kernels[key]).subject.name
        before, here = _status(then, key, law), _status(now, key, law)
        line = f"{name} under {law}: {before or 'not judged'} at {rev}, {here or 'not judged'} here"
        if here and not Status[here].held:
            broken.append(line)
        elif before and not here:
            open_.append(line)
        elif before and not Status[before].held:
            gone = _unjudged(then.kernels[key], now.kernels[key], law)
            why = f"; {count(gone, 'named Case')} that failed there not judged" if gone else ""
            (fixed if Status[here].shown and not gone else open_).append(line + why)
    said = {"fixed": fixed, "no longer judged": open_, "does not hold": broken}
    print("\n".join(["", *(one_line(f"{word}: {line}") for word, lines in said.items() for line in lines)]))
    for cut in (*now.unfinished, *now.torn):
        print(one_line(f"not whole: {cut}"))
    if not any(said.values()):
        print(f"nothing that was judged failed at {rev}, so this change is not shown to fix anything")
    whole = not (now.unfinished or now.torn)
    return 0 if fixed and whole and not open_ and not broken else 1


def _unjudged(then: Known, now: Known, law: str) -> int:
    """How many named Cases failed under the law then, and are not judged by it now."""
    failed = (s.case.key for s in then.cases.values() if s.phase != "draw" and _failed(s.status.get(law, "")))
    return sum(key not in now.cases or law not in now.cases[key].status for key in failed)


def _failed(status: str) -> bool:
    return bool(status) and not Status[status].held


def _claims(*sides: Baseline) -> dict[tuple[str, str], None]:
    return dict.fromkeys((key, law) for side in sides for key, known in side.kernels.items() for law in known.laws)


def _status(side: Baseline, key: str, law: str) -> str:
    return side.kernels[key].laws.get(law, "") if key in side.kernels else ""
