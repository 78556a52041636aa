"""The command: exit codes, misuse, and what each command prints."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from numcheck import Contract, KernelSpec
from numcheck.certify import Certificate
from numcheck.cli import COMMANDS, main
from numcheck.commands.certify import said
from numcheck.commands.init import template
from numcheck.commands.list import promised
from numcheck.commands.run import variables
from numcheck.oracles import mhc_post
from numcheck.record import Writer

ROOT = Path(__file__).resolve().parents[2]
ATOMIC = "mhc_post.triton_split_atomic"
SPEC = KernelSpec("mine", mhc_post, forward=lambda **inputs: {})
CASE = '{"sizes":{"S":1,"H":1,"D":33}}'


def numcheck(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "numcheck", *arguments]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(command, cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_each_command_has_help_with_an_example(command, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command.name, "--help"])
    assert stop.value.code == 0
    assert command.example.splitlines()[0] in capsys.readouterr().out


def test_list_names_every_kernel_and_law() -> None:
    done = numcheck("list", "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert ATOMIC in {kernel["name"] for kernel in found["kernels"]}
    assert {law["name"] for law in found["laws"]} >= {"bitwise", "accuracy", "cancellation", "evidence"}


def test_doctor_says_what_the_interpreter_repairs() -> None:
    done = numcheck("doctor", "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    statuses = {probe["status"] for probe in found["interpreter"]}
    assert "repaired" in statuses
    assert all(kernel["available"] == "yes" for kernel in found["kernels"] if "triton" in kernel["name"])


def test_replay_exits_0_for_a_case_that_holds_and_prints_json() -> None:
    done = numcheck("replay", "--json", "--device", "cpu", ATOMIC, "bitwise", CASE)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] in ("PASS", "VACUOUS", "ORDER_DEPENDENT")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("replay", "nobody", "bitwise", CASE), "no kernel 'nobody'"),
        (("replay", ATOMIC, "gravity", CASE), "no law 'gravity'"),
        (("replay", ATOMIC, "bitwise", "{"), "not a Case line"),
        (("replay", ATOMIC, "bitwise", '{"sizes":{"S":-1}}'), "must be an integer of at least 0"),
        (("list", "--specs", "no_such_module"), "no_such_module"),
        (("render", "no_such_file.jsonl"), "no_such_file.jsonl"),
        (("merge", "no_such_folder", "-o", "x.jsonl"), "no_such_folder"),
        (("run", "gravity"), "no law 'gravity'"),
        (("run", "--json"), "--json"),
    ],
)
def test_misuse_exits_2_and_says_what_to_do(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = numcheck(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_the_installed_command_finds_a_module_in_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(template())
    # -P: like an installed script, this Python does not look into the current folder by itself.
    command = [sys.executable, "-P", "-m", "numcheck", "list", "--device", "cpu", "--specs", "mine"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "my_mhc" in done.stdout


def test_list_prints_the_names_that_a_kernel_takes_and_returns() -> None:
    done = numcheck("list", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert "mhc_post: forward(x, residual, post, comb) -> out\n" in done.stdout
    gradients = "d_x, d_residual, d_post, d_comb"
    assert f"mhc_post: vjp(x, residual, post, comb, *, d_out) -> {gradients}\n" in done.stdout


def test_an_order_that_is_a_function_of_the_case_is_not_listed_as_fixed() -> None:
    assert promised(SPEC) == "fixed"
    assert promised(SPEC.claiming(out="any")) == "out: any"
    assert promised(SPEC.but(contract=Contract(order=lambda case: {"out": "any"}))) == "by Case"


def test_a_certificate_is_said_in_one_line_for_a_person() -> None:
    held = Certificate("sum", 2e-16, {"out": 2e-16, "d_x": 0.0}, 3, "CERTIFIED", vjp="autograd")
    assert said(held) == "sum: CERTIFIED on 3 tiny Cases, autograd VJP; error at most 1e-14: out 2e-16, d_x 0"
    bare = Certificate("sum", math.nan, {}, 0, "UNCERTIFIED", note="the oracle has no mpmath twin")
    assert said(bare) == "sum: UNCERTIFIED: the oracle has no mpmath twin"


def test_run_says_after_each_test_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(template())
    done = numcheck("run", "--specs", "mine.py", "--device", "cpu", "evidence", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "device cpu" in done.stdout
    assert "evidence[my_mhc] PASSED" in done.stdout


def elsewhere(command: str) -> subprocess.CompletedProcess[str]:
    """A command without --specs where no shipped kernels are: as for somebody who installed the wheel."""
    code = (
        "import sys; from numcheck.commands import common; common.DEFAULT_SPECS = ('no_kernels_here',); "
        f"from numcheck.cli import main; sys.exit(main(['{command}', '--device', 'cpu']))"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize(("workers", "share"), [(0, None), (1, "8"), (2, "4"), (3, "2"), (8, "1"), (20, "1")])
def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch, workers: int, share: str | None) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert variables(Namespace(workers=workers)).get("OMP_NUM_THREADS") == share
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert variables(Namespace(workers=workers))["OMP_NUM_THREADS"] == "5"


def test_doctor_answers_where_no_kernels_are() -> None:
    done = elsewhere("doctor")
    assert done.returncode == 0, done.stderr
    assert "triton" in done.stdout
    assert "--specs" in done.stdout


def test_other_commands_say_that_specs_are_to_be_named_where_no_kernels_are() -> None:
    done = elsewhere("list")
    assert done.returncode == 2
    assert "without --specs, no_kernels_here is judged" in done.stderr


def test_init_writes_a_file_once(tmp_path: Path) -> None:
    assert numcheck("init", "mine.py", cwd=tmp_path).returncode == 0
    text = (tmp_path / "mine.py").read_text()
    assert "KernelSpec(" in text
    again = numcheck("init", "mine.py", cwd=tmp_path)
    assert again.returncode == 2
    assert "exists" in again.stderr
    assert (tmp_path / "mine.py").read_text() == text


@pytest.mark.parametrize("command", ["render", "merge"])
@pytest.mark.parametrize("output", [".", "records.jsonl/report.html"])
def test_an_output_that_cannot_be_written_is_misuse(tmp_path: Path, command: str, output: str) -> None:
    records = tmp_path / "records.jsonl"
    Writer(records, "run").end()
    done = numcheck(command, str(records), "-o", str(tmp_path / output))
    assert done.returncode == 2
    assert done.stderr.startswith(f"numcheck {command}: {tmp_path}")
    assert len(done.stderr.splitlines()) == 1


CLEVER = """
import sys
from numcheck import CaseSpace, Contract, Input, KernelSpec, Oracle, Output
problem = Oracle("scale", (Input("x", ("D",)),), (Output("out", ("D",)),), lambda read, x: {"out": x},
                 CaseSpace(sizes={"D": (1, 64)}, dtypes=("fp32",), grid={"D": (8, 33)}))
leaves = KernelSpec("leaves", problem, forward=lambda x: sys.exit(0))
wrong = KernelSpec("wrong", problem, forward=lambda x: {"out": x}, contract=Contract(legal=lambda case: 1 // 0))
"""


@pytest.mark.parametrize(("kernel", "words"), [("leaves", "SystemExit: 0"), ("wrong", "contract.legal raised Zero")])
@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_a_kernel_that_leaves_and_a_spec_that_raises_do_not_hold(
    tmp_path: Path, command: str, kernel: str, words: str
) -> None:
    path = tmp_path / "clever.py"
    path.write_text(CLEVER, encoding="utf-8")
    case = '{"sizes":{"D":8}}'
    done = numcheck(command, "--specs", str(path), "--device", "cpu", kernel, "accuracy", case, cwd=tmp_path)
    assert done.returncode in (1, 2)
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


MEANT_OTHERWISE = {
    "a size too many": ('{"sizes":{"S":1,"H":1,"D":33,"Q":4}}', "mhc_post has no size Q; it has D, H, S"),
    "a size too few": ('{"sizes":{"S":1,"H":1}}', "the Case lacks D, which mhc_post needs"),
    "a fact that nobody reads": ('{"sizes":{"S":1,"H":1,"D":33},"facts":{"patern":"x"}}', "has no fact patern"),
}


@pytest.mark.parametrize("name", MEANT_OTHERWISE)
@pytest.mark.parametrize("command", ["replay", "shrink"])
def test_a_case_of_another_problem_is_misuse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    monkeypatch.setattr("numcheck.commands.common.prepare", lambda options: "cpu")
    case, words = MEANT_OTHERWISE[name]
    assert main([command, "--specs", "kernels", "mhc_post.eager", "accuracy", case]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["alarms", "--cases", "-3"], ["bench", "--cases", "0"], ["run", "-n", "-1"], ["bench", "--pairs", ""]],
)
def test_a_number_of_things_that_cannot_be_done_is_misuse(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2


def test_nothing_to_judge_does_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["alarms", "--cases", "0", "--large", "0"]) == 2
    assert "judges nothing" in capsys.readouterr().err


def test_faults_of_a_package_are_found_beside_its_kernels() -> None:
    from numcheck.load import all_faults, faults

    found = {fault.spec.name for fault in all_faults("kernels")}
    assert "mhc_post.fault.lost_updates" in found
    # Nothing of users imports them: the package itself lists none.
    assert not faults("kernels")
