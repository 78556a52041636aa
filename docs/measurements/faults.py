"""Print faults.txt from faults.jsonl.gz: how many source mutants of each kernel the laws kill, and what is left.

python docs/measurements/faults.py > docs/measurements/faults.txt

Reasons are read beside the sources as they are now: one that was written after a row was taken explains that row too.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from numcheck.reasons import NAME, Reason, reasons  # noqa: E402
from numcheck.report.text import short  # noqa: E402
from numcheck.selection import law_order  # noqa: E402

Row = Mapping[str, Any]
# How a row counts: see `counted`.
COUNTS = ("elsewhere", "killed", "proven", "open or device", "survived", "put off")
# What the row of a mutant says that stands in a branch of other kernels alone.
UNDER = "judged under "
# Characters of a change that are shown.
LONGEST = 90

HEAD = """\
Declared faults and source mutants of the shipped kernels, in Triton's interpreter on a CPU of 32 cores (Intel
Xeon; Python 3.12, torch 2.11, Triton 3.6). Each row has hashes of its kernel's sources and of the laws,
without comments, and the commit. Rows: faults.jsonl.gz beside this; printed by faults.py.

Balance losses, grouped kernels and mHC post were scored at e7d4e78, sparse MLA at 27c2a59. Between the two
the laws took an infinity for what overflows to it, which can revive a mutant that gave infinity or NaN alone:
those kills were scored again. Two mutants of the grouped kernels have rows of Triton 3.9, for which they are
a mistake (`maximum` of bf16 stays bf16; in 3.6 it is FP32, and no bit differs). The last 78 of sparse MLA were
scored on two cores (torch 2.13, Triton 3.9). The bitwise law has had one more rung since, which can only kill
more.

Declared: numcheck faults --declared --workers 2 on two of the cores, {seconds} seconds; what only a GPU
shows, on an H200 (torch 2.11, Triton 3.6). The usual test beside them: one shape, normal values and
allclose(rtol=1e-2, atol=1e-2).

Mutants: numcheck faults --mutants -k KERNEL, in parts, Cases that killed a mutant before going first.
elsewhere: in a branch that this kernel's Cases never build, and another's do, under which the second table
says how they fare; of all: killed, of the others. proven: a written reason beside the source proves that it
is no mistake; of not proven: killed, of the others. open or device: a reason says what would be needed to
kill it. survived: no Case of the mutants' list kills it, and nobody has said why. put off: not yet put to all
of its Cases. What is open or of a device, survived or was put off counts as not killed in both shares. A
mutant with a reason is put to part of the Cases on every run, as the survivors below say.
"""
# What the declared faults that a CPU can show took, all together.
SECONDS = 79


def main() -> None:
    with gzip.open(HERE / "faults.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    known = reasons(str(path / NAME) for path in sorted((ROOT / "kernels").iterdir()) if path.is_dir())
    known += reasons([str(ROOT / "kernels" / NAME)])
    made = [row for row in rows if row["made"] == "mutant"]
    print(HEAD.format(seconds=SECONDS))
    print("\n".join(table(made, known)))
    print()
    print("\n".join(by_law(made)))
    print()
    print("\n".join(elsewhere(made, known)))
    print()
    print("\n".join(survivors(made, known)))
    print()
    print("\n".join(declared([row for row in rows if row["made"] == "declared"])))


def table(rows: Sequence[Row], known: Sequence[Reason]) -> Iterator[str]:
    """One line a kernel, and the sum."""
    width = max(len(row["spec"]) for row in rows)
    heads = ["mutants", *COUNTS, "of all", "of not proven", "allclose catches"]
    yield f"{'kernel':<{width}}  " + "  ".join(heads)
    for name in [*dict.fromkeys(row["spec"] for row in rows), "all"]:
        own = [row for row in rows if name in (row["spec"], "all")]
        counts = Counter(counted(row, known) for row in own)
        built = len(own) - counts["elsewhere"]
        asked = [row["usual"] for row in own if row.get("usual") is not None]
        killed = counts["killed"]
        shares = [f"{100 * killed / built:.1f}%", f"{100 * killed / max(1, built - counts['proven']):.1f}%"]
        cells = [str(len(own)), *(str(counts[c]) for c in COUNTS), *shares, f"{sum(asked)} of {len(asked)}"]
        yield f"{name:<{width}}  " + "  ".join(f"{c:>{len(h)}}" for c, h in zip(cells, heads, strict=True))


def by_law(rows: Sequence[Row]) -> Iterator[str]:
    """How many mutants of each operator each law caught first, and those that caught none."""
    dead = [row for row in rows if row["status"] == "KILLED"]
    laws = sorted({law for row in rows for law in (*row["tried"], row["law"]) if law}, key=law_order)
    operators = [*sorted({row["operator"] for row in rows}), "all"]
    width = max(map(len, operators))
    yield f"{'caught first by':<{width}}  " + "  ".join(laws)
    for name in operators:
        counts = Counter(row["law"] for row in dead if name in (row["operator"], "all"))
        yield f"{name:<{width}}  " + "  ".join(f"{counts[law] or '.':>{len(law)}}" for law in laws)
    idle = [law for law in laws if not any(row["law"] == law for row in dead)]
    yield f"caught nothing first: {', '.join(idle) or 'none'}"


def counted(row: Row, known: Sequence[Reason]) -> str:
    """Which of COUNTS a row of a mutant is."""
    status = row["status"]
    if status in ("ABSENT", "KILLED"):
        return "elsewhere" if status == "ABSENT" else "killed"
    reason = next((r for r in known if r.concerns(row["fault"], row["spec"])), None)
    if status == "REFUTED":
        # A reason stood against it that a law has contradicted since: struck by now, or still to be struck.
        return "killed" if reason is None else "survived"
    if reason is not None:
        return "proven" if reason.proves else "open or device"
    return "put off" if status == "DEFERRED" else "survived"


def elsewhere(rows: Sequence[Row], known: Sequence[Reason]) -> Iterator[str]:
    """Which kernel judges the mutants that stand in no build of another, and how they fare there.

    Raises LookupError for one that the kernel it names has not judged.
    """
    by_name = {(_source(row), row["fault"], row["spec"]): row for row in rows}
    pairs: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        if counted(row, known) == "elsewhere":
            under = row["why"].rpartition(UNDER)[2]
            there = by_name.get((_source(row), row["fault"], under))
            how = counted(there, known) if there is not None else "nowhere"
            if how in ("elsewhere", "nowhere"):
                raise LookupError(f"{row['fault']} of {row['spec']} is said to be judged under {under}, and is not")
            pairs.setdefault((row["spec"], under), Counter())[how] += 1
    width = max(len(name) for pair in pairs for name in pair)
    yield f"{'in no build of':<{width}}  {'judged under':<{width}}  " + "  ".join(COUNTS[1:])
    for (name, under), counts in sorted(pairs.items()):
        cells = (f"{counts[c]:>{len(c)}}" for c in COUNTS[1:])
        yield f"{name:<{width}}  {under:<{width}}  " + "  ".join(cells)


def survivors(rows: Sequence[Row], known: Sequence[Reason]) -> Iterator[str]:
    """Each mutant that a kernel survives with: its line, the change, how many Cases held under each law, and why."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if counted(row, known) in COUNTS[3:]:
            reason = next((r for r in known if r.concerns(row["fault"], row["spec"])), None)
            why = f"{reason.claim}: {' '.join(reason.why.split())}" if reason is not None else "no reason yet"
            found.setdefault((_source(row), row["fault"], why), []).append(row)
    yield "survivors, with the Cases on which each law held (a reason is put to part of them on every run)"
    for (file, fault, why), own in sorted(found.items(), key=lambda item: (item[0][0], item[1][0]["line"])):
        row = own[0]
        yield f"{file}:{row['line']}  {fault}"
        yield f"    {short_of(row['before'])}  ->  {short_of(row['after'])}"
        for survivor in own:
            tried = ", ".join(f"{law} {count}" for law, count in survivor["tried"].items()) or survivor["why"]
            yield f"    {survivor['spec']}: {tried}"
        yield f"    {why}"


def short_of(source: str) -> str:
    """At most LONGEST characters of a piece of source, on one line."""
    text = " ".join(source.split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _source(row: Row) -> str:
    """The mutated file, wherever the checkout was."""
    return str(row["file"]).rpartition("kernels/")[2]


def declared(rows: Sequence[Row]) -> Iterator[str]:
    """One line a declared fault: the law that caught it, whether the usual test does, and the Case."""
    width = max(len(row["fault"]) for row in rows)
    yield f"{'declared fault':<{width}}  {'caught by':<12}  {'allclose':<8}  {'s':>5}  Case"
    for row in rows:
        usual = "" if row.get("usual") is None else "catches" if row["usual"] else "passes"
        case = short(row["case"]) if row.get("case") else row["why"]
        case += " (on a GPU)" if row.get("device") == "cuda" else ""
        law = row["law"] if row["status"] == "KILLED" else row["status"]
        yield f"{row['fault']:<{width}}  {law:<12}  {usual:<8}  {row['seconds']:5.1f}  {case}"
    dead = sum(row["status"] == "KILLED" for row in rows)
    yield ""
    yield f"{dead} of {len(rows)} declared faults caught by the law that they name"


if __name__ == "__main__":
    main()
