"""Gather: the Baseline that a run's records make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from numcheck.baseline.draws import traits
from numcheck.baseline.known import Baseline, Certified, Figure, GateKey, Known, Seen, Subject
from numcheck.case import Case
from numcheck.cycles import left_alone
from numcheck.finding import Finding, findings
from numcheck.profile import STOPPED
from numcheck.record import Records
from numcheck.selection import Judged, Kernel, Place, Selection, select
from numcheck.verdict import ONE_ORDER, ORDER, Status, together, worst

# What a row says of a test that failed: a verdict, a fault that no law caught, a certificate.
FAILED = {*(status.name for status in Status if not status.held), "SURVIVED", "REFUTED", "HUNG"}
BROKEN = tuple(status.name for status in Status if not status.held)
# Longest reason kept of a failure: an error quotes what it was given, which may be of any length.
LONGEST = 400


@left_alone()
def of(records: Records, chosen: Selection | None = None, found: Sequence[Finding] | None = None) -> Baseline:
    """What `records` say, by the rows that count; chosen, found: those rows and the findings, where known already."""
    chosen = chosen or select(records)
    gathered: defaultdict[tuple[Kernel, Place], _Gathering] = defaultdict(_Gathering)

    for judged in chosen.cases:
        gathered[judged.kernel, judged.place].case(judged, chosen.environments)
    for judged in chosen.pooled:
        gathered[judged.kernel, judged.place].pool(judged)
    for kernel, law, place, row in chosen.outcomes:
        gathered[kernel, place].end(law, row)
    for kernel, law, place, row in chosen.unavailable:
        gathered[kernel, place].skipped[law] = row["reason"]
    for row in records.of("declared"):
        for (kernel, _), gathering in gathered.items():
            if kernel == Kernel(row["specs"], row["spec"]):
                gathering.declare(row)
    known = [gathering.known(Subject(*key)) for key, gathering in gathered.items()]
    found = findings(records) if found is None else found
    unfinished = [_told(f) for f in found if f.open]
    unfinished += [str(problem) for problem in records.problems]
    return Baseline(
        {k.subject.key: k for k in known},
        chosen.last,
        _commit(chosen.environments.values()),
        unfinished=tuple(unfinished),
        torn=tuple(_told(f) for f in found if f.kind == "bits_differ"),
        profiles=_profiles(chosen),
        remarks=tuple(_remarks(records)),
        certificates={row["oracle"]: _certified(row) for row in records.of("certificate")},
    )


def _remarks(records: Records) -> Iterator[str]:
    """Runs that pytest says failed, though no row of theirs does."""
    failed = {row["run"] for row in records.rows if row.get("status") in FAILED}
    for row in records.of("end"):
        if row["facts"].get("exit") == 1 and row["run"] not in failed:
            yield (
                f"run {row['run']} ended with exit code 1, though no row of it fails: a test failed that leaves none, "
                "or the row is gone"
            )


def _profiles(chosen: Selection) -> tuple[str, ...]:
    """Of the runs whose verdicts count: to time or to certify something takes none."""
    judged = {j.row["run"] for j in chosen.cases}
    runs = (row for row in chosen.runs if row["run"] in judged)
    return tuple(dict.fromkeys(str(row.get("facts", {}).get("profile", "")) for row in runs))


def _certified(row: Mapping[str, Any]) -> Certified:
    limit = float(row.get("limit", "nan"))
    return Certified(row["status"], row.get("vjp", ""), limit, row.get("cases", 0), tuple(row.get("by_output", {})))


def _told(finding: Finding) -> str:
    return f"{finding.spec} under {finding.law}: {finding.text}" if finding.spec else finding.text


class _Gathering:
    """A `Known` under construction."""

    def __init__(self) -> None:
        self.cases: dict[str, dict[str, Any]] = {}
        self.pooled: dict[GateKey, Figure] = {}
        self.statuses: defaultdict[str, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.declared: dict[str, str] = {}
        self.oracle = ""
        self.drawn: dict[str, dict[str, dict[str, int]]] = {}
        self.stopped: dict[str, None] = {}
        self.skipped: dict[str, str] = {}
        self.machine: dict[str, str] = {}
        self.runs: set[str] = set()
        self.ran: set[tuple[str, str]] = set()

    def declare(self, row: Mapping[str, Any]) -> None:
        """The Contract of the runs whose verdicts count; of several the last, whole, since lines may have gone."""
        if row["run"] in self.runs or not self.runs:
            self.declared = {str(k): str(v) for k, v in row["contract"].items()}
            self.oracle = row.get("oracle", "")

    def case(self, judged: Judged, environments: Mapping[str, Mapping[str, Any]]) -> None:
        row, law = judged.row, judged.law
        self.runs.add(row["run"])
        case = Case.from_json(row["case"])
        key = case.key
        # Not setdefault here and below, which makes a new one for each of ten thousand rows.
        seen = self.cases.get(key) or self.cases.setdefault(key, _blank(case, row["phase"]))
        seen["status"][law] = _worse(seen["status"].get(law), judged.status)
        outputs = seen["outputs"].setdefault(law, {})
        for name, verdict in row["outputs"].items():
            outputs[name] = _worse(outputs.get(name), verdict["status"])
            if verdict["status"] in BROKEN:
                seen["why"].setdefault(law, {})[name] = _why(verdict)
        seen["hashes"].setdefault(law, {}).update(row.get("hashes", {}))
        _nearest(seen["gates"], law, row.get("gates", []))
        if row["rungs"]:
            seen["rungs"][law] = _climbed(row["rungs"])
        if ORDER in row["claim"]:
            seen["order"] = row["claim"].rpartition(ORDER)[2]
        if row["phase"] == "draw":
            self._count(law, case)
        if "kernel" in row.get("seconds", {}):
            seen["seconds"][law] = float(row["seconds"]["kernel"])
        figures = row.get("figures", {})
        if law == "memory" and "measured" in figures:
            seen["measured_bytes"], seen["formula_bytes"] = int(figures["measured"]), int(figures["formula"])
        self._status(law, row["outputs"])
        ran = row["environment"], row["evidence"]["backend"]
        if ran not in self.ran:
            self.ran.add(ran)
            self.machine |= machine(environments.get(ran[0], {}), "" if ran[1] == "torch" else ran[1])

    def pool(self, judged: Judged) -> None:
        _nearest(self.pooled, judged.law, judged.row.get("gates", []))
        outputs = judged.row["outputs"].items()
        self._status(judged.law, {name: v for name, v in outputs if v["status"] in BROKEN})

    def end(self, law: str, row: Mapping[str, Any]) -> None:
        """How the test ended, where that is no verdict's to say: no Case was judged, or the law itself broke."""
        if any(note.startswith(STOPPED) for note in row.get("notes", ())):
            self.stopped[law] = None
        if row["status"] in BROKEN:
            self._status(law, {"*": row})

    def known(self, subject: Subject) -> Known:
        laws = {
            law: together({Status[status] for status in found} for found in outputs.values()).name
            for law, outputs in self.statuses.items()
        }
        cases = {key: Seen(**seen) for key, seen in sorted(self.cases.items())}
        return Known(
            subject,
            laws,
            self.pooled,
            self.declared,
            self.skipped,
            cases,
            self.machine,
            self.oracle,
            self.drawn,
            tuple(self.stopped),
        )

    def _count(self, law: str, case: Case) -> None:
        """A Case that was drawn twice counts twice: what matters is how often the draws come to a value."""
        by = self.drawn.setdefault(law, {})
        for what, value in traits(case):
            values = by.setdefault(what, {})
            values[value] = values.get(value, 0) + 1

    def _status(self, law: str, outputs: Mapping[str, Any]) -> None:
        known = self.statuses[law]
        for name, verdict in outputs.items():
            known[name].add(verdict["status"])


def _worse(one: str | None, other: str) -> str:
    """Of a Case that was judged twice, the more severe status."""
    return other if one is None else worst((Status[one], Status[other])).name


def _blank(case: Case, phase: str) -> dict[str, Any]:
    by_law: dict[str, Any] = {
        "status": {},
        "outputs": {},
        "hashes": {},
        "gates": {},
        "seconds": {},
        "rungs": {},
        "why": {},
    }
    return {"case": case, "phase": phase, **by_law}


def _why(verdict: Mapping[str, Any]) -> str:
    said = "; ".join(filter(None, (verdict.get("why", ""), verdict.get("where", ""))))
    return said if len(said) <= LONGEST else said[:LONGEST] + "..."


def _climbed(rungs: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Rung -> its runs: 0 where there was nothing to vary, left out where it could not be climbed."""
    return {r["name"]: r["runs"] for r in rungs if r["runs"] or r.get("note") == ONE_ORDER}


def _nearest(into: dict[GateKey, Figure], law: str, gates: Iterable[Mapping[str, Any]]) -> None:
    """Keep of each kind of Gate the one nearest to its limit, of those that could have failed, if any could."""
    for row in gates:
        key = law, str(row["output"]), str(row["kind"])
        figure = Figure(
            float(row["value"]),
            float(row["limit"]),
            float(row["lower"]),
            float(row["spread"]),
            bool(row.get("vacuous")),
        )
        old = into.get(key)
        nearer = old is None or figure.headroom < old.headroom
        if old is None or (nearer if figure.vacuous == old.vacuous else old.vacuous):
            into[key] = figure


def machine(environment: Mapping[str, Any], backend: str) -> dict[str, str]:
    """What bits depend on besides the code: device, versions, for a CPU its model, for a GPU what compiles for it.

    backend in its own key.
    """
    device, versions, cpu = (_facts(environment, name) for name in ("device", "versions", "cpu"))
    facts = {
        "device": str(device.get("name", "")),
        "torch": str(versions.get("torch", "")),
        "triton": str(versions.get("triton", "")),
    }
    if device.get("kind") == "cpu":
        facts["cpu"] = str(cpu.get("model", ""))
    else:
        facts |= {name: str(device.get(name, "")) for name in ("driver", "cuda", "cudnn")}
        facts["cudnn-frontend"] = str(versions.get("nvidia-cudnn-frontend", ""))
    return facts | ({"backend": backend} if backend else {})


def _facts(environment: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A group of an environment's facts, of which the schema says nothing."""
    found = environment.get(name)
    return found if isinstance(found, Mapping) else {}


def _commit(environments: Iterable[Mapping[str, Any]]) -> str:
    for facts in environments:
        code = facts.get("code")
        if isinstance(code, Mapping) and code.get("commit"):
            return f"{str(code['commit'])[:12]}{' with uncommitted changes' if code.get('dirty') else ''}"
    return ""
