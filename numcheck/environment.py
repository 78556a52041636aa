"""Environment: where a verdict was reached. Collected once a process; torch is asked only if it is installed."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numcheck
from numcheck.capability import Device

PACKAGES = ("torch", "triton", "hypothesis", "numpy", "mpmath", "nvidia-cudnn-frontend")
# Variables that can change bits or threads; nothing else of the process's environment is recorded.
VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "TRITON_INTERPRET",
)
# A git call on a broken network mount must not hold a run up; the commit is then unknown.
GIT_SECONDS = 10.0


def environment(
    device: Device = "cpu",
    *,
    interpreter: bool | None = None,
    repairs: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    checkout: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """What a verdict depends on besides the Case: JSON-plain facts with units in their names, and their hash, `id`.

    interpreter: whether Triton kernels run in its interpreter; None: asks `numcheck.interpreter`. repairs: interpreter
    repairs in force. variables: the process's environment, of which `VARIABLES` are kept; a door hands it in, since
    stages do not read it. checkout: the repository whose commit counts; by default the one that holds the working
    directory, where the kernels are, or else numcheck's own.
    The same machine, versions, flags and code give the same `id`, in every process.
    """
    if interpreter is None:
        interpreter = device == "cpu" and _interpreting()
    torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None
    facts: dict[str, Any] = {
        "backend": "interpreter" if interpreter else "device",
        "device": _device(torch, device),
        "cpu": {"model": _cpu_model(), "cores_count": os.cpu_count() or 0, "machine": platform.machine()},
        "system": f"{platform.system()} {platform.release()}",
        "versions": {"numcheck": numcheck.__version__, "python": platform.python_version(), **_versions()},
        "flags": {k: v for k, v in (variables or {}).items() if k in VARIABLES} | _flags(torch, device),
        "repairs": sorted(repairs),
        "code": _code(checkout),
    }
    return {"id": _identity(facts), **facts}


def _identity(facts: dict[str, Any]) -> str:
    canonical = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _interpreting() -> bool:
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("numcheck.interpreter") is None:
        return False
    return bool(importlib.import_module("numcheck.interpreter").active())


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _device(torch: Any, device: Device) -> dict[str, Any]:
    if device == "cpu":
        return {"kind": "cpu", "name": _cpu_model()}
    if torch is None or not torch.cuda.is_available():
        return {"kind": "cuda", "name": "none found"}
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    return {
        "kind": "cuda",
        "name": properties.name,
        "capability": f"sm{properties.major}{properties.minor}",
        "memory_bytes": int(properties.total_memory),
        "multiprocessors_count": int(properties.multi_processor_count),
        "driver": _driver(),
        "cuda": torch.version.cuda or "none",
        "cudnn": _cudnn(torch),
    }


def _driver() -> str:
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version"):
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[0].strip()
        except (OSError, IndexError):
            continue
        words = [w for w in text.split() if w[:1].isdigit() and "." in w]
        if words:
            return words[0]
    return "unknown"


def _cudnn(torch: Any) -> str:
    version = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    return "none" if version is None else str(version)


def _flags(torch: Any, device: Device) -> dict[str, Any]:
    """Flags that can change bits, as they are in force."""
    if torch is None:
        return {}
    flags: dict[str, Any] = {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "threads_count": torch.get_num_threads(),
        "default_dtype": str(torch.get_default_dtype()),
        "flush_denormal": _flushes(torch),
    }
    if device == "cuda":
        flags |= {
            "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "matmul_allow_bf16_reduced_precision": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
            "matmul_allow_fp16_reduced_precision": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "cudnn_deterministic": torch.backends.cudnn.deterministic,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
        }
    return flags


def _flushes(torch: Any) -> bool:
    """Whether the CPU flushes FP32 subnormals to zero: tried, since torch has no getter."""
    smallest_normal = torch.tensor(2.0**-126, dtype=torch.float32)
    return bool((smallest_normal / 2 == 0).item())


def _cpu_model() -> str:
    try:
        for row in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if row.startswith(("model name", "Hardware", "Model")):
                return row.split(":", 1)[1].strip()
    except (OSError, IndexError):
        pass
    return platform.processor() or platform.machine() or "unknown"


def _code(checkout: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Commit and state of the code: `diff` hashes the uncommitted changes, so that two dirty trees differ."""
    places = [Path(checkout)] if checkout is not None else [Path.cwd(), Path(numcheck.__file__).parent]
    for place in places:
        commit = _git(place, "rev-parse", "HEAD")
        # An environment inside somebody's repository is ignored by it, and its commit says nothing of numcheck.
        if not commit or (checkout is None and _git(place, "check-ignore", str(place))):
            continue
        changes = _git(place, "diff", "HEAD", "--no-ext-diff") or ""
        status = _git(place, "status", "--porcelain") or ""
        dirty = bool(status)
        facts: dict[str, Any] = {"commit": commit, "dirty": dirty}
        if dirty:
            facts["diff"] = hashlib.sha256(f"{status}\n{changes}".encode()).hexdigest()[:12]
        return facts
    return {"commit": "unknown", "dirty": False}


def _git(place: Path, *arguments: str) -> str | None:
    """What git prints, or None where there is no git, no repository, or no answer in time."""
    command = ["git", "--no-optional-locks", "-C", str(place), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None
