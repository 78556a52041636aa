"""Execute: one run of a kernel on one Sample, with what it left behind."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from numcheck import flags
from numcheck.clock import timed
from numcheck.errors import RAISED
from numcheck.evidence import Evidence
from numcheck.guard import Guard, allocator_peak
from numcheck.order import Order
from numcheck.snapshot import Snapshot, aliases
from numcheck.spec import KernelSpec
from numcheck.ulp import torch_dtype
from numcheck.watch import Watch, watch

if TYPE_CHECKING:
    from numcheck.case import Case, Fact
    from numcheck.oracle import Output


class Given(Protocol):
    """What is run on: `numcheck.sample.Sample`, or anything with these four."""

    @property
    def case(self) -> Case:
        """The Case."""

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The oracle's inputs by name, those that the Case has."""

    @property
    def cotangents(self) -> Mapping[str, Tensor]:
        """The cotangents by name (`d_` + output)."""

    @property
    def scalars(self) -> Mapping[str, Fact]:
        """The oracle's scalars by name."""


@dataclass(frozen=True)
class Run:
    """One execution: forward outputs and gradients by name, the saved ones, Evidence and what the guard found.

    findings: one sentence each for memory that should not have been touched, or was left unwritten. error: an
    exception of the kernel or a broken calling convention, as "Type: message (at file:line in function)"; "" if none.
    """

    outputs: Mapping[str, Tensor] = field(default_factory=dict)
    saved: Mapping[str, Tensor] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=Evidence)
    findings: tuple[str, ...] = ()
    error: str = ""
    order: Order = field(default_factory=Order)


# Whether torch records the operators of a call, as its modes for it go.
Autograd = Literal["off", "on", "inference"]
_RECORDING: dict[Autograd, Callable[[], AbstractContextManager[object]]] = {
    "off": torch.no_grad,
    "on": torch.enable_grad,
    "inference": torch.inference_mode,
}


@timed("kernel")
def execute(
    spec: KernelSpec,
    sample: Given,
    *,
    device: str = "cpu",
    order: Order | None = None,
    measure: bool = False,
    guard: bool = True,
    saved: Mapping[str, Tensor] | None = None,
    check_overflow: bool = False,
    dirty: int | None = None,
    silent: str = "",
    autograd: Autograd = "off",
) -> Run:
    """Call the spec's forward, then its vjp (see KernelSpec for their keywords), and say what happened.

    device: "cpu" (Triton kernels in the interpreter) or "cuda"; the sample's tensors are on it already.
    order: of programs and lanes, in the interpreter. measure: readers and writers per address (interpreter), kernel
    names by profiler (GPU). saved: taken for the saved outputs instead of the forward's own.
    guard: poison and margins around what the kernel allocates, peak bytes, torch operators; False leaves the call
    alone (for compiled kernels and timing; a GPU's peak then comes from its allocator).
    dirty: fill fresh memory with the leftovers of that number instead of poison. check_overflow: see
    `numcheck.interpreter`.
    silent: a name pattern of interpreted kernels whose launches do nothing, to see what depends on them.
    autograd: whether torch records operators meanwhile ("on"), does not, or is in inference mode.

    The sample's tensors come back as they were, whatever the kernel did to them. Never raises for what a kernel does.
    """
    order = order or Order()
    given = {**sample.inputs, **sample.cotangents, **(saved or {})}
    snapshot = Snapshot.of(given)
    call = _Call(spec, sample, saved, watched=guard)
    seen = watch(
        device,
        order,
        measure=measure,
        profile=measure or any(isinstance(name, str) for name in spec.must_run),
        check_overflow=check_overflow,
        pins=spec.pins,
        silent=silent,
        given=tuple(given.values()),
    )
    mode = _mode(guard, dirty, seen)
    error, peak, leaked = "", 0, []
    try:
        with ExitStack() as stack:
            stack.enter_context(_RECORDING[autograd]())
            leaked = stack.enter_context(flags.kept())
            allocated = stack.enter_context(allocator_peak(device))
            stack.enter_context(seen.open())
            if mode is not None:
                mode.know(given.values())
                stack.enter_context(mode)
            call.run()
            if device == "cuda":
                torch.cuda.synchronize()
            peak = allocated()
    except RAISED as exception:
        error = describe(exception)
    call.detach()
    changed = snapshot.restore()
    if mode is not None and not changed:
        changed = [f"{name} wrote into an input, whose bits were put back afterwards" for name in mode.written]
    findings = [
        *leaked,
        *seen.findings(call.outputs),
        *call.findings,
        *changed,
        *aliases(call.outputs, given),
    ]
    error = error or call.broken()
    if mode is not None and not error:
        findings += mode.findings(call.outputs)
    evidence = Evidence(
        launches=seen.launches(),
        backend=seen.backend(),
        operators=tuple(mode.operators) if mode is not None else (),
        footprints=seen.footprints(call.outputs, given, mode.born if mode is not None else {}),
        repairs=seen.repairs(),
        peak_bytes=mode.peak if mode is not None else peak,
    )
    return Run(call.outputs, call.saved, evidence, tuple(findings), error, order)


def _mode(guard: bool, dirty: int | None, seen: Watch) -> Guard | None:
    if not guard:
        return None
    return Guard("poison" if dirty is None else "dirty", dirty or 0, lambda: len(seen.launches()))


class _Call:
    """One forward and one vjp by the oracle's names; what came back, and what is wrong with it."""

    def __init__(self, spec: KernelSpec, sample: Given, saved: Mapping[str, Tensor] | None, watched: bool) -> None:
        self._spec, self._sample, self._given, self._watched = spec, sample, saved, watched
        self.outputs: dict[str, Tensor] = {}
        self.saved: dict[str, Tensor] = dict(saved or {})
        self.findings: list[str] = []
        self._problems: list[str] = []

    def run(self) -> None:
        spec, oracle, case = self._spec, self._spec.oracle, self._sample.case
        given = {**self._sample.inputs, **self._sample.cotangents, **self._sample.scalars}
        if spec.forward is not None:
            self._take("forward", spec.forward(**oracle.for_forward(given)), oracle.outputs_for(case))
            if self._given is None:
                self.saved = {name: self.outputs[name] for name in oracle.saved if name in self.outputs}
        gradients = oracle.gradients_for(case)
        if spec.vjp is not None and gradients and not self._problems:
            missing = [name for name in oracle.saved_for(case) if name not in self.saved]
            if missing:
                self._problems.append(f"vjp takes saved output(s) {', '.join(missing)}: pass them as saved=")
                return
            kept = self._keep()
            returned = spec.vjp(**oracle.for_vjp(given, self.saved))
            self.findings += kept.restore("output")
            self._take("vjp", returned, gradients)

    def _keep(self) -> Snapshot:
        """The forward's outputs before the vjp runs: it may read the saved ones, and change none."""
        return Snapshot.of(self.outputs if self._watched else {})

    def detach(self) -> None:
        """Drop any graph that a kernel left behind; outside the guard, so that it is not counted as an operator."""
        self.outputs = {name: value.detach() for name, value in self.outputs.items()}
        self.saved = {name: value.detach() for name, value in self.saved.items()}

    def broken(self) -> str:
        """What broke the calling convention, or ""."""
        return "CallingConvention: " + "; ".join(self._problems) if self._problems else ""

    def _take(self, callable_name: str, returned: object, declared: tuple[Output, ...]) -> None:
        names = [o.name for o in declared]
        if not isinstance(returned, Mapping):
            self._problems.append(
                f"{callable_name} returned {type(returned).__name__}; it returns a dict of {', '.join(names)}"
            )
            return
        for extra in [str(name) for name, value in returned.items() if name not in names and value is not None]:
            self._problems.append(
                f"{callable_name} returned {extra!r}; {self._spec.oracle.name} has {', '.join(names)} in this Case"
            )
        for output in declared:
            if output.name not in returned:
                self._problems.append(f"{callable_name} did not return {output.name}")
                continue
            value = returned[output.name]
            problem = self._mismatch(output, value)
            if problem:
                self._problems.append(f"{callable_name} returned {output.name} {problem}")
            if isinstance(value, Tensor):
                self.outputs[output.name] = value

    def _mismatch(self, output: Output, value: object) -> str:
        if not isinstance(value, Tensor):
            return f"as {type(value).__name__}, not a tensor"
        shape, dtype = output.shape(self._sample.case), torch_dtype(output.dtype_for(self._sample.case))
        if tuple(value.shape) != tuple(shape):
            return f"of shape {tuple(value.shape)}, not {tuple(shape)}"
        if value.dtype != dtype:
            return f"as {_plain(value.dtype)}, not {_plain(dtype)}"
        return ""


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(exception: BaseException) -> str:
    """An exception as "Type: message (at file:line in function)", the interpreter's wrapping taken off."""
    while type(exception).__name__ == "InterpreterError" and exception.__cause__ is not None:
        exception = exception.__cause__
    text = f"{type(exception).__name__}: {exception}"
    frames = traceback.extract_tb(exception.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in _FOREIGN)]
    for frame in (own or list(frames))[-1:]:
        text += f" (at {frame.filename}:{frame.lineno} in {frame.name})"
    return text


# Frames of these are how a kernel got there, not where it is.
_FOREIGN = (
    "/site-packages/",
    "/dist-packages/",
    "/numcheck/interpreter/",
    "/numcheck/execute.py",
    "/numcheck/guard.py",
)
