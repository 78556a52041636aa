"""Every judged Case by number: what a mark of a picture leads to, and what search and filters look through."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numcheck.compare import Comparison
from numcheck.harmless import clean
from numcheck.record import replay_line
from numcheck.report import dialog
from numcheck.report.gates import kernel_anchor
from numcheck.report.headroom import room_of
from numcheck.report.inputs import SENTENCES, made
from numcheck.report.rebased import STILL, Rebased
from numcheck.report.rebased import rebased as rebase
from numcheck.report.text import BROKEN, GLYPHS, TELLING, anchor, figure, short
from numcheck.selection import Judged, Kernel, Place, Selection, law_order

# Rows of the table as it stands without a script, and as a script shows it: a reader searches, and does not scroll.
ROWS = 60
# Digits of a headroom in the page's data: as many as a reader is shown.
DIGITS = 3
SEVERITY = (*(status for status in TELLING if status != "PASS"), "PASS")


@dataclass(frozen=True)
class Shown:
    """One row of the table."""

    kernel: Kernel
    place: Place
    law: str
    status: str
    phase: str
    case: str
    key: str
    made: str
    room: str
    replay: str
    broken: str
    nearest: str
    against: str

    @property
    def moved(self) -> bool:
        """Whether something is otherwise than at the base."""
        return self.against not in STILL


@dataclass(frozen=True)
class Cases:
    """The table's first rows, how many there are, and the page's data as JSON that no markup can break out of."""

    shown: list[Shown]
    total: int
    compared: bool
    data: str


def cases(chosen: Selection, comparison: Comparison | None = None) -> Cases:
    """Of all Cases that count, failures first, then those nearest to a limit; comparison: each against its base."""
    rebased = rebase(comparison)
    found = [_nearest(judged) for judged in chosen.cases]
    order = sorted(range(len(found)), key=lambda i: (_severity(chosen.cases[i].status), found[i][0]))
    asked = [at for at in order if _asked(chosen.cases[at], rebased)]
    return Cases(
        [_shown(chosen.cases[i], *found[i], rebased) for i in order[:ROWS]],
        len(found),
        bool(rebased),
        _safe({**_data(chosen.cases, found, order, rebased), "why": dialog.told(chosen.cases, asked, comparison)}),
    )


def case_key(kernel: Kernel, place: Place, law: str, line: str) -> str:
    """A Case's place in every page: the same in each rendering."""
    return anchor("case", kernel.specs, kernel.spec, place.name, law, line)


def line(case: Mapping[str, Any]) -> str:
    """A Case on one line of JSON, as a replay line has it."""
    return json.dumps(case, separators=(",", ":"))


def _shown(judged: Judged, room: float, nearest: str, rebased: Rebased) -> Shown:
    case = judged.row["case"]
    return Shown(
        judged.kernel,
        judged.place,
        judged.law,
        judged.status,
        judged.row["phase"],
        short(case),
        case_key(judged.kernel, judged.place, judged.law, line(case)),
        made(case),
        figure(room) if room < math.inf else "",
        replay_line(judged.kernel.specs, judged.kernel.spec, judged.law, case),
        _broken(judged),
        nearest,
        _against(judged, line(case), rebased),
    )


def _nearest(judged: Judged) -> tuple[float, str]:
    """The lowest headroom of a Case's gates that could have failed, and which gate that is: "ceiling of out"."""
    room, nearest = math.inf, ""
    for gate in judged.row["gates"]:
        if not gate.get("vacuous") and (found := room_of(gate)[0]) < room:
            room, nearest = found, f"{gate['kind']} of {gate['output']}"
    return room, nearest


def _broken(judged: Judged) -> str:
    """The outputs that did not hold."""
    if judged.status not in BROKEN:
        return ""
    return ", ".join(name for name, output in judged.row["outputs"].items() if output["status"] in BROKEN)


def _words(judged: Judged) -> str:
    """What else a search finds a Case by: its outputs, and the kinds of its gates."""
    return " ".join(dict.fromkeys([*judged.row["outputs"], *(gate["kind"] for gate in judged.row["gates"])]))


def _against(judged: Judged, text: str, rebased: Rebased) -> str:
    return rebased.get((judged.kernel, judged.place, judged.law, text), "")


def _asked(judged: Judged, rebased: Rebased) -> bool:
    """Whether a reader asks why: it did not pass, or it is otherwise than at the base."""
    if judged.status != "PASS":
        return True
    return bool(rebased) and _against(judged, line(judged.row["case"]), rebased) not in STILL


def _severity(status: str) -> int:
    return SEVERITY.index(status)


def _data(
    judged: Sequence[Judged], found: Sequence[tuple[float, str]], order: Sequence[int], rebased: Rebased
) -> dict[str, Any]:
    """kernels: [specs, spec, place, anchor]; rows, by number: [kernel, law, status, phase, Case, headroom, key,
    gate nearest to its limit, outputs that did not hold, against the base, words to find it by]; texts by number."""
    kernels: dict[tuple[Kernel, Place], int] = {}
    names: dict[str, int] = {}
    lines: dict[str, int] = {}
    shorts: dict[str, str] = {}

    def rows() -> Iterator[list[Any]]:
        for one, (room, nearest) in zip(judged, found, strict=True):
            text = line(one.row["case"])
            if text not in lines:
                shorts[text] = clean(short(one.row["case"]))
            yield [
                kernels.setdefault((one.kernel, one.place), len(kernels)),
                names.setdefault(one.law, len(names)),
                _severity(one.status),
                names.setdefault(one.row["phase"], len(names)),
                lines.setdefault(text, len(lines)),
                float(f"{room:.{DIGITS}g}") if room < math.inf else None,
                case_key(one.kernel, one.place, one.law, text),
                *(
                    names.setdefault(said, len(names))
                    for said in (nearest, _broken(one), _against(one, text, rebased), _words(one))
                ),
            ]

    made_rows = list(rows())
    return {
        "rows": made_rows,
        "order": list(order),
        "cases": list(shorts.items()),
        "names": [clean(name) for name in names],
        "statuses": SEVERITY,
        "glyphs": GLYPHS,
        "kernels": [[*map(clean, (k.specs, k.spec, p.name)), kernel_anchor(k, p)] for k, p in kernels],
        "laws": sorted({clean(one.law) for one in judged}, key=law_order),
        "sentences": SENTENCES,
        "compared": bool(rebased),
        "still": STILL,
        "shown": ROWS,
    }


def _safe(data: Mapping[str, Any]) -> str:
    """ASCII JSON in which no tag, entity or comment can begin."""
    text = json.dumps(data, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
