"""A session: interpreted kernels under one Order, with every repair in force, watched, and undone at the end."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import triton
import triton.language as tl
from torch.utils._python_dispatch import _disable_current_modes
from triton.runtime import interpreter as upstream
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from numcheck.errors import Refused
from numcheck.evidence import Footprint, Launch
from numcheck.interpreter import repairs, speed
from numcheck.interpreter.footprints import footprints
from numcheck.interpreter.memory import Memory
from numcheck.interpreter.patch import Patches
from numcheck.interpreter.pins import pinned
from numcheck.interpreter.programs import Programs
from numcheck.interpreter.spans import reaches
from numcheck.interpreter.switch import SWITCH, active
from numcheck.order import Order

if TYPE_CHECKING:
    from torch import Tensor


class Session:
    """What interpreted kernels did: `launches` in order, accesses out of bounds, and the footprints."""

    def __init__(
        self, order: Order, measure: bool, check_overflow: bool, silent: str = "", given: Iterable[Tensor] = ()
    ) -> None:
        self.launches: list[Launch] = []
        self.repairs: tuple[str, ...] = tuple(repairs.REPAIRS)
        self.measure = measure
        self._silent = silent
        self._programs = Programs(order)
        self._check_overflow = check_overflow
        self._memory = Memory(self._programs, measure, poisoned_integers=not check_overflow, known=reaches(given))
        self._running = ""

    def findings(self, outputs: Mapping[str, Tensor] | None = None) -> tuple[str, ...]:
        """Accesses beyond the memory that a launch was given; an overrun output is named."""
        names = {t.untyped_storage().data_ptr(): name for name, t in (outputs or {}).items()}
        return tuple(
            f"{text}, which is output {names[start]}" if start in names else text
            for text, start in self._memory.findings
        )

    def footprints(
        self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor], born: Mapping[int, int] | None = None
    ) -> dict[str, Footprint]:
        """Readers and writers of each named tensor; empty where the session did not measure."""
        return footprints(self._memory.touched, outputs, inputs, born or {})

    def install(self, patches: Patches) -> None:
        """Put repairs, order, hooks and speed-ups in force on the interpreter."""
        builder = upstream.interpreter_builder
        repairs.install(patches)
        speed.install(patches)
        self._memory.install(builder, patches)
        self._programs.install(builder, patches, self._memory.patience.start)
        # Without `debug` upstream computes the overflow checks and then drops their assertion.
        checks = dataclasses.replace(
            builder.options, sanitize_overflow=self._check_overflow, debug=self._check_overflow
        )
        patches.set(builder, "options", checks)
        patches.set(upstream.InterpretedFunction, "run", self._run(upstream.InterpretedFunction.run))
        patches.set(JITFunction, "run", _refuse_compiled)
        patches.set(Autotuner, "run", _refuse_unpinned(Autotuner.run))

    def _run(self, original: Any) -> Any:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup:
                return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            if self._silent and fnmatch.fnmatch(kernel.__name__, self._silent):
                return None
            if self._running:
                raise Refused(f"{kernel.__name__} is launched while {self._running} runs; launches do not nest")
            self._running = kernel.__name__
            self._programs.forget()
            self._memory.begin(kernel.__name__, {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs})
            try:
                # A device warns of no overflow either; under a host's -W error a warning would be an exception.
                with _disable_current_modes(), np.errstate(all="ignore"):
                    return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            finally:
                self._running = ""
                grid = self._programs.grid
                if grid is not None:
                    self.launches.append(Launch(kernel.__name__, grid))
                    self._memory.end(math.prod(grid))

        return run


@contextmanager
def session(
    order: Order | None = None,
    measure: bool = False,
    *,
    check_overflow: bool = False,
    pins: Sequence[tuple[Any, int]] = (),
    silent: str = "",
    given: Iterable[Tensor] = (),
) -> Iterator[Session]:
    """Run interpreted kernels inside: repaired, in this order, and nothing of it left afterwards.

    measure: keep readers and writers of every address. check_overflow: assert that no integer operation overflows, and
    what kernels assert themselves (about 1.8 times slower; worth it once a Case). pins: (autotuned kernel, its config).
    silent: launches of kernels whose name fits this pattern do nothing and are not listed. given: the caller's tensors,
    before whose first and after whose last element there is nothing to read.

    Raises Refused where the repairs do not hold on this Triton, where sessions nest, and for launches of kernels that
    were compiled, autotuned without a pin, or nested; InvalidSpec for a bad pin.
    """
    from numcheck.interpreter import probes

    if active() and (wrong := probes.broken()):
        raise Refused(f"Triton {triton.__version__} is unknown to numcheck: {wrong[0]}; use 3.6 to 3.9")
    with unchecked(
        order or Order(), measure, check_overflow=check_overflow, pins=pins, silent=silent, given=given
    ) as opened:
        yield opened


@contextmanager
def unchecked(
    order: Order,
    measure: bool = False,
    *,
    check_overflow: bool = False,
    pins: Sequence[tuple[Any, int]] = (),
    silent: str = "",
    given: Iterable[Tensor] = (),
) -> Iterator[Session]:
    """A session without asking the probes whether the repairs hold; what the probes themselves use."""
    if "cast_impl" in vars(upstream.interpreter_builder):
        raise Refused("an interpreter session is already open; sessions do not nest")
    opened = Session(order, measure, check_overflow, silent, given)
    patches = Patches()
    with pinned(pins):
        try:
            # Once for the session rather than for every launch and every call of a jitted helper.
            everywhere = types.SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
            language = upstream._patch_lang(everywhere)
            try:
                patches.set(upstream, "_patch_lang", lambda fn: _Unpatched())
                opened.install(patches)
                yield opened
            finally:
                patches.restore()
                language.restore()
        finally:
            patches.restore()


class _Unpatched:
    """Stands for a patch scope that changed nothing."""

    def restore(self) -> None:
        """Nothing to restore."""


def _refuse_compiled(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    name = getattr(kernel, "__name__", kernel)
    raise Refused(
        f"kernel {name} was jitted before the interpreter was chosen, so it can only run on a GPU; set {SWITCH}=1 in "
        "the environment, or call numcheck.interpreter.enable() before the module that defines it is imported"
    )


def _refuse_unpinned(original: Any) -> Any:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if len(kernel.configs) > 1:
            raise Refused(
                f"autotuned kernel {kernel.base_fn.__name__} has {len(kernel.configs)} configs and the interpreter "
                "cannot time them; judge each as a pinned variant: spec.pinned(kernel)"
            )
        return original(kernel, *args, **kwargs)

    return run
