"""Watch: who sees the launches of a run. In the interpreter a session, on a GPU a wrapped launch and the profiler."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from numcheck import interpreter
from numcheck.errors import Refused
from numcheck.evidence import Backend, Footprint, Launch
from numcheck.order import Order

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.interpreter.sessions import Session

# Kernels with which the guard itself fills memory: torch's fills of the integers that stand for bit patterns.
_GUARD_FILLS = tuple(f"FillFunctor<{kind}>" for kind in ("unsigned char", "short", "int", "long"))

Pins = Sequence[tuple[Any, int]]


class Watch(Protocol):
    """Sees one run: `with watch.open(): ...`, then asks."""

    def open(self) -> Any:
        """A context manager around the run."""

    def launches(self) -> tuple[Launch, ...]:
        """Kernel launches so far, in order."""

    def backend(self) -> Backend:
        """Where they ran."""

    def findings(self, outputs: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Memory that was touched and should not have been."""

    def repairs(self) -> tuple[str, ...]:
        """Interpreter repairs in force."""

    def footprints(
        self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor], born: Mapping[int, int]
    ) -> dict[str, Footprint]:
        """Measured readers and writers by tensor name."""


def watch(
    device: str,
    order: Order,
    *,
    measure: bool,
    profile: bool,
    check_overflow: bool,
    pins: Pins,
    silent: str = "",
    given: Sequence[Tensor] = (),
) -> Watch:
    """The watch for a run on `device`; `measure`, `silent` and `given` are the interpreter's, `profile` the GPU's."""
    if device == "cuda":
        return OnDevice(profile, pins)
    return OnCpu(order, measure, check_overflow, pins, silent, given)


class OnCpu:
    """Runs on the CPU: Triton kernels in an interpreter session, torch operators as they are."""

    def __init__(
        self,
        order: Order,
        measure: bool,
        check_overflow: bool,
        pins: Pins,
        silent: str = "",
        given: Sequence[Tensor] = (),
    ) -> None:
        self._silent, self._given = silent, given
        self._order, self._measure, self._check_overflow, self._pins = order, measure, check_overflow, pins
        self._session: Session | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """An interpreter session where the interpreter is chosen; otherwise launches are refused, with the remedy."""
        if not _installed():
            yield
            return
        if not interpreter.active():
            with _replaced_run("JITFunction", _refuse_on_cpu):
                yield
            return
        with interpreter.session(
            self._order,
            self._measure,
            check_overflow=self._check_overflow,
            pins=self._pins,
            silent=self._silent,
            given=self._given,
        ) as session:
            self._session = session
            yield

    def launches(self) -> tuple[Launch, ...]:
        """Interpreted launches."""
        return tuple(self._session.launches) if self._session else ()

    def backend(self) -> Backend:
        """ "interpreter" where a kernel was launched, else "torch"."""
        return "interpreter" if self.launches() else "torch"

    def findings(self, outputs: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Accesses out of bounds."""
        return self._session.findings(outputs) if self._session else ()

    def repairs(self) -> tuple[str, ...]:
        """The interpreter's repairs, where a kernel was launched."""
        return self._session.repairs if self._session and self.launches() else ()

    def footprints(
        self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor], born: Mapping[int, int]
    ) -> dict[str, Footprint]:
        """As measured; empty where the run did not measure."""
        return self._session.footprints(outputs, inputs, born) if self._session and self._measure else {}


class OnDevice:
    """Runs on a GPU: Triton launches with their grids, and every kernel's name where it profiles."""

    def __init__(self, profile: bool, pins: Pins) -> None:
        self._profile, self._pins = profile, pins
        self._triton: list[list[Any]] = []
        self._names: list[str] = []

    @contextmanager
    def open(self) -> Iterator[None]:
        """Wrapped launches; with `profile`, torch's profiler around the run."""
        if not _installed():
            with self._profiled():
                yield
            return
        from numcheck.interpreter.pins import pinned

        with (
            pinned(self._pins),
            _replaced_run("JITFunction", self._recorded),
            _replaced_run("InterpretedFunction", _refuse_on_device),
            self._profiled(),
        ):
            yield

    @contextmanager
    def _profiled(self) -> Iterator[None]:
        if not self._profile:
            yield
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            yield
            torch.cuda.synchronize()
        names = [e.name for e in profiler.events() if e.device_type.name == "CUDA"]
        self._names = [name for name in names if not any(fill in name for fill in _GUARD_FILLS)]

    def _recorded(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            if warmup:
                return original(kernel, *args, grid=grid, warmup=warmup, **kwargs)
            entry = [kernel.__name__, None]
            self._triton.append(entry)

            def known(meta: Any) -> Any:
                entry[1] = grid(meta) if callable(grid) else grid
                return entry[1]

            return original(kernel, *args, grid=known, warmup=warmup, **kwargs)

        return run

    def launches(self) -> tuple[Launch, ...]:
        """Triton launches with their grids, then other kernels that the profiler saw."""
        triton = [Launch(name, _whole(grid)) for name, grid in self._triton]
        known = {launch.kernel for launch in triton}
        return (*triton, *(Launch(name) for name in self._names if name not in known))

    def backend(self) -> Backend:
        """Always "device"."""
        return "device"

    def findings(self, outputs: Mapping[str, Tensor]) -> tuple[str, ...]:
        """Nothing: a device's accesses are not seen."""
        return ()

    def repairs(self) -> tuple[str, ...]:
        """None."""
        return ()

    def footprints(
        self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor], born: Mapping[int, int]
    ) -> dict[str, Footprint]:
        """Nothing: a spec's ownership map stands in."""
        return {}


def _whole(grid: Any) -> tuple[int, ...] | None:
    if grid is None:
        return None
    sizes = tuple(int(n) for n in grid) if isinstance(grid, tuple | list) else (int(grid),)
    return (*sizes, *([1] * (3 - len(sizes))))


def _installed() -> bool:
    return "triton" in sys.modules or importlib.util.find_spec("triton") is not None


@contextmanager
def _replaced_run(kind: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """`run` of Triton's class `kind` replaced while inside, where Triton is loaded at all."""
    module = {"JITFunction": "triton.runtime.jit", "InterpretedFunction": "triton.runtime.interpreter"}[kind]
    owner = getattr(sys.modules.get(module), kind, None)
    if owner is None:
        yield
        return
    original = owner.run
    owner.run = make(original)
    try:
        yield
    finally:
        owner.run = original


def _refuse_on_cpu(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        raise Refused(
            f"kernel {kernel.__name__} is compiled for a GPU and this run is on the CPU; choose the interpreter before "
            "the kernel is imported (TRITON_INTERPRET=1, or numcheck.interpreter.enable()), or run on cuda"
        )

    return run


def _refuse_on_device(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        raise Refused(
            f"kernel {kernel.__name__} was imported for the interpreter and this run is on a GPU; unset "
            "TRITON_INTERPRET and start again"
        )

    return run
