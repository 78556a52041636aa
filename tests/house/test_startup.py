"""`numcheck --help` and the plugin load without anything heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMANDS = (
    "doctor",
    "list",
    "run",
    "replay",
    "shrink",
    "certify",
    "faults",
    "alarms",
    "bench",
    "render",
    "merge",
    "init",
)
HEAVY = ("torch", "triton", "hypothesis", "mpmath", "jinja2", "rich", "numpy")


@pytest.mark.parametrize("statement", ["import numcheck", "import numcheck.plugin", "import numcheck.record"])
def test_importing_a_door_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_faults_are_in_nothing_that_users_import() -> None:
    load = "import sys, numcheck.load; numcheck.load.load('kernels')"
    code = f"{load}; print([m for m in sys.modules if 'fault' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_nothing_heavy_and_shows_every_command() -> None:
    code = f"""
import sys
from numcheck.cli import main
try:
    main(["--help"])
except SystemExit:
    print([m for m in {HEAVY!r} if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    for command in [
        "doctor",
        "list",
        "run",
        "replay",
        "shrink",
        "certify",
        "faults",
        "alarms",
        "bench",
        "render",
        "merge",
        "init",
    ]:
        assert f"    {command} " in done.stdout
