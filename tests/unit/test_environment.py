"""Environment: the same place has the same id in every process; another place, version, flag or code has another."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import numcheck
from numcheck.environment import environment

ROOT = Path(__file__).resolve().parents[2]


def git(place: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(place), *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one committed file."""
    (tmp_path / "kernel.py").write_text("x = 1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "kernel.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    return tmp_path


def test_the_id_is_the_same_in_another_process(checkout: Path) -> None:
    code = f"""
import json
from numcheck.environment import environment
print(json.dumps(environment(checkout={str(checkout)!r}, repairs=["b", "a"])))
"""
    runs = [subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True) for _ in range(2)]
    one, two = (json.loads(run.stdout) for run in runs)
    assert one == two
    assert one["repairs"] == ["a", "b"]
    assert one["versions"]["numcheck"] == numcheck.__version__


def test_uncommitted_changes_change_the_id_and_committed_ones_the_commit(checkout: Path) -> None:
    clean = environment(checkout=checkout)
    assert clean["code"]["dirty"] is False
    (checkout / "kernel.py").write_text("x = 2\n")
    dirty = environment(checkout=checkout)
    (checkout / "kernel.py").write_text("x = 3\n")
    dirtier = environment(checkout=checkout)
    assert (dirty["code"]["dirty"], dirty["code"]["commit"]) == (True, clean["code"]["commit"])
    assert len({clean["id"], dirty["id"], dirtier["id"]}) == 3
    git(checkout, "commit", "-q", "-a", "-m", "second")
    assert environment(checkout=checkout)["code"]["commit"] != clean["code"]["commit"]


def test_outside_a_repository_the_commit_is_unknown(tmp_path: Path) -> None:
    assert environment(checkout=tmp_path)["code"] == {"commit": "unknown", "dirty": False}


def test_interpreter_and_device_are_told_apart(checkout: Path) -> None:
    both = [environment(interpreter=interpreter, checkout=checkout) for interpreter in (True, False)]
    assert [e["backend"] for e in both] == ["interpreter", "device"]
    assert both[0]["id"] != both[1]["id"]


def test_only_variables_that_matter_are_kept(checkout: Path) -> None:
    variables = {"OMP_NUM_THREADS": "3", "TOKEN": "secret"}
    flags = environment(variables=variables, checkout=checkout)["flags"]
    assert flags["OMP_NUM_THREADS"] == "3"
    assert "TOKEN" not in flags


def test_torch_flags_are_those_in_force(checkout: Path) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = environment(checkout=checkout)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found["flags"]["float32_matmul_precision"] == "medium"
    assert found["flags"]["threads_count"] == torch.get_num_threads()
    assert found["id"] != environment(checkout=checkout)["id"]


def test_without_torch_everything_else_is_still_told() -> None:
    code = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "triton"):
            raise ModuleNotFoundError(name)
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in ("torch", "triton") else real(name, package)
sys.meta_path.insert(0, Without())
from numcheck.environment import environment
found = environment("cuda")
print(found["device"], found["flags"], "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "{'kind': 'cuda', 'name': 'none found'} {} False"


def numbers(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers(key, inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix


def test_numbers_carry_their_unit_in_their_name(checkout: Path) -> None:
    names = list(numbers("", environment(checkout=checkout)))
    assert names
    assert all(name.endswith(("_count", "_bytes", "_seconds")) for name in names)
