"""dev.py, the one door: what its .venv sees of the Python that made it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What the outer environment of these tests has: a package of its own, and one that only a .pth file leads to.
SEES = "import dummy, linked; print(dummy.WHERE, linked.WHERE)"


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def venv(at: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", at], check=True)
    return at


def asked(python: Path, code: str) -> str:
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("spelling", ["plain", "a link to it", "lib64"])
def test_its_venv_sees_what_the_python_that_made_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    outer, inner, elsewhere = venv(tmp_path / "outer"), venv(tmp_path / "inner"), tmp_path / "elsewhere"
    (packages,) = outer.glob("lib/python*/site-packages")
    elsewhere.mkdir()
    (packages / "dummy.py").write_text("WHERE = 'outer'")
    (packages / "linked.pth").write_text(f"{elsewhere}\n")
    (elsewhere / "linked.py").write_text("WHERE = 'elsewhere'")
    (tmp_path / "link").symlink_to(outer)
    (tmp_path / "lib64").symlink_to(outer / "lib")
    seen = {
        "plain": str(packages),
        "a link to it": str(tmp_path / "link" / packages.relative_to(outer)),
        "lib64": str(tmp_path / "lib64" / packages.relative_to(outer / "lib")),
    }[spelling]
    dev = loaded()
    monkeypatch.setattr(dev, "VENV", inner)
    dev.show_packages([str(tmp_path), str(elsewhere), "", seen, str(tmp_path / "no" / "site-packages")])
    assert asked(inner / "bin" / "python", SEES).split() == ["outer", "elsewhere"]


def test_what_the_venv_has_itself_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pinned or newer package in .venv is not hidden by the outer environment's."""
    outer, inner = venv(tmp_path / "outer"), venv(tmp_path / "inner")
    for at in (outer, inner):
        (packages,) = at.glob("lib/python*/site-packages")
        (packages / "dummy.py").write_text(f"WHERE = {at.name!r}")
    dev = loaded()
    monkeypatch.setattr(dev, "VENV", inner)
    dev.show_packages([str(p) for p in outer.glob("lib/python*/site-packages")])
    assert asked(inner / "bin" / "python", "import dummy; print(dummy.WHERE)").strip() == "inner"


@pytest.mark.parametrize(
    ("extra", "own", "threads"), [([], {}, "1"), ([], {"OMP_NUM_THREADS": "3"}, "3"), (["-n", "0"], {}, "none")]
)
def test_a_worker_a_core_has_one_thread_unless_somebody_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, extra: list[str], own: dict[str, str], threads: str
) -> None:
    dev = loaded()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    code = "import os, sys; sys.exit(['none', '1', '2', '3'].index(os.environ.get('OMP_NUM_THREADS', 'none')))"
    assert dev.run(sys.executable, "-c", code, env=dev.alone(extra)) == ["none", "1", "2", "3"].index(threads)
