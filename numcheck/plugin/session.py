"""One pytest session's judging: the device, the records, and the one function that every test goes through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from numcheck.capability import TIERS, Device
from numcheck.case import Case
from numcheck.errors import RAISED, RecordsLost
from numcheck.failure import describe
from numcheck.profile import Profile
from numcheck.record import Writer, replay_line
from numcheck.regressions import beside
from numcheck.spec import Fault, KernelSpec
from numcheck.verdict import Status, Verdict

if TYPE_CHECKING:
    from numcheck.explore import Missing, Outcome
    from numcheck.laws.law import Law
    from numcheck.oracle import Oracle
    from numcheck.score import Scorer
    from numcheck.shrink import Finding

# What a kernel may not decide of its own test. A plain failure may pass: pytest's time limits raise it.
_OUTCOMES = (pytest.skip.Exception, pytest.xfail.Exception)
# Under this name a test's report carries its outcome, also from an xdist worker to the controller.
PROPERTY = "numcheck"


@dataclass
class Session:
    """Judges for one process.

    seed: Hypothesis's own --hypothesis-seed, where that was given. helpers: processes beside this one for the Cases
    of a generated test.
    """

    profile: Profile
    device: Device
    require: str = ""
    writer: Writer | None = None
    seed: int | None = None
    helpers: int = 0
    variables: Mapping[str, str] = field(default_factory=dict)
    item: pytest.Item | None = None
    scorer: Scorer | None = None
    placed: bool = False
    described: set[str] = field(default_factory=set)
    promised: list[KernelSpec] = field(default_factory=list)

    def judge(
        self,
        law: str | Law,
        spec: KernelSpec,
        source: str = "",
        folders: Iterable[Path] = (),
        *,
        loaded: bool = False,
    ) -> None:
        """Judge one spec by one law, from its first Case to the pooled verdict, as the pytest test that is running.

        source: where the spec is loaded from, for replays ("" where it says so itself). folders: where to look for
        regression Cases. loaded: `spec` is as its source has it, so that helpers may load it from there. Fails the test
        where a promise does not hold; skips it where nothing could be judged.
        """
        law = named(law) if isinstance(law, str) else law
        source = source or spec.origin
        spec = spec if spec.origin else spec.but(origin=source)
        try:
            reason = law.applies(spec)
            kept = [r.case for r in beside(folders) if r.concerns(spec, law.name)] if reason is None else []
            helpers = self.helpers if loaded else 0
            outcome = self._explore(law, spec, source, kept, helpers) if reason is None else None
        except RecordsLost as error:
            pytest.fail(f"ERROR: {spec.name} under {law.name} was cut short: {lost(error)}", pytrace=False)
        except _OUTCOMES as error:
            # pytest would take a kernel's word for it, and count a skip or an expected failure.
            said = f"the kernel ended its own test ({type(error).__name__}: {error})"
            self._raised(spec, law.name, source, said)
            pytest.fail(f"ERROR: {spec.name} under {law.name}: {said}", pytrace=False)
        except (*RAISED, pytest.fail.Exception) as error:
            self._raised(spec, law.name, source, f"{type(error).__name__}: {error}")
            raise
        if outcome is None:
            pytest.skip(f"{law.name} says nothing of {spec.name}: {reason}")
        self._carry(_row(outcome))
        if outcome.status == Status.UNAVAILABLE:
            self._unavailable(outcome, source)
        elif not outcome.status.held or self._demanded(outcome.missing):
            pytest.fail(self.failure(outcome, source), pytrace=False)
        elif outcome.status == Status.VACUOUS:
            pytest.skip(f"VACUOUS: {outcome.reason}")

    def caught(self, fault: Fault) -> None:
        """Fail the running test where the law that `fault` names does not catch it: a SURVIVOR."""
        from numcheck.plugin.scoring import caught

        named(fault.law)
        caught(self, fault)

    def killed(self, spec: KernelSpec, function: str = "") -> None:
        """Fail the running test where a source mutant of `spec` survives; of one function alone, where it is named."""
        from numcheck.plugin.scoring import killed

        killed(self, spec, function)

    def certify(self, oracle: Oracle) -> None:
        """Fail the running test where an oracle differs from its mpmath twin; skip it where it has none."""
        from numcheck.certify import certify

        found = certify(oracle)
        if found.status == "FAILED":
            figures = ", ".join(f"{name} {worst:.3g}" for name, worst in found.by_output.items())
            pytest.fail(f"{oracle.name} differs from its mpmath twin beyond {found.limit:g}: {figures}", pytrace=False)
        if found.status != "CERTIFIED":
            pytest.skip(f"{found.status}: {oracle.name} has no mpmath twin to be compared with")

    def failure(self, outcome: Outcome, source: str) -> str:
        """The text of a failed test."""
        parts = [self._finding(outcome, found, source) for found in outcome.findings]
        if not parts and outcome.pooled is not None and not outcome.pooled.held:
            parts.append(f"over all {outcome.judged} Cases together:\n{describe(outcome.pooled)}")
        if outcome.reason and not parts:
            parts.append(f"{outcome.status.name}: {outcome.spec} under {outcome.law}: {outcome.reason}")
        parts += [
            f"UNAVAILABLE, but --numcheck-require {self.require}: {m.reason}" for m in self._demanded(outcome.missing)
        ]
        counts = ", ".join(f"{name} {count}" for name, count in outcome.counts.items()) or "none"
        parts.append(f"Cases: {counts}; profile {self.profile.name}, drawn again by --hypothesis-seed {outcome.seed}")
        return "\n".join((*parts, *outcome.notes))

    def _finding(self, outcome: Outcome, found: Finding, source: str) -> str:
        line = replay_line(source, outcome.spec, outcome.law, found.shrunk)
        return describe(found.verdict, shrunk=found.shrunk, first=found.first, replay=line)

    def _explore(self, law: Law, spec: KernelSpec, source: str, regressions: Sequence[Case], helpers: int) -> Outcome:
        from numcheck.explore import explore
        from numcheck.helpers import helped

        profile, writer = self.profile.on(self.device), self.writer
        seconds: dict[Case, Mapping[str, float]] = {}
        ahead = partial(helped, count=helpers, took=seconds.__setitem__)
        if writer is None:
            return explore(law, spec, profile, regressions=regressions, seed=self.seed, ahead=ahead)
        self.describe(writer, spec, source)

        def emit(case: Case, verdict: Verdict, phase: str) -> None:
            writer.case(source, case, verdict, phase, seconds.pop(case, {}))

        def starting(case: Case, phase: str) -> None:
            writer.started(source, spec.name, law.name, case, phase)

        outcome = explore(
            _clocked(law, seconds), spec, profile, emit, regressions, starting=starting, seed=self.seed, ahead=ahead
        )
        if outcome.pooled is not None:
            writer.pooled(source, outcome.pooled)
        for missing in outcome.missing:
            writer.unavailable(source, spec.name, law.name, missing.reason, missing.needs)
        self._ended(writer, source, outcome)
        return outcome

    def _ended(self, writer: Writer, source: str, outcome: Outcome) -> None:
        """Record how the test ends: where no Case was judged, nothing else says that the claim does not hold."""
        status, reason = outcome.status, outcome.reason
        demanded = self._demanded(outcome.missing)
        if demanded and status.held:
            status, reason = Status.ERROR, f"--numcheck-require {self.require}: {demanded[0].reason}"
        facts = {"reason": reason, "notes": outcome.notes, "seed": outcome.seed, "seconds": outcome.seconds}
        # Which of the rows of shrinking it ended at: they hold every try, some of which failed otherwise.
        found = [
            {"status": f.verdict.status.name, "first": f.first.to_json(), "shrunk": f.shrunk.to_json()}
            for f in outcome.findings
        ]
        writer.outcome(
            source, outcome.spec, outcome.law, status.name, **facts, **({"findings": found} if found else {})
        )

    def _raised(self, spec: KernelSpec, law: str, source: str, reason: str) -> None:
        """Record a test that ends in an exception, as far as records can still be written: it fails either way."""
        if self.writer is None:
            return
        with suppress(OSError):
            self._place(self.writer)
            self.writer.outcome(source, spec.name, law, Status.ERROR.name, reason=reason)

    def describe(self, writer: Writer, spec: KernelSpec, source: str) -> None:
        """Record the Environment, an oracle's certificate and a kernel's promise, each once; torch is loaded by now."""
        from numcheck.certify import certify
        from numcheck.declared import declared
        from numcheck.source import sources

        oracle = spec.oracle
        self._place(writer)
        if oracle.name not in self.described:
            writer.certificate(certify(oracle).to_json())
        if spec not in self.promised:
            told = declared(spec)
            writer.declared(source, spec.name, told, oracle=oracle.name, doc=spec.doc, sources=sources(spec))
            self.promised.append(spec)
        self.described.add(oracle.name)

    def _place(self, writer: Writer) -> None:
        """Record the Environment, once."""
        from numcheck.environment import environment

        if not self.placed:
            writer.environment(environment(self.device, repairs=_repairs(self.device), variables=self.variables))
        self.placed = True

    def _unavailable(self, outcome: Outcome, source: str) -> None:
        if self._demanded(outcome.missing):
            pytest.fail(self.failure(outcome, source), pytrace=False)
        needs = ", ".join(sorted({m.needs for m in outcome.missing if m.needs}))
        pytest.skip(f"UNAVAILABLE: {outcome.reason}{f' (needs {needs})' if needs else ''}")

    def _demanded(self, missing: Iterable[Missing]) -> list[Missing]:
        """What --numcheck-require says must run here: all but what needs a tier above the required one."""
        return [m for m in missing if self.require and not _above(m.needs, self.require)]

    def _carry(self, row: dict[str, Any]) -> None:
        if self.item is not None:
            self.item.user_properties.append((PROPERTY, row))


def lost(error: OSError) -> str:
    """One line on a file that could not be written."""
    return f"{error.filename} cannot be written: {error.strerror or error}"


def named(law: str) -> Law:
    """The law called `law`. Raises pytest.UsageError with the names there are."""
    from numcheck.laws import LAWS

    for known in LAWS:
        if known.name == law:
            return known
    raise pytest.UsageError(f"no law {law!r}; there is {', '.join(known.name for known in LAWS)}")


def _above(needs: str, required: str) -> bool:
    return needs in TIERS and TIERS.index(needs) > TIERS.index(required)


def _clocked(law: Law, seconds: dict[Case, Mapping[str, float]]) -> Law:
    """The law, which leaves behind the seconds that each Case spent by stage."""
    from numcheck.clock import stopwatch

    def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
        with stopwatch() as clock:
            verdict = law.judge(spec, case, profile)
        seconds[case] = {str(stage): spent for stage, spent in clock.seconds.items()}
        return verdict

    return replace(law, judge=judge)


def _repairs(device: Device) -> Sequence[str]:
    import importlib.util

    if device != "cpu" or importlib.util.find_spec("triton") is None:
        return ()
    from numcheck.interpreter.repairs import REPAIRS

    return tuple(REPAIRS)


def _row(outcome: Outcome) -> dict[str, Any]:
    """What the terminal summary needs of an Outcome, JSON-plain."""
    return {
        "spec": outcome.spec,
        "law": outcome.law,
        "status": outcome.status.name,
        "counts": dict(outcome.counts),
        "missing": [[m.reason, m.needs, m.cases] for m in outcome.missing],
        "notes": list(outcome.notes),
        "reason": outcome.reason,
        "seconds": outcome.seconds,
    }
