"""`numcheck run --at REV`: the same judge on the kernels of another revision; what fails there must hold here."""

from __future__ import annotations

import argparse
import copy
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import numcheck
from numcheck.baseline import of
from numcheck.commands.checkout import checkout, folder
from numcheck.commands.child import ended, run
from numcheck.commands.run import variables
from numcheck.compare import compare
from numcheck.compare.text import as_text
from numcheck.errors import InvalidSpec
from numcheck.profile import REPEATING
from numcheck.record import read
from numcheck.target import spare_others

Command = Callable[[argparse.Namespace], list[str]]


def judged_at(options: argparse.Namespace, command: Command) -> int:
    """Judge both, print what the change did, and report both; 0 where it repairs something (`Comparison.held`).

    The base's kernels come from a checkout of the revision; the judge is this one, so that both are held to one law.
    """
    if options.baseline:
        raise InvalidSpec("--at already says what to compare with; leave --baseline out")
    with ended(), folder() as temporary:
        records = Path(options.records) if options.records else temporary / "head.jsonl"
        base_records = records.with_name(f"{records.stem}.at-{options.at.replace(os.sep, '-')}.jsonl")
        _absent(records, base_records)
        if options.report:
            spare_others(options.report, "report")
        judge = _judge_alone(temporary / "judge")
        options.seed = _seed(options.profile)
        with checkout(options.at, temporary) as base:
            print(f"judging at {options.at}; replay lines of this part fail in a checkout of it alone", flush=True)
            code = _judge(options, command, base_records, base, judge)
        # Said now: the other run may take an hour, and would be of no use.
        if code not in (0, 1) or not _judged(base_records):
            print(f"nothing could be judged at {options.at}: see above, or name a revision that has these kernels")
            return 2
        print("judging here", flush=True)
        code = _judge(options, command, records, Path.cwd(), judge)
        if code not in (0, 1) or not _judged(records):
            print("nothing could be judged here: see above")
            return 2
        head = read(records)
        found = compare(of(read(base_records)), of(head), options.at)
        if options.report:
            from numcheck.report import save

            save(Path(options.report), head, found)
            print(f"report: {options.report}")
        print(as_text(found))
        if code and found.held:
            print("pytest failed here although no claim did: see above, nothing is shown to be fixed until it passes")
        return code or (0 if found.held else 1)


def _seed(profile: str) -> int | None:
    """The seed of both runs, so that a drawn Case that fails there is judged here; None where it is fixed anyway."""
    return None if profile in REPEATING else secrets.randbits(32)


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
    return run([python, "-P", *rest], cwd=cwd, env={**variables(options), "PYTHONPATH": found})


def _judge_alone(folder: Path) -> Path:
    """A folder with this numcheck and nothing else, so that what lies beside either is not in the way."""
    folder.mkdir()
    (folder / "numcheck").symlink_to(Path(numcheck.__file__).resolve().parent, target_is_directory=True)
    return folder
