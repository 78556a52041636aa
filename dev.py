#!/usr/bin/env python3
"""The one door for working on numcheck: `python3 dev.py TASK`. Needs nothing but Python 3.11+ and git.

  judge   make .venv, judge the shipped kernels, write reports/numcheck.html and say so
  test    make .venv, run the tests; `--whole`: every kernel, law, fault and mutant (an hour on two cores)
  check   make .venv, run ruff and the type checker
  env     make .venv only

Further arguments go to the task's own command: `python3 dev.py test -k bitwise`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "numcheck.stamp"
# What .venv is made from: a change of either makes it anew.
SOURCES = (ROOT / "pyproject.toml", ROOT / "constraints.txt")

# Interpreting everything takes most of an hour. Of the newer families `test` asks the Triton kernels for bits and
# accuracy; the other laws, the eager kernels, their faults and the source mutants wait for --whole.
LAWS = ("cancellation", "edges", "evidence", "invariance", "memory", "faults")
FAMILIES = ("sparse_mla.", "balance_loss", "grouped_s")
OTHERS = (
    "sparse_mla.eager",
    "balance_loss_map.eager",
    "balance_loss_map.native",
    "balance_loss_topk.",
    "grouped_srelu.eager",
    "grouped_swiglu.",
)
LEFT_OUT = [f"test_{law}[{family}" for law in LAWS for family in FAMILIES]
LEFT_OUT += [f"test_{law}[{kernel}" for law in ("accuracy", "bitwise") for kernel in OTHERS]
BRIEF = f"not ({' or '.join([*LEFT_OUT, 'test_mutants['])})"

CUDA_TORCH = "import torch; raise SystemExit(0 if torch.version.cuda else 1)"
# What a task needs beside numcheck's own dependencies: extras of pyproject.toml.
JUDGE = ("torch", "triton", "parallel")
EXTRAS = {"judge": JUDGE, "test": (*JUDGE, "test"), "check": (*JUDGE, "test", "lint"), "env": (*JUDGE, "test", "lint")}
# Folders that installers put packages into; Debian's own is the second.
PACKAGES = ("site-packages", "dist-packages")
# Run inside .venv: print each requirement of numcheck and the given extras that is not met; reaches no registry.
MISSING = """
import sys, tomllib
from importlib.metadata import PackageNotFoundError, version
from pip._vendor.packaging.requirements import Requirement
project = tomllib.load(open(sys.argv[1], "rb"))["project"]
extras = project["optional-dependencies"]
for line in [*project["dependencies"], *(line for name in sys.argv[2:] for line in extras[name])]:
    need = Requirement(line)
    try:
        if not need.specifier.contains(version(need.name), prereleases=True):
            print(f"{line} (found {version(need.name)})")
    except PackageNotFoundError:
        print(line)
"""


def main(argv: list[str]) -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 - it is the older Python that has to be told
        return fail(
            f"Python {sys.version.split()[0]} found, but numcheck needs 3.11 or newer; run this with python3.11"
        )
    tasks = {"judge": judge, "test": test, "check": check, "env": lambda extra: 0}
    if not argv or argv[0] not in tasks:
        print(__doc__, file=sys.stderr)
        return 2
    make_venv(EXTRAS[argv[0]])
    return tasks[argv[0]](argv[1:])


def judge(extra: list[str]) -> int:
    report = ROOT / "reports" / "numcheck.html"
    records = ROOT / "reports" / "numcheck.jsonl"
    judged = ("--specs", "kernels", "--records", records, "--report", report)
    return run(tool("numcheck"), "run", *judged, *workers(extra), *extra)


def test(extra: list[str]) -> int:
    whole = "--whole" in extra
    extra = [word for word in extra if word != "--whole"]
    part = [] if whole or "-k" in extra else ["-k", BRIEF]
    command = (python(), "-m", "pytest", "--numcheck-profile", "ci", *workers(extra), *part, *extra)
    return run(*command, env=alone(extra))


def check(extra: list[str]) -> int:
    steps = ((tool("ruff"), "format", "--check"), (tool("ruff"), "check"), (tool("mypy"),))
    return max(run(*step, *extra) for step in steps)


def workers(extra: list[str]) -> list[str]:
    """One worker a core, unless `extra` says otherwise."""
    return [] if "-n" in extra else ["-n", str(os.cpu_count() or 1)]


def alone(extra: list[str]) -> dict[str, str]:
    """One thread a worker where there is one a core: torch's threads spin while they wait for a core to be theirs."""
    return {} if "-n" in extra else {"OMP_NUM_THREADS": "1"}


def make_venv(extras: tuple[str, ...]) -> None:
    """Make .venv where it is missing, older than what it is made from, or lacks one of `extras`."""
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in SOURCES)).hexdigest()
    made = STAMP.read_text().split() if STAMP.exists() else []
    if made[:1] == [digest] and set(extras) <= set(made[1:]):
        return
    on_cuda = subprocess.run([sys.executable, "-c", CUDA_TORCH], capture_output=True).returncode == 0
    if made[:1] != [digest]:
        shutil.rmtree(VENV, ignore_errors=True)
        print(f"making {VENV.name} ({'on the installed CUDA torch' if on_cuda else 'with CPU torch'})", flush=True)
        quiet(sys.executable, "-m", "venv", *(["--system-site-packages"] if on_cuda else []), VENV)
        if on_cuda:
            show_packages(sys.path)
    try:
        install(extras, on_cuda)
    except subprocess.CalledProcessError as error:
        print((error.stdout or b"").decode(errors="replace"), file=sys.stderr)
        lacking = missing(extras)
        if lacking:
            sys.exit(fail("could not install, and these are missing:\n  " + "\n  ".join(lacking)))
        sys.exit(fail("could not install numcheck itself; pip's own words are above"))
    STAMP.write_text(" ".join([digest, *sorted({*made[1:], *extras})]))


def show_packages(seen: Sequence[str]) -> None:
    """Let .venv see the folders of packages in `seen`, the path of the Python that runs this.

    It may be a virtual environment's, whose packages --system-site-packages leaves out, under any spelling: its prefix
    may be a symbolic link. addsitedir also reads the folders' own .pth files, by which some packages are found.
    """
    folders = [path for path in dict.fromkeys(seen) if Path(path).name in PACKAGES and Path(path).is_dir()]
    (target,) = VENV.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({os.path.abspath(path)!r})" for path in folders]
    (target / "outer.pth").write_text("\n".join([*lines, ""]), encoding="utf-8")


def install(extras: tuple[str, ...], on_cuda: bool) -> None:
    """Install numcheck for development: pinned on a CPU; beside the machine's own torch where that has CUDA."""
    pip = (python(), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    if not on_cuda:
        quiet(*pip, "-c", ROOT / "constraints.txt", "-e", f"{ROOT}[{','.join(extras)}]")
        return
    lacking = missing(extras)
    if lacking:
        quiet(*pip, *(line.split(" (found")[0] for line in lacking))
    quiet(*pip, "--no-deps", "--no-build-isolation", "-e", ROOT)


def missing(extras: tuple[str, ...]) -> list[str]:
    """Requirements that .venv does not meet, with what was found instead."""
    command = [python(), "-c", MISSING, SOURCES[0], *extras]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()


def python() -> Path:
    return VENV / "bin" / "python"


def tool(name: str) -> Path:
    return VENV / "bin" / name


def run(*command: str | Path, env: Mapping[str, str] | None = None) -> int:
    """Run `command`; env: what it finds in its environment, unless this process's own says otherwise."""
    return subprocess.run([str(part) for part in command], cwd=ROOT, env={**(env or {}), **os.environ}).returncode


def quiet(*command: str | Path) -> None:
    subprocess.run(
        [str(part) for part in command], cwd=ROOT, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def fail(message: str) -> int:
    print(f"dev.py: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
