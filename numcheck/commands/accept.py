"""`numcheck accept`: a run becomes the baseline that later ones are compared with. Needs neither torch nor triton."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from numcheck.baseline import Acceptance, Baseline, Known, joined, load, narrowed, of, parse, text
from numcheck.commands.common import spare
from numcheck.compare import compare
from numcheck.cycles import left_alone
from numcheck.errors import BadRecords
from numcheck.harmless import one_line, visible
from numcheck.profile import REPEATING
from numcheck.record import read, write_whole
from numcheck.target import spare_others
from numcheck.verdict import Status


@left_alone()
def main(options: argparse.Namespace) -> int:
    """Write the baseline with its reason; 1 where the run itself did not hold, which no reason makes right.

    Raises BadRecords for a run that was cut off, or that holds two hashes of one Case, and over a file of another kind.
    """
    reason = " ".join(options.reason.split())
    if not visible(reason):
        raise BadRecords("--reason is empty; say in a sentence why these results are the ones to compare with")
    spare(options.baseline, *options.records)
    spare_others(options.baseline, "baseline")
    records = read([Path(p) for p in options.records])
    head, path = of(records), Path(options.baseline)
    failed = [
        f"{k.subject.name} under {law}: {status}"
        for k in head.kernels.values()
        for law, status in k.laws.items()
        if not Status[status].held
    ]
    failed += [
        f"the oracle {name} FAILED its certificate"
        for name, found in (head.certificates or {}).items()
        if found.status == "FAILED"
    ]
    if failed:
        print("not accepted, since a baseline holds what held:\n  " + "\n  ".join(map(one_line, failed)))
        print(
            "repair the kernel, or state in its Contract what it promises, and run again; --reason excuses no failure"
        )
        return 1
    if head.unfinished or head.torn:
        raise BadRecords(
            f"{', '.join(options.records)}: {'; '.join((*head.torn, *head.unfinished))}; a baseline is one whole run "
            "with one answer for each Case: run again with fresh records, and accept those"
        )
    repeats = all(profile in REPEATING for profile in head.profiles)
    if not any(_kept(k, repeats).cases for k in head.kernels.values()):
        raise BadRecords(
            f"{', '.join(options.records)}: no named Case was judged, so there is nothing to accept; "
            "`numcheck run --records FILE` judges some, and `numcheck render FILE -o page.html` says what kept it"
        )
    base = load(path) if path.is_file() else None
    accepted = _accepted(base, head, reason, repeats)
    write_whole(path, [_readable(text(accepted), ", ".join(options.records))])
    print(f"baseline: {path} ({accepted.accepted[-1].changed})")
    return 0


def _readable(written: str, source: str) -> str:
    """`written`, which the next run has to be able to read: of names and kinds the schema of records says little.

    Raises BadRecords for what it could not.
    """
    try:
        parse(json.loads(written), source)
    except BadRecords as error:
        raise BadRecords(f"{error}; these records hold what no baseline can") from None
    return written


def _accepted(base: Baseline | None, head: Baseline, reason: str, repeats: bool) -> Baseline:
    """The new baseline: what the run judged replaces what the old one said of it, law by law; the rest stays."""
    kernels = {key: _kept(known, repeats) for key, known in head.kernels.items() if known.cases}
    older = base.kernels if base else {}
    kernels = {key: joined(older[key], known) if key in older else known for key, known in kernels.items()}
    changed = "the first" if base is None else _changed(base, head)
    entry = Acceptance(reason, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC", head.commit, changed)
    history = (*(base.accepted if base else ()), entry)
    return Baseline(
        {**older, **kernels},
        head.when,
        head.commit,
        history,
        profiles=tuple(
            dict.fromkeys((*(base.profiles if base and older.keys() - kernels.keys() else ()), *head.profiles))
        ),
        certificates={**((base.certificates or {}) if base else {}), **(head.certificates or {})},
    )


def _kept(known: Known, repeats: bool) -> Known:
    """Without seconds, which belong to one machine on one day; of drawn Cases that come again, bits and verdicts.

    Other drawn Cases go: nothing would ever be compared with them.
    """
    kept = {
        key: replace(seen, seconds={}, gates={} if seen.phase == "draw" else seen.gates)
        for key, seen in known.cases.items()
        if repeats or seen.phase != "draw"
    }
    return replace(known, cases=kept)


def _changed(base: Baseline, head: Baseline) -> str:
    """What of the part that the run judged moved: kernels and laws that it did not ask for stay, and are no loss."""
    comparison = compare(narrowed(base, head), head)
    bits, fell = comparison.answers[:2]
    return f"bits changed: {bits.word}; accuracy or coverage fell: {fell.word}"
