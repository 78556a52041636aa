"""The pytest door: options, marks, generated tests, the `judge` fixture, records, and the summary at the end.

Installed, it does nothing until one of its options is given (in addopts too): a project that merely has numcheck
installed keeps its own device, environment and output. Importing it loads nothing heavy.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from numcheck.baseline import Baseline, narrowed, of, within
from numcheck.baseline import load as load_baseline
from numcheck.compare import compare
from numcheck.compare.text import as_text
from numcheck.errors import NumcheckError
from numcheck.finding import Finding, findings
from numcheck.plugin import door, summary
from numcheck.plugin.settings import MARKS, Settings, add_options, settings
from numcheck.record import Records, Writer, merge, new_run, read, replay_line, worker_path, worker_paths

if TYPE_CHECKING:
    from numcheck.capability import Device
    from numcheck.laws.law import Law
    from numcheck.plugin.session import Session
    from numcheck.spec import Fault, KernelSpec


@dataclass
class State:
    """What one process of a session holds. role: "main", or with pytest-xdist "controller" or "worker"."""

    settings: Settings
    device: Device
    role: str = "main"
    run: str = ""
    alone: bool = False
    session: Session | None = None
    said: list[str] = field(default_factory=list)


STATE = pytest.StashKey[State]()
DEVICE = pytest.StashKey["Device"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Choose device or interpreter before the first conftest can import a kernel."""
    _choose(early_config, early_config.known_args_namespace)


def _choose(config: pytest.Config, options: Any) -> None:
    asked = any(value for name, value in vars(options).items() if name.startswith("numcheck_"))
    if asked and DEVICE not in config.stash:
        config.stash[DEVICE] = door.choose(options.numcheck_device or "auto")


def pytest_configure(config: pytest.Config) -> None:
    for name, doc in MARKS.items():
        config.addinivalue_line("markers", f"{name}: {doc} (numcheck)")
    # A worker of pytest-xdist may load this plugin only now, if it is not installed.
    _choose(config, config.option)
    if DEVICE not in config.stash:
        return
    wanted = settings(config.option, config.invocation_params.dir)
    state = State(wanted, config.stash[DEVICE], **_role(config, wanted))
    config.stash[STATE] = state
    if state.role != "worker":
        _readable(wanted)
    _load(wanted)
    if state.alone:
        config.args[:] = []
    if state.role != "controller":
        state.session = _session(config, state)


def _worker(config: pytest.Config) -> dict[str, Any] | None:
    """What pytest-xdist's controller told this worker; None anywhere else."""
    told: dict[str, Any] | None = getattr(config, "workerinput", None)
    return told


def _role(config: pytest.Config, wanted: Settings) -> dict[str, Any]:
    told = _worker(config)
    if told is not None:
        return {"role": "worker", **told["numcheck"]}
    # With generated tests and neither paths nor testpaths given, nothing else was asked for.
    alone = bool(wanted.specs) and config.args_source == pytest.Config.ArgsSource.INVOCATION_DIR
    role = "controller" if getattr(config.option, "dist", "no") != "no" else "main"
    return {"role": role, "run": new_run(), "alone": alone}


def _load(wanted: Settings) -> None:
    """Load the kernels now, also in the controller, so that a wrong --numcheck-specs is said before anything runs."""
    if not wanted.specs:
        return
    from numcheck.load import load

    try:
        load(wanted.specs)
    except NumcheckError as error:
        raise pytest.UsageError(f"--numcheck-specs: {error}") from None


def _readable(wanted: Settings) -> None:
    """Read the baseline once before anything runs: of a damaged one the user should not hear after an hour."""
    if wanted.baseline is None:
        return
    try:
        load_baseline(wanted.baseline)
    except NumcheckError as error:
        raise pytest.UsageError(f"--numcheck-baseline: {error}") from None


def _session(config: pytest.Config, state: State) -> Session:
    from numcheck.plugin.session import Session

    seed = getattr(config.option, "hypothesis_seed", None)
    return Session(
        state.settings.effort,
        state.device,
        state.settings.require,
        _writer(config, state),
        int(seed) if seed is not None and str(seed).isdigit() else None,
        state.settings.helpers,
        door.variables(),
    )


def _writer(config: pytest.Config, state: State) -> Writer | None:
    path = state.settings.records
    if path is None:
        return None
    told = _worker(config)
    worker = told["workerid"] if told is not None else "main"
    own = worker_path(path, state.run, worker) if told is not None else path
    try:
        return Writer(own, state.run, worker, profile=state.settings.profile, device=state.device)
    except OSError as error:
        raise pytest.UsageError(f"--numcheck-records {own} cannot be written: {error.strerror or error}") from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker which run it belongs to."""
    state = node.config.stash.get(STATE, None)
    if state is not None:
        node.workerinput["numcheck"] = {"run": state.run, "alone": state.alone}


def pytest_report_header(config: pytest.Config) -> list[str]:
    state = config.stash.get(STATE, None)
    return summary.header(state.settings, state.device) if state is not None else []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the generated tests, before -m and -k choose among all."""
    state = config.stash.get(STATE, None)
    if state is None or state.session is None or not state.settings.specs:
        return
    from numcheck.plugin.items import generate

    # Mutants take as long as all else together, so they are made only for who asks for this mark.
    mutants = "faults" in (config.option.markexpr or "")
    items += generate(session, state.settings.specs, state.session, mutants)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember the running test: the `judge` fixture lives as long as the session."""
    state = item.config.stash.get(STATE, None)
    if state is not None and state.session is not None:
        state.session.item = item


class Judge(Protocol):
    """judge(law, spec): judge one kernel by one law, as the test that is running."""

    def __call__(self, law: str | Law, spec: KernelSpec, source: str = "") -> None: ...


Catch = Callable[["Fault"], None]
Kill = Callable[..., None]


@pytest.fixture(scope="session")
def judge(request: pytest.FixtureRequest) -> Judge:
    """Judge a kernel by a law, as the generated tests do: `judge("bitwise", spec, "my_kernels")`.

    The test fails where a promise does not hold and skips where nothing could be judged. The third argument says
    where `spec` can be loaded from, for the replay line. A `regressions.jsonl` beside the test file runs first.
    """
    session = _asked(request.config)

    def judged(law: str | Law, spec: KernelSpec, source: str = "") -> None:
        folders = [session.item.path.parent] if session.item is not None else []
        session.judge(law, spec, source, folders)

    return judged


@pytest.fixture(scope="session")
def catch(request: pytest.FixtureRequest) -> Catch:
    """catch(fault): fail the running test where the law that a declared fault names does not catch it."""
    return _asked(request.config).caught


@pytest.fixture(scope="session")
def kill(request: pytest.FixtureRequest) -> Kill:
    """kill(spec, function=""): fail the running test where a source mutant of a kernel survives without a reason."""
    return _asked(request.config).killed


def _asked(config: pytest.Config) -> Session:
    state = config.stash.get(STATE, None)
    if state is None or state.session is None:
        raise pytest.UsageError(
            "numcheck's fixtures need a device, chosen before any kernel is imported: "
            "add --numcheck-device=auto to the command line, or to addopts in the pytest configuration"
        )
    return state.session


def pytest_report_teststatus(report: pytest.CollectReport | pytest.TestReport) -> tuple[str, str, str] | None:
    return summary.status(report) if isinstance(report, pytest.TestReport) else None


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Close the records; where all workers are done, merge them and write the report."""
    state = session.config.stash.get(STATE, None)
    if state is None:
        return
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        state.said += _unmatched(state.settings, session.config)
    try:
        if state.session is not None and state.session.writer is not None:
            state.session.writer.end(exit=int(exitstatus))
        if state.role != "worker" and not _conclude(state, part=_part(session.config)):
            session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED
    except OSError as error:
        # What was asked for is not there, whatever the tests say.
        state.said.append(f"records problem: {error.filename} cannot be written: {error.strerror or error}")
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def _unmatched(wanted: Settings, config: pytest.Config) -> list[str]:
    """Where the kernels' names are, if -k left none of the generated tests."""
    if not (wanted.specs and config.option.keyword):
        return []
    listed = " ".join(["numcheck list", *(f"--specs {shlex.quote(s)}" for s in wanted.specs)])
    return [f"-k {config.option.keyword!r} matches no test: `{listed}` names the kernels and laws"]


def _part(config: pytest.Config) -> bool:
    """Whether only a part of the tests was asked for."""
    return bool(config.option.keyword or config.option.markexpr)


def _conclude(state: State, part: bool) -> bool:
    """Merge the workers' records, compare, report; False where the comparison did not hold."""
    path = state.settings.records
    if path is None:
        return True
    parts = worker_paths(path, state.run)
    if parts:
        merge(parts, path)
    if not path.exists():
        return True
    records = read(path).of_runs(state.run)
    state.said += [_said(found) for found in findings(records)]
    state.said += [f"records problem: {problem}" for problem in records.problems]
    base = _base(state, records, part)
    target = state.settings.report
    if target is not None:
        from numcheck.report import save

        save(target, records, base)
        state.said.append(f"report: {target}")
    if base is None:
        return True
    comparison = compare(base, of(records))
    state.said += [f"against {state.settings.baseline}:", *as_text(comparison).splitlines()]
    return comparison.held


def _base(state: State, records: Records, part: bool) -> Baseline | None:
    """What to compare with; of a run that asked for a part, by module or by test, the same part."""
    if state.settings.baseline is None:
        return None
    base = load_baseline(state.settings.baseline)
    head = of(records)
    if state.settings.specs:
        # The `judge` fixture may have judged kernels of modules that nobody named.
        base = within(base, {*state.settings.specs, *(known.subject.kernel.specs for known in head.kernels.values())})
    return narrowed(base, head) if part else base


def _said(found: Finding) -> str:
    """A finding as one line; with the line that replays it, where it is about a Case."""
    if found.case is None:
        return f"{found.kind}: {found.text}"
    return f"{found.kind}: {found.text}: {replay_line(found.specs, found.spec, found.law, found.case)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    state = config.stash.get(STATE, None)
    if state is not None:
        summary.write(terminalreporter, state.said)
