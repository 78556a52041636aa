"""Fresh: the bits of one Case from a process of its own. `python -m numcheck.fresh` is the entry that it starts."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numcheck import interpreter
from numcheck.capability import Device
from numcheck.case import Case
from numcheck.errors import NumcheckError
from numcheck.execute import execute
from numcheck.load import find
from numcheck.sample import sample
from numcheck.spec import KernelSpec

# Importing torch and Triton and compiling one small kernel takes seconds; a process that needs minutes hangs.
SECONDS = 300
_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Fresh:
    """What a fresh process computed: its outputs on the CPU, or the error that the kernel raised there."""

    outputs: Mapping[str, Tensor]
    error: str = ""


class NotFresh(NumcheckError, RuntimeError):
    """A fresh process could not run this spec's own kernels; the message says why."""


def fresh(spec: KernelSpec, case: Case, device: Device, saved: Mapping[str, Tensor] | None = None) -> Fresh:
    """What a newly started Python computes for the same spec, Case and device (and `saved` outputs, where given).

    Raises NotFresh where the process cannot find the spec, finds another kernel under its name, or dies.
    """
    if not spec.origin:
        raise NotFresh("the spec does not say where it was loaded from (KernelSpec.origin)")
    request = {
        "specs": spec.origin,
        "spec": spec.name,
        "case": case.to_json(),
        "device": device,
        "interpret": interpreter.active(),
        "path": [str(Path(entry).resolve()) for entry in sys.path],
    }
    with tempfile.TemporaryDirectory() as folder:
        outputs, given = Path(folder) / "outputs.pt", Path(folder) / "saved.pt"
        torch.save(None if saved is None else {name: t.cpu() for name, t in saved.items()}, given)
        answer = _answer(_ask({**request, "outputs": str(outputs), "saved": str(given)}))
        if answer["identity"] != identity(spec):
            raise NotFresh(f"{spec.origin} holds another kernel under the name {spec.name!r}; this is a variant of it")
        return Fresh(torch.load(outputs, weights_only=True), answer["error"])


def _ask(request: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "numcheck.fresh"],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            cwd=Path(__file__).resolve().parent.parent,
        )
    except subprocess.TimeoutExpired:
        raise NotFresh(f"the fresh process gave no answer in {SECONDS} s") from None


def _answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    lines = done.stdout.strip().splitlines()
    try:
        return dict(json.loads(lines[-1]))
    except (IndexError, json.JSONDecodeError):
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise NotFresh(f"the fresh process ended with code {done.returncode}: {last[0]}") from None


def identity(spec: KernelSpec) -> list[str]:
    """What tells a spec's callables from those of a variant with the same name: file, line, name and plain settings."""
    return [_identity(spec.forward), _identity(spec.vjp), *(f"{_identity(k)}:{i}" for k, i in spec.pins)]


def _identity(function: Callable[..., Any] | Any) -> str:
    if isinstance(function, functools.partial):
        settings = [*map(_plain, function.args), *(f"{k}={_plain(v)}" for k, v in sorted(function.keywords.items()))]
        return f"{_identity(function.func)}({', '.join(settings)})"
    code = getattr(function, "__code__", None)
    if code is None:
        return f"{type(function).__module__}.{type(function).__qualname__}"
    cells = [_plain(cell.cell_contents) for cell in function.__closure__ or ()]
    defaults = [_plain(value) for value in function.__defaults__ or ()]
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}:{code.co_qualname}{cells}{defaults}"


def _plain(value: Any) -> str:
    return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__


def main() -> None:
    """Read one request from stdin, run it, save the outputs, and print one line of JSON: identity and error."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    if request["interpret"]:
        interpreter.enable()
    spec = find(request["specs"], request["spec"])
    device: Device = request["device"]
    drawn = sample(spec.oracle, Case.from_json(request["case"]), device=device)
    given = torch.load(request["saved"], weights_only=True)
    saved = None if given is None else {name: t.to(device) for name, t in given.items()}
    run = execute(spec, drawn, device=device, saved=saved)
    torch.save({name: tensor.cpu() for name, tensor in run.outputs.items()}, request["outputs"])
    print(json.dumps({"identity": identity(spec), "error": run.error}), flush=True)


if __name__ == "__main__":
    main()
