"""Where the verdicts come from: certificates, policy fingerprints, environments, time, and trouble in the records."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from numcheck.finding import Finding
from numcheck.record import Records, replay_line
from numcheck.report.text import DASH, figure, number, short
from numcheck.selection import Judged, Kernel, Place, Selection


@dataclass(frozen=True)
class Certificate:
    """How well an oracle agrees with its mpmath twin."""

    oracle: str
    status: str
    worst: str
    limit: str
    vjp: str
    cases: int
    outputs: list[tuple[str, str]]


def certificates(records: Records) -> list[Certificate]:
    """The last certificate of each oracle."""
    last = {row["oracle"]: row for row in records.of("certificate")}
    return [
        Certificate(
            name,
            row["status"],
            figure(number(row.get("worst", "nan"))),
            figure(number(row.get("limit", "nan"))),
            row.get("vjp", ""),
            row.get("cases", 0),
            [(o, figure(number(v))) for o, v in row.get("by_output", {}).items()],
        )
        for name, row in last.items()
    ]


@dataclass(frozen=True)
class Fingerprint:
    """Which rounding policy explains a kernel's residual, jointly over its outputs."""

    kernel: Kernel
    place: Place
    best: str
    tied: str
    second: str
    gap: str
    explained: bool
    cases: int
    joint: list[tuple[str, str]]


def fingerprints(chosen: Selection) -> list[Fingerprint]:
    """One a kernel and device: the pooled one where there is one, else the one that most Cases name."""
    pooled = {(j.kernel, j.place): f for j in chosen.pooled if (f := _fingerprint(j))}
    single: dict[tuple[Kernel, Place], list[Mapping[str, Any]]] = defaultdict(list)
    for judged in chosen.cases:
        if found := _fingerprint(judged):
            single[judged.kernel, judged.place].append(found)
    views = []
    for key in dict.fromkeys([*pooled, *single]):
        if key in pooled:
            views.append(_view(key, pooled[key], int(number(pooled[key].get("cases", 0)) or 0)))
            continue
        named = Counter(str(f["best"]) for f in single[key]).most_common(1)[0][0]
        views.append(_view(key, next(f for f in single[key] if str(f["best"]) == named), len(single[key])))
    return views


def _fingerprint(judged: Judged) -> Mapping[str, Any] | None:
    found = judged.row["figures"].get("fingerprint")
    return found if isinstance(found, dict) and found.get("best") else None


def _view(key: tuple[Kernel, Place], found: Mapping[str, Any], cases: int) -> Fingerprint:
    joint = found.get("joint")
    ranked = sorted(joint.items(), key=lambda item: number(item[1])) if isinstance(joint, dict) else []
    tied = found.get("tied")
    return Fingerprint(
        *key,
        str(found["best"]),
        ", ".join(map(str, tied)) if isinstance(tied, list) else "",
        str(found.get("second", "")),
        figure(number(found.get("gap", "nan"))),
        bool(found.get("explained")),
        cases,
        [(str(name), figure(number(value))) for name, value in ranked],
    )


@dataclass(frozen=True)
class EnvironmentRow:
    """One fact of the environments, side by side."""

    name: str
    values: list[str]

    @property
    def differs(self) -> bool:
        """Whether the environments disagree on it."""
        return len(set(self.values)) > 1


def environments(chosen: Selection) -> tuple[list[str], list[EnvironmentRow]]:
    """The ids, and one row a fact; nested facts are named with dots."""
    flat = {key: dict(_flat("", facts)) for key, facts in chosen.environments.items()}
    names = dict.fromkeys(name for facts in flat.values() for name in facts if name != "id")
    return list(flat), [EnvironmentRow(n, [facts.get(n, DASH) for facts in flat.values()]) for n in names]


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    elif isinstance(value, list):
        yield prefix, ", ".join(map(str, value)) or "none"
    elif isinstance(value, bool):
        yield prefix, "yes" if value else "no"
    elif prefix.endswith("_bytes") and isinstance(value, int):
        yield prefix, f"{value / 2**30:.1f} GiB"
    else:
        yield prefix, str(value)


def seconds(chosen: Selection) -> list[tuple[str, float]]:
    """Seconds by stage over all verdicts that count, the longest first."""
    total: Counter[str] = Counter()
    for judged in (*chosen.cases, *chosen.shrunk):
        for stage, spent in judged.row.get("seconds", {}).items():
            total[stage] += number(spent)  # type: ignore[assignment]
    return total.most_common()  # type: ignore[return-value]


@dataclass(frozen=True)
class Trouble:
    """One thing wrong with the records, or that only all of them together tell."""

    what: str
    text: str
    case: str = ""
    replay: str = ""


NAMES = {"unfinished": "unfinished Case", "no_end": "unfinished worker", "bits_differ": "bits differ"}


def troubles(records: Records, findings: tuple[Finding, ...], chosen: Selection) -> list[Trouble]:
    """Findings first, then lines that could not be read, then verdicts that no longer count."""
    found = []
    for f in findings:
        replay = replay_line(f.specs, f.spec, f.law, f.case) if f.case else ""
        about = f"{f.spec} under {f.law}: " if f.spec else ""
        found.append(Trouble(NAMES[f.kind], about + f.text, short(f.case) if f.case else "", replay))
    found += [Trouble("unreadable line", str(problem)) for problem in records.problems]
    if chosen.superseded:
        told = ", ".join(f"{n} {status}" for status, n in sorted(chosen.superseded.items()))
        found.append(Trouble("superseded", f"verdicts of earlier code, not counted here: {told}"))
    return found
