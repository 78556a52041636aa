"""What must be decided before any kernel is imported: which GPU a worker has, and device or interpreter."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from numcheck.capability import Device
from numcheck.errors import NumcheckError
from numcheck.interpreter.switch import asked

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Set by pytest-xdist in a worker before its plugins load: gw0, gw1, ...
WORKER = "PYTEST_XDIST_WORKER"


def choose(wanted: str) -> Device:
    """The device for --numcheck-device; on a CPU, Triton is told to interpret. Raises pytest.UsageError."""
    from numcheck import device

    if wanted == "auto" and asked():
        wanted = "cpu"
    try:
        if wanted != "cpu" and device.driver_present():
            pin(os.environ.get(WORKER, ""))
        return device.choose(wanted)
    except NumcheckError as error:
        raise pytest.UsageError(f"--numcheck-device: {error}") from None


def pin(worker: str) -> None:
    """Give an xdist worker one GPU of those it sees, in turn. CUDA reads the variable once, when it loads."""
    number = worker.removeprefix("gw")
    if not number.isdigit():
        return
    visible = os.environ.get(VISIBLE)
    gpus = visible.split(",") if visible is not None else _gpus()
    if gpus:
        os.environ[VISIBLE] = gpus[int(number) % len(gpus)]


def _gpus() -> list[str]:
    """The indices of the machine's GPUs, one a line of nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True).stdout
    return [str(index) for index, line in enumerate(n for n in listed.splitlines() if n.startswith("GPU "))]


def variables() -> dict[str, str]:
    """The process's environment, for the Environment record: stages do not read it."""
    return dict(os.environ)
