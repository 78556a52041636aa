"""`numcheck compare`, `accept` and `run --at`, as a user types them."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from numcheck.baseline import joined, load, of
from numcheck.cli import main
from numcheck.commands.checkout import checkout, folder
from numcheck.commands.child import ended
from numcheck.compare import compare
from numcheck.compare.text import as_text
from numcheck.plugin import State, _base
from numcheck.plugin.settings import Settings
from numcheck.record import Writer, read
from tests.compare.test_compare import CASES, records, torn
from tests.report import scene


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_accept_keeps_every_reason_and_the_next_comparison_shows_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl", cases=CASES[:2])
    assert main(["accept", "a.jsonl", "--reason", "first figures"]) == 0
    assert main(["compare", "numcheck-baseline.json", "b.jsonl"]) == 1
    assert "accepted" in capsys.readouterr().out
    assert main(["accept", "b.jsonl", "--reason", "D 2053 is\n covered elsewhere"]) == 0
    accepted = load(tmp_path / "numcheck-baseline.json").accepted
    assert [a.reason for a in accepted] == ["first figures", "D 2053 is covered elsewhere"]
    assert accepted[1].changed == "bits changed: no; accuracy or coverage fell: yes"
    assert main(["compare", "numcheck-baseline.json", "b.jsonl"]) == 0


def test_accept_refuses_a_run_that_did_not_hold_and_leaves_the_file_alone(tmp_path: Path) -> None:
    scene.write(tmp_path / "failing.jsonl", count=3, failing=True)
    assert main(["accept", "failing.jsonl", "--reason", "it is late"]) == 1
    assert not (tmp_path / "numcheck-baseline.json").exists()


def test_accept_refuses_a_run_with_two_answers_and_one_that_was_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torn(tmp_path / "torn.jsonl")
    assert main(["accept", "torn.jsonl", "--reason", "either will do"]) == 2
    assert "different hashes" in capsys.readouterr().err
    records(tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "killed.jsonl").write_text("".join(lines[:-1]))
    assert main(["accept", "killed.jsonl", "--reason", "nearly done"]) == 2
    said = capsys.readouterr().err
    assert "has no end row" in said
    assert "run again" in said
    assert not (tmp_path / "numcheck-baseline.json").exists()


def test_a_baseline_is_what_it_was_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records(tmp_path / "a.jsonl")
    assert main(["accept", "a.jsonl", "--reason", "first figures"]) == 0
    before = (tmp_path / "numcheck-baseline.json").read_text()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["accept", "a.jsonl", "--reason", "again"]) == 2
    assert (tmp_path / "numcheck-baseline.json").read_text() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "numcheck-baseline.json"]


@pytest.mark.parametrize(
    "line",
    [
        "accept a.jsonl --reason why --baseline /dev/full",
        "merge a.jsonl -o /dev/full",
        "render a.jsonl -o /dev/full",
        "compare a.jsonl a.jsonl -o /dev/full",
    ],
)
def test_a_full_disk_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    records(tmp_path / "a.jsonl")
    assert main(line.split()) == 2
    assert capsys.readouterr().err == f"numcheck {line.split()[0]}: /dev/full: No space left on device\n"


def test_an_output_that_takes_nothing_is_not_held(tmp_path: Path) -> None:
    """What was not printed was not said: neither a full disk nor a reader who left makes it exit code 0."""
    records(tmp_path / "a.jsonl")
    line = [sys.executable, "-m", "numcheck", "compare", "a.jsonl", "a.jsonl"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "numcheck compare: the output: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as left:
        done = subprocess.run(line, stdout=left, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "")


def test_accept_wants_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path / "a.jsonl")
    assert main(["accept", "a.jsonl", "--reason", "  "]) == 2
    assert "say in a sentence why" in capsys.readouterr().err


def test_a_baseline_holds_several_devices_and_accepting_one_keeps_the_other(tmp_path: Path) -> None:
    records(tmp_path / "cpu.jsonl")
    records(tmp_path / "gpu.jsonl", device="cuda")
    assert main(["accept", "cpu.jsonl", "--reason", "CPU"]) == 0
    assert main(["accept", "gpu.jsonl", "--reason", "GPU"]) == 0
    places = {known.subject.place.name for known in load(tmp_path / "numcheck-baseline.json").kernels.values()}
    assert places == {"CPU", "NVIDIA H200"}


def test_accepting_some_laws_keeps_what_the_others_said(tmp_path: Path) -> None:
    whole = records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl", lambda v, case: replace(v, hashes={**v.hashes, "out": "0" * 16}), laws=("bitwise",))
    assert main(["accept", "a.jsonl", "--reason", "first figures"]) == 0
    assert main(["accept", "b.jsonl", "--reason", "another order of the loop"]) == 0
    baseline = load(tmp_path / "numcheck-baseline.json")
    (known,), (before,) = baseline.kernels.values(), whole.kernels.values()
    assert known.laws == before.laws
    for key, seen in known.cases.items():
        assert seen.status == before.cases[key].status
        assert set(seen.gates) == {("accuracy", "out", "ceiling"), ("accuracy", "out", "band")}
        assert (seen.measured_bytes, seen.formula_bytes) == (64, 64)
        assert seen.hashes["bitwise"]["out"] == "0" * 16 != seen.hashes["accuracy"]["out"]
    assert baseline.accepted[-1].changed == "bits changed: yes; accuracy or coverage fell: no"


def test_drawn_cases_that_come_again_keep_their_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path / "quick.jsonl", phase="draw")
    assert main(["accept", "quick.jsonl", "--reason", "they never come again"]) == 2
    assert "no named Case" in capsys.readouterr().err
    records(tmp_path / "a.jsonl", phase="draw", profile="ci")
    assert main(["accept", "a.jsonl", "--reason", "first figures"]) == 0
    (known,) = load(tmp_path / "numcheck-baseline.json").kernels.values()
    assert len(known.cases) == len(CASES)
    assert not any(seen.gates for seen in known.cases.values())
    records(tmp_path / "b.jsonl", lambda v, case: replace(v, hashes={**v.hashes, "out": "0" * 16}), phase="draw")
    assert main(["compare", "numcheck-baseline.json", "b.jsonl"]) == 1
    assert "Did bits change? Yes" in capsys.readouterr().out


def test_bits_of_another_machine_do_not_stay_under_the_name_of_this_one(tmp_path: Path) -> None:
    (then,), (now,) = (
        records(tmp_path / f"{name}.jsonl", laws=laws).kernels.values()
        for name, laws in (("a", ("bitwise", "accuracy")), ("b", ("bitwise",)))
    )
    other = joined(replace(then, machine={**then.machine, "torch": "2.12.0"}), now)
    assert {law for seen in other.cases.values() for law in seen.hashes} == {"bitwise"}
    assert set(other.laws) == {"bitwise", "accuracy"}


def test_pytest_compares_a_module_with_its_own_part_of_a_baseline(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        records(tmp_path / f"{name}.jsonl", specs=f"{name}.py")
        assert main(["accept", f"{name}.jsonl", "--reason", name]) == 0
    settings = Settings(baseline=tmp_path / "numcheck-baseline.json", specs=("mine.py",))
    head = read(tmp_path / "mine.jsonl")
    base = _base(State(settings, "cpu"), head, part=False)
    assert base is not None
    assert compare(base, of(head)).held
    everything = _base(State(replace(settings, specs=()), "cpu"), head, part=False)
    assert everything is not None
    assert "k on CPU is no longer judged" in compare(everything, of(head)).answers[1].sentences


def test_a_side_that_judged_nothing_is_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path / "a.jsonl")
    records(tmp_path / "none.jsonl", cases=())
    (tmp_path / "empty.jsonl").touch()
    for sides in (("a.jsonl", "empty.jsonl"), ("empty.jsonl", "a.jsonl"), ("a.jsonl", "none.jsonl")):
        assert main(["compare", *sides]) == 2
        assert "no Case was judged" in capsys.readouterr().err


def test_compare_as_json_and_as_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path / "a.jsonl")
    records(tmp_path / "b.jsonl")
    assert main(["compare", "a.jsonl", "b.jsonl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["held"] is True
    assert main(["compare", "a.jsonl", "b.jsonl", "-o", "out.md"]) == 0
    assert "Did bits change?" in (tmp_path / "out.md").read_text()


@pytest.mark.parametrize("missing", ["compare none.jsonl none.jsonl", "accept none.jsonl --reason x"])
def test_a_missing_file_is_misuse(missing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(missing.split()) == 2
    assert "none.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "both"),
    [
        ("render a.jsonl -o a.jsonl", ("a.jsonl", "a.jsonl")),
        ("render a.jsonl -o ./link.jsonl", ("link.jsonl", "a.jsonl")),
        ("render a.jsonl --baseline b.json -o b.json", ("b.json", "b.json")),
        ("compare b.json a.jsonl -o b.json", ("b.json", "b.json")),
        ("compare b.json a.jsonl -o sub/../a.jsonl", ("sub/../a.jsonl", "a.jsonl")),
        ("accept a.jsonl --reason x --baseline a.jsonl", ("a.jsonl", "a.jsonl")),
    ],
)
def test_no_command_writes_over_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, both: tuple[str, str]
) -> None:
    records(tmp_path / "a.jsonl")
    assert main(["accept", "a.jsonl", "--reason", "first figures", "--baseline", "b.json"]) == 0
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    (tmp_path / "sub").mkdir()
    before = [(tmp_path / name).read_bytes() for name in ("a.jsonl", "b.json")]
    assert main(line.split()) == 2
    assert "{} would be written over {}".format(*both) in capsys.readouterr().err
    assert [(tmp_path / name).read_bytes() for name in ("a.jsonl", "b.json")] == before


KERNEL = """
from numcheck import Contract, KernelSpec
from numcheck.oracles import mhc_post

def forward(x, residual, post, comb):
    if any(t.device != x.device or t.ndim != n for t, n in ((x, 2), (residual, 3), (post, 2), (comb, 3))):
        raise ValueError("wrong arguments")
    mix = (comb[..., None] * residual[:, :, None]).sum(1)
    return {"out": SCALE * post[:, :, None] * x[:, None] + mix}

kernel = KernelSpec("mine", mhc_post, forward=forward, contract=Contract(dtypes=("fp32",)))
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository whose only commit holds a kernel that is off by 1e-3, fixed in the working tree."""

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "mine.py").write_text(KERNEL.replace("SCALE", "1.001"))
    git("init", "-q")
    git("add", "mine.py")
    git("commit", "-qm", "off by a thousandth")
    (tmp_path / "mine.py").write_text(KERNEL.replace("SCALE", "1.0"))
    return tmp_path


def test_run_at_shows_what_a_change_fixed(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = "run --specs mine.py --device cpu accuracy --at HEAD --records r.jsonl --report r.md"
    assert main(line.split()) == 0
    said = capfd.readouterr().out
    assert "fixed: mine on CPU under accuracy, out: FAIL at HEAD in " in said
    assert said.rstrip().splitlines()[-1].startswith("fixed: mine on CPU under accuracy failed at HEAD and holds here")
    assert "FAIL | PASS" in (repository / "r.md").read_text()
    assert (repository / "r.md").read_text().startswith("# Fixed what failed at HEAD\n")
    assert (repository / "r.at-HEAD.jsonl").exists()
    assert subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout.count("\n") == 1
    assert main(line.split()) == 2, "records of an earlier run must not be mixed in"


def test_both_runs_of_run_at_draw_the_same_cases(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drawn Case that fails there would else seldom be judged here, and its law could hold by luck."""
    lines: list[list[str]] = []

    def judged(line: list[str], **where: object) -> int:
        lines.append(line)
        records(Path(line[line.index("--numcheck-records") + 1]))
        return 0

    monkeypatch.setattr("numcheck.commands.at.run", judged)
    for profile in ("quick", "ci"):
        assert main(["run", "--specs", "mine.py", "--profile", profile, "--at", "HEAD"]) == 1
    seeds = [[word for word in line if word.startswith("--hypothesis-seed=")] for line in lines]
    assert seeds[0] == seeds[1]
    assert len(seeds[0]) == 1
    assert seeds[2:] == [[], []], "a profile that draws the same in every run has a seed of its own"


def test_run_at_does_not_credit_a_change_that_fixes_nothing(
    repository: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--specs", "mine.py", "--device", "cpu", "evidence", "--at", "HEAD"]) == 1
    assert "not shown to fix anything" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("here", "code", "said"),
    [
        ({"accuracy": "PASS"}, 0, "fixed: k on CPU under accuracy: FAIL at main, PASS here"),
        ({"accuracy": "ORDER_DEPENDENT"}, 0, "fixed: k on CPU under accuracy: FAIL at main, ORDER_DEPENDENT here"),
        ({"accuracy": "VACUOUS"}, 1, "no longer judged: k on CPU under accuracy: FAIL at main, VACUOUS here"),
        ({"accuracy": "UNAVAILABLE"}, 1, "no longer judged: k on CPU under accuracy: FAIL at main, UNAVAILABLE here"),
        ({}, 1, "no longer judged: k on CPU under accuracy: FAIL at main, not judged here"),
        ({"accuracy": "ERROR"}, 1, "does not hold: k on CPU under accuracy: FAIL at main, ERROR here"),
    ],
)
def test_a_claim_is_fixed_only_where_it_is_shown_to_hold(
    tmp_path: Path, here: dict[str, str], code: int, said: str
) -> None:
    base = records(tmp_path / "a.jsonl")
    (key, known), = base.kernels.items()  # fmt: skip
    then = replace(base, kernels={key: replace(known, laws={"accuracy": "FAIL"})})
    found = compare(then, replace(base, kernels={key: replace(known, laws=here)}), "main")
    assert found.held is not bool(code)
    assert said in as_text(found).splitlines()


def test_run_at_says_at_once_that_the_base_judged_nothing(repository: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (repository / "new.py").write_text((repository / "mine.py").read_text())
    assert (
        main(["run", "--specs", "new.py", "--device", "cpu", "evidence", "--at", "HEAD", "--records", "r.jsonl"]) == 2
    )
    assert "nothing could be judged at HEAD" in capfd.readouterr().out
    assert not (repository / "r.jsonl").exists()


def test_run_at_a_revision_that_is_none(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--specs", "mine.py", "evidence", "--at", "nowhere"]) == 2
    assert "--at nowhere: no such revision" in capsys.readouterr().err


HOLDS = """
import sys
from numcheck.commands.checkout import checkout, folder
from numcheck.commands.child import ended, run
with ended(), folder() as temporary, checkout("HEAD", temporary) as base:
    print(base, flush=True)
    run([sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"], cwd=base)
"""


def ended_by(number: signal.Signals) -> tuple[Path, int]:
    """Where the checkout was and the exit code of a run that was sent this signal; its child must be gone."""
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        base, _ = itertools.islice(process.stdout, 2)
        process.send_signal(number)
        # Its child holds the pipe too, which ends with the last of them.
        assert process.stdout.read() == ""
        code = process.wait(20)
    return Path(base.strip()), code


def worktrees() -> int:
    return subprocess.run(["git", "worktree", "list"], capture_output=True, text=True).stdout.count("\n")


@pytest.mark.usefixtures("repository")
def test_a_checkout_does_not_outlive_its_run(capfd: pytest.CaptureFixture[str]) -> None:
    base, code = ended_by(signal.SIGTERM)
    assert (code, base.parent.exists(), worktrees()) == (128 + signal.SIGTERM, False, 1)
    # Nothing can be removed by who is killed: the next run does it, and leaves alone what is in use.
    base, _ = ended_by(signal.SIGKILL)
    assert (base.exists(), worktrees()) == (True, 2)
    with folder() as mine, checkout("HEAD", mine), folder() as other, checkout("HEAD", other):
        assert (base.parent.exists(), worktrees()) == (False, 3)
    assert worktrees() == 1
    assert f"removing {base.parent}" in capfd.readouterr().out


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As HUP under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("code", [0, 1])
def test_run_at_is_not_content_where_pytest_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    """A test may fail without a verdict in the records: a crash in a fixture, a test of the project's own."""

    def judge(options: object, command: object, path: Path, *folders: Path) -> int:
        ends = "FAIL" if "at-HEAD" in path.name else "PASS"
        with Writer(path, "run") as writer:
            writer.outcome("mine", "k", "accuracy", ends)
            for case in CASES:
                writer.case("mine", case, scene.judge("accuracy", "k", case), "grid")
        return code if ends == "PASS" else 1

    monkeypatch.setattr("numcheck.commands.at._judge", judge)
    monkeypatch.setattr("numcheck.commands.at.checkout", lambda rev, folder: contextlib.nullcontext(folder))
    assert main(["run", "accuracy", "--at", "HEAD"]) == code
    said = capsys.readouterr().out
    assert "fixed: k" in said
    assert ("pytest failed here" in said) == bool(code)


@pytest.mark.usefixtures("repository")
def test_a_worktree_whose_folder_is_away_is_not_forgotten(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    subprocess.run(["git", "worktree", "add", "--detach", str(theirs)], check=True, capture_output=True)
    theirs.rename(tmp_path / "away")
    with folder() as mine, checkout("HEAD", mine):
        pass
    assert worktrees() == 2


@pytest.mark.usefixtures("repository")
def test_a_folder_that_only_looks_like_a_left_one_stays(tmp_path: Path) -> None:
    theirs = tmp_path / "numcheck-at-theirs"
    theirs.mkdir()
    (theirs / "lock").write_text("data")
    subprocess.run(["git", "worktree", "add", "--detach", str(theirs / "base")], check=True, capture_output=True)
    with folder() as mine, checkout("HEAD", mine):
        pass
    assert (theirs / "lock").read_text() == "data"
    assert worktrees() == 2


def test_a_pipe_is_refused_where_it_would_be_read_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records(tmp_path / "a.jsonl")
    os.mkfifo(tmp_path / "pipe")
    assert main(["compare", str(tmp_path / "a.jsonl"), str(tmp_path / "pipe")]) == 2
    assert "write it to a file first" in capsys.readouterr().err


def test_what_failed_and_is_not_tried_again_is_not_fixed(tmp_path: Path) -> None:
    base = records(tmp_path / "a.jsonl")
    (key, known), = base.kernels.items()  # fmt: skip
    first = known.cases[CASES[0].key]
    failed = replace(first, status={**first.status, "accuracy": "FAIL"})
    then = replace(
        base,
        kernels={
            key: replace(known, laws={**known.laws, "accuracy": "FAIL"}, cases={**known.cases, first.case.key: failed})
        },
    )
    assert compare(then, base, "main").held
    without = {k: seen for k, seen in known.cases.items() if k != first.case.key}
    dropped = compare(then, replace(base, kernels={key: replace(known, cases=without)}), "main")
    assert not dropped.held
    assert "1 named Case that failed there not judged" in dropped.verdict
    # A claim that held there and is not judged here, and a run that was cut off, show no fix either.
    laws = {law: status for law, status in known.laws.items() if law != "memory"}
    assert not compare(then, replace(base, kernels={key: replace(known, laws=laws)}), "main").held
    assert not compare(then, replace(base, unfinished=("killed",)), "main").held
