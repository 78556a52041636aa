"""The first screen: did it hold, and the matrix of kernels and laws."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from numcheck.finding import Finding
from numcheck.report.text import BROKEN, TELLING, count
from numcheck.selection import CPU, Kernel, Place, Selection, law_order


@dataclass
class Cell:
    """One claim: a kernel under a law on a device."""

    kernel: Kernel
    law: str
    place: Place
    counts: Counter[str] = field(default_factory=Counter)
    pooled: str = ""
    ended: str = ""
    reasons: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """What the Cases and the pooled verdict say together."""
        seen = {*self.counts, *(s for s in (self.pooled, self.ended) if s in BROKEN)}
        return next((s for s in TELLING if s in seen), self.pooled or self.ended or "UNAVAILABLE")

    @property
    def cases(self) -> int:
        """How many Cases were judged."""
        return sum(self.counts.values())

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Status and count, the most telling first."""
        return [(s, self.counts[s]) for s in TELLING if self.counts[s]]


@dataclass(frozen=True)
class Line:
    """One row of the matrix: a kernel on a device. words: what a search finds it by beside what it shows."""

    kernel: Kernel
    place: Place
    ran: str
    cells: list[Cell | None]
    words: str = ""


@dataclass(frozen=True)
class Summary:
    """The verdict on everything, in a word (`held`, `failed`, `incomplete`, `nothing`) and in figures."""

    word: str
    headline: str
    sentences: list[str]
    laws: list[str]
    lines: list[Line]
    counts: list[tuple[str, int]]
    claims: list[tuple[str, int]]
    kernels: int
    cases: int
    places: list[str]
    failed: list[Cell]
    several_specs: bool


def cells(chosen: Selection) -> dict[tuple[Kernel, Place, str], Cell]:
    """Every claim that was judged or that could not be."""
    found: dict[tuple[Kernel, Place, str], Cell] = {}

    def cell(kernel: Kernel, place: Place, law: str) -> Cell:
        return found.setdefault((kernel, place, law), Cell(kernel, law, place))

    for judged in chosen.cases:
        cell(judged.kernel, judged.place, judged.law).counts[judged.status] += 1
    for judged in chosen.pooled:
        into = cell(judged.kernel, judged.place, judged.law)
        into.pooled = min((s for s in (into.pooled, judged.status) if s), key=TELLING.index)
    for kernel, law, place, row in chosen.outcomes:
        into = cell(kernel, place, law)
        open_ = not into.cases and into.ended not in BROKEN
        if open_ or (row["status"] in BROKEN and into.status != row["status"]):
            into.ended = row["status"]
            into.reasons.append(row.get("reason", ""))
    laws = sorted({law for _, _, law in found} | {law for _, law, _, _ in chosen.unavailable if law}, key=law_order)
    for kernel, law, place, row in chosen.unavailable:
        for name in [law] if law else laws or [""]:
            into = cell(kernel, place, name)
            # The outcome of a test that could not run has said why.
            into.reasons += [reason for reason in (row["reason"],) if reason not in into.reasons]
    return found


def summarise(chosen: Selection, findings: Iterable[Finding], uncertified: Sequence[str] = ()) -> Summary:
    """The first screen. uncertified: oracles whose certificate FAILED: no verdict that rests on one holds."""
    found = cells(chosen)
    laws = sorted({law for _, _, law in found}, key=law_order)
    failed = [c for c in found.values() if c.status in BROKEN]
    failed.sort(key=lambda c: (TELLING.index(c.status), law_order(c.law), c.kernel, c.place))
    counts = Counter(j.status for j in chosen.cases)
    claims = Counter(c.status for c in found.values())
    differ = sum(f.kind == "bits_differ" for f in findings)
    unfinished = sum(f.open for f in findings)
    word, headline = _word(bool(failed or differ or uncertified), unfinished > 0, counts, claims)
    return Summary(
        word,
        headline,
        [*_sentences(claims, differ, unfinished, len(failed)), *_oracles(uncertified)],
        laws,
        _lines(found, laws, chosen),
        [(s, counts[s]) for s in TELLING if counts[s]],
        [(s, claims[s]) for s in TELLING if claims[s]],
        len({kernel for kernel, _, _ in found}),
        sum(counts.values()),
        sorted({j.backend for j in chosen.cases}),
        failed,
        len({kernel.specs for kernel, _, _ in found}) > 1,
    )


def _word(failed: bool, unfinished: bool, counts: Counter[str], claims: Counter[str]) -> tuple[str, str]:
    if failed:
        return "failed", "Did not hold"
    if unfinished:
        return "incomplete", "Did not finish"
    if not counts and not claims["PASS"]:
        return "nothing", "Nothing was judged"
    if not claims["PASS"] and not claims["ORDER_DEPENDENT"]:
        return "nothing", "Nothing was proven"
    return "held", "Held"


def _sentences(claims: Counter[str], differ: int, unfinished: int, failed: int) -> list[str]:
    total = sum(claims.values())
    held = claims["PASS"] + claims["ORDER_DEPENDENT"]
    said = [f"{held} of {count(total, 'claim')} held" + (f", {failed} did not" if failed else "")]
    if claims["VACUOUS"]:
        said.append(f"{claims['VACUOUS']} proved nothing (VACUOUS)")
    if claims["UNAVAILABLE"]:
        said.append(f"{claims['UNAVAILABLE']} could not run here (UNAVAILABLE)")
    if differ:
        said.append(f"{count(differ, 'Case')} gave other bits in another process")
    if unfinished:
        said.append("the records show work that was started and not finished")
    return said


def _oracles(uncertified: Sequence[str]) -> list[str]:
    return [f"the oracle {name} FAILED its certificate" for name in uncertified]


def _lines(found: dict[tuple[Kernel, Place, str], Cell], laws: list[str], chosen: Selection) -> list[Line]:
    ran: dict[tuple[Kernel, Place], set[str]] = {}
    named: dict[tuple[Kernel, Place], dict[str, None]] = {}
    for judged in chosen.cases:
        ran.setdefault((judged.kernel, judged.place), set()).add(judged.row["evidence"]["backend"])
        inside = named.setdefault((judged.kernel, judged.place), {})
        inside |= dict.fromkeys(judged.row["outputs"]) | dict.fromkeys(gate["kind"] for gate in judged.row["gates"])
    rows = dict.fromkeys((kernel, place) for kernel, place, _ in found)
    order = {kernel: index for index, kernel in enumerate(dict.fromkeys(kernel for kernel, _ in rows))}
    return [
        Line(
            kernel,
            place,
            _ran(ran.get((kernel, place), set()), place),
            [found.get((kernel, place, law)) for law in laws],
            " ".join([*(law for law in laws if (kernel, place, law) in found), *named.get((kernel, place), ())]),
        )
        for kernel, place in sorted(rows, key=lambda row: (order[row[0]], row[1]))
    ]


def _ran(backends: set[str], place: Place) -> str:
    """Where a kernel ran: an error before the first launch names no backend, so the strongest one counts."""
    where = "CPU" if place == CPU else place.name
    if "device" in backends:
        return f"device, {where}"
    if "interpreter" in backends:
        return f"interpreter, {where}"
    return f"torch, {where}" if backends else where
