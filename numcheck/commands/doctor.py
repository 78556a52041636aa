"""`numcheck doctor`: what can run here, what cannot, and why."""

from __future__ import annotations

import argparse
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from numcheck.capability import Unavailable
from numcheck.commands import common
from numcheck.device import driver_present
from numcheck.errors import InvalidSpec, MissingDependency

PACKAGES = (
    ("torch", "torch", "judging (not for rendering records)"),
    ("triton", "triton", "Triton kernels"),
    ("pytest-xdist", "xdist", "-n workers"),
    ("nvidia-cudnn-frontend", "cudnn", "cuDNN kernels"),
)


def main(options: argparse.Namespace) -> int:
    """Print what was found; 0 where the shipped judge can run, 1 where it lacks something."""
    facts: dict[str, Any] = {"packages": [package(*row) for row in PACKAGES], "gpu": driver_present()}
    can_judge = importlib.util.find_spec("torch") is not None
    if can_judge:
        facts |= judging(options)
    if options.json:
        common.print_json(facts)
    else:
        show(facts)
    return 0 if can_judge else 1


def package(distribution: str, module: str, use: str) -> dict[str, Any]:
    """Whether a package is installed, its version, and what it is for."""
    try:
        found: str | None = version(distribution)
    except PackageNotFoundError:
        found = None
    return {"name": distribution, "version": found, "module": module, "for": use}


def judging(options: argparse.Namespace) -> dict[str, Any]:
    """Device, environment, interpreter probes and, kernel by kernel, what is available."""
    from numcheck.environment import environment

    device = common.prepare(options)
    facts: dict[str, Any] = {"device": device, "environment": environment(device, variables=os.environ)}
    if device == "cpu" and importlib.util.find_spec("triton") is not None:
        from numcheck.interpreter import probe

        facts["interpreter"] = [p.to_json() for p in probe()]
    try:
        specs = common.specs(options)
    except InvalidSpec:
        if options.specs:
            raise
        # Away from this repository there are no shipped kernels, and what the machine can do is still worth saying.
        facts["kernels"] = []
        facts["problem"] = "no kernels looked at: name a module or a file of them with --specs"
        return facts
    except (MissingDependency, ImportError) as error:
        facts["kernels"] = []
        facts["problem"] = f"kernels could not be loaded: {error}"
        return facts
    facts["kernels"] = [{"name": s.name, "available": _available(s.available(device))} for s in specs]
    return facts


def _available(capability: object) -> str:
    if isinstance(capability, Unavailable):
        return f"no: {capability.reason}" + (f" (needs {capability.needs})" if capability.needs else "")
    return "yes"


def show(facts: dict[str, Any]) -> None:
    """The same for a person."""
    for entry in facts["packages"]:
        state = entry["version"] or f"not installed; pip install {entry['name']}"
        print(f"{entry['name']:<24}{state}  ({entry['for']})")
    print(f"{'NVIDIA driver':<24}{'answers' if facts['gpu'] else 'none: Triton kernels run in the interpreter'}")
    if "device" not in facts:
        print("torch is missing, so nothing can be judged here; records can be rendered and merged")
        return
    print(f"{'judging on':<24}{facts['device']}")
    for probe in facts.get("interpreter", ()):
        if probe["status"] != "ok":
            print(f"interpreter {probe['op']} {probe['dtype']}: {probe['status']} {probe['note']}".rstrip())
    for kernel in facts["kernels"]:
        print(f"{kernel['name']:<40}{kernel['available']}")
    if "problem" in facts:
        print(facts["problem"])
