"""Which device to judge on. For the doors: they ask once, before any kernel is imported."""

from __future__ import annotations

import shutil
import subprocess

from numcheck import heap
from numcheck.capability import Device
from numcheck.errors import InvalidSpec


def choose(wanted: str) -> Device:
    """The device for "auto", "cpu" or "cuda"; on a CPU, Triton is told to interpret, else the heap keeps freed memory.

    Raises InvalidSpec where a GPU is asked for and torch does not see one.
    """
    device = _resolve(wanted)
    if device == "cpu":
        from numcheck.interpreter import enable

        enable()
    else:
        # The Cases of a GPU are large.
        heap.keep()
    return device


def _resolve(wanted: str) -> Device:
    if wanted == "cpu":
        return "cpu"
    if wanted == "cuda":
        if not _torch_sees_gpu():
            raise InvalidSpec("device 'cuda', but torch sees no GPU here; ask for 'cpu', or see `numcheck doctor`")
        return "cuda"
    if wanted != "auto":
        raise InvalidSpec(f"device {wanted!r}; allowed: auto, cpu, cuda")
    return "cuda" if driver_present() and _torch_sees_gpu() else "cpu"


def driver_present() -> bool:
    """Whether an NVIDIA driver answers, asked without importing torch."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return False
    return subprocess.run([tool, "-L"], capture_output=True).returncode == 0


def _torch_sees_gpu() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return torch.cuda.is_available()
