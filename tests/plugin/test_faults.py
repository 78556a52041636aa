"""Broken kernels as tests: a stranger's declared faults and source mutants, caught or told as survivors."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from numcheck.cli import main
from numcheck.commands import faults as command
from numcheck.record import read

ROOT = Path(__file__).resolve().parents[2]
# An exact problem in torch alone: what is wrong shows in any bit.
STRANGER = """
from numcheck import CaseSpace, Contract, Fault, Input, KernelSpec, Oracle, Output

space = CaseSpace(sizes={"S": (1, 3), "D": (1, 9)}, dtypes=("fp32",), grid={"S": (1, 3), "D": (1, 4)})
problem = Oracle(
    "flip",
    (Input("x", ("S", "D")),),
    (Output("out", ("S", "D")),),
    lambda read, x: {"out": read.at("out", -x)},
    space,
    vjp=lambda read, x, d_out: {"d_x": read.at("d_x", -d_out)},
)

def forward(x):
    return {"out": -x.clone()}

copy = Contract(order={"out": "single"}, workspace=lambda case: 4 * case["S"] * case["D"])
spec = KernelSpec("flip", problem, forward=forward, contract=copy)
wrong = spec.but(name="flip.fault.sign", forward=lambda x: {"out": x.clone()})
right = spec.but(name="flip.fault.none", forward=lambda x: {"out": x.mul(-1.0)})
FAULTS = (Fault(wrong, "accuracy", "No sign.", honest=spec), Fault(right, "accuracy", "Nothing wrong.", honest=spec))
"""
REASON = """
[[mutant]]
id = "{}"
claim = "equal"
why = "the negation makes a new tensor"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("stranger")
    (found / "flip.py").write_text(STRANGER)
    return found


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    line = [sys.executable, "-m", *command]
    return subprocess.run(line, cwd=folder, env={**env, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True)


def pytest_(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    plugin = ("pytest", "-p", "numcheck.plugin", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".")
    return run(folder, *plugin, "--numcheck-specs", "flip.py", "--numcheck-device", "cpu", *arguments)


def faults(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "numcheck", "faults", "--specs", "flip.py:spec", "--device", "cpu", *arguments)


def test_mutants_are_tests_for_who_asks_for_the_mark_and_for_nobody_else(folder: Path) -> None:
    listed = pytest_(folder, "--collect-only", "-q").stdout
    assert "faults[flip.fault.sign]" in listed
    assert "mutants[" not in listed
    listed = pytest_(folder, "--collect-only", "-q", "-m", "faults").stdout
    assert "mutants[flip:flip.forward]" in listed


def test_what_is_caught_passes_and_what_is_not_is_told(folder: Path) -> None:
    done = pytest_(folder, "-m", "faults", "-rA", "--numcheck-records", "r.jsonl")
    assert "PASSED flip.py::faults[flip.fault.sign]" in done.stdout
    assert "FAILED flip.py::faults[flip.fault.none]" in done.stdout
    assert "SURVIVOR: flip.fault.none is broken (Nothing wrong.), and accuracy must catch it" in done.stdout
    # -x.clone() without the copy is still a new tensor: no law can tell, and no reason says so.
    assert "SURVIVOR: flip.forward:forget-method:" in done.stdout
    assert "+ x" in done.stdout
    rows = {row["fault"]: row for row in read(folder / "r.jsonl").of("fault")}
    assert rows["flip.fault.sign"]["status"] == "KILLED"
    assert {row["operator"] for row in rows.values() if row["made"] == "mutant"} >= {"wrong-sign", "forget-method"}


def test_the_command_scores_the_same_and_a_written_reason_is_believed(folder: Path) -> None:
    done = faults(folder, "--mutants", "--json", "--workers", "2")
    found = json.loads(done.stdout)
    survivors = [row["fault"] for row in found["faults"] if row["status"] == "SURVIVED"]
    assert [name.split(":")[1] for name in survivors] == ["forget-method"]
    assert found["mutants"]["killed"] == len(found["faults"]) - 1
    assert found["mutants"]["allclose"] == {"caught": 1, "of": 2}
    (folder / "equivalent.toml").write_text(REASON.format(survivors[0]))
    try:
        again = json.loads(faults(folder, "--mutants", "--json", "--workers", "1").stdout)
        status = {row["fault"]: row["status"] for row in again["faults"]}
        assert status.pop(survivors[0]) == "EQUIVALENT"
        assert set(status.values()) == {"KILLED"}
    finally:
        (folder / "equivalent.toml").unlink()


def test_the_commands_exit_codes(folder: Path) -> None:
    assert faults(folder, "--declared", "-k", "sign").returncode == 0
    done = faults(folder, "--declared")
    assert done.returncode == 1
    assert "flip.fault.none  SURVIVED" in done.stdout
    misused = faults(folder, "-k", "nothing of that name")
    assert misused.returncode == 2
    assert "nothing to score" in misused.stderr


def test_list_runs_nothing(folder: Path) -> None:
    done = faults(folder, "--list", "--mutants")
    assert done.returncode == 0
    assert "-x.clone() -> x.clone()" in done.stdout


def test_ctrl_c_ends_the_command_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What started before has ended by then, which tests/unit/test_crew.py shows of the workers."""

    def pressed(options: argparse.Namespace, found: list[dict[str, Any]]) -> int:
        found.append({"fault": "the first"})
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_main", pressed)
    assert main(["faults", "--declared"]) == 130
    assert capsys.readouterr().err == "\nnumcheck faults: interrupted, with 1 scored\n"
