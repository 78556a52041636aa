"""A kernel that nobody here wrote: outside the repository, judged by the installed wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("numcheck", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that the checkout stays as it is."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    out = tmp_path_factory.mktemp("wheel")
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(out),
        str(source),
    ]
    subprocess.run(build, check=True, capture_output=True, text=True)
    (built,) = out.glob("numcheck-*.whl")
    return built


@pytest.fixture(scope="session")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel installed in it, and nothing else."""
    target = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, text=True)
    return target


def test_the_wheel_ships_numcheck_alone(wheel: Path) -> None:
    names = {Path(name).parts[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {n for n in names if not n.endswith(".dist-info")} == {"numcheck"}


def test_the_wheel_carries_its_templates_and_types(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "numcheck/py.typed" in names
    assert any(name.startswith("numcheck/report/templates/") for name in names)


def judge(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in `folder`, with the installed wheel and no sight of this repository."""
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    environment.pop("PYTEST_ADDOPTS", None)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("example", ["my_mhc.py", "rmsnorm.py"])
def test_a_stranger_s_kernel_is_judged_from_the_wheel(site: Path, tmp_path: Path, example: str) -> None:
    shutil.copy(ROOT / "docs" / "examples" / example, tmp_path / example)
    done = judge(site, tmp_path, "--numcheck-specs", example, "-m", "bitwise or accuracy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_a_stranger_s_broken_kernel_fails_with_a_replay_line(site: Path, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "examples" / "my_mhc.py").read_text()
    broken = text + "\n\nspec = spec.claiming(d_post='fixed', d_comb='fixed')\n"
    (tmp_path / "broken.py").write_text(broken)
    done = judge(site, tmp_path, "--numcheck-specs", "broken.py", "-m", "bitwise")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "numcheck replay" in done.stdout
