"""KernelSpec: a named claim. These callables compute this Oracle under this Contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from numcheck.capability import Available, Capability, Device, Probe, Unavailable, always
from numcheck.case import Case
from numcheck.contract import Contract
from numcheck.errors import RAISED, InvalidSpec
from numcheck.oracle import Oracle

if TYPE_CHECKING:
    from torch import Tensor

Kernel = Callable[..., dict[str, "Tensor"]]


T = TypeVar("T")


def _said(value: object) -> str:
    return repr(value) if isinstance(value, str) else f"a {type(value).__name__}"


def _launches(case: Case) -> bool:
    return all(value > 0 for _, value in case.sizes)


@dataclass(frozen=True)
class KernelSpec:
    """A kernel and what it promises.

    forward(**inputs, **scalars) -> {output: tensor}, and for the gradients
    vjp(**inputs, **scalars, **saved, **cotangents) -> {d_input: tensor}; what the Case does not have comes as None.
    Either may be None: a backward alone gets its saved outputs from the oracle, rounded once.

    must_run: Triton functions or name patterns (fnmatch) of kernels that have to be seen running; () means
      torch operators, which are recorded as Evidence.
    writers(case) -> {output: writers per address}: the ownership map, for devices where writers cannot be measured.
    launches(case): whether a Case launches anything (a Case of zero rows does not).
    compiled: the spec claims that torch.compile gives the same bits.
    agrees: output -> another spec of the same oracle whose bits this one gives there; the invariance law runs both.
    caps: output -> flat relL2 cap, added to the derived gates and never in their place.
    saved: what the VJP is judged on: its own forward's saved outputs as they rounded ("own", the operator alone), or
      the exact ones ("recomputed": forward and VJP as one chain).
    pins: autotuned kernels held to one of their configs; made by `pinned`.
    origin: the specs module or path that it was loaded from ("" where nobody said), for a replay in a fresh process.
    """

    name: str
    oracle: Oracle = field(repr=False)
    forward: Kernel | None = None
    vjp: Kernel | None = None
    contract: Contract = field(default_factory=Contract)
    must_run: tuple[object, ...] = ()
    capability: Probe = always
    writers: Callable[[Case], Mapping[str, int]] | None = None
    launches: Callable[[Case], bool] = _launches
    compiled: bool = False
    caps: Mapping[str, float] = field(default_factory=dict)
    agrees: Mapping[str, KernelSpec] = field(default_factory=dict)
    pins: tuple[tuple[Any, int], ...] = ()
    saved: Literal["own", "recomputed"] = "own"
    doc: str = ""
    origin: str = ""

    def __post_init__(self) -> None:
        self._check_types()
        if self.forward is None and self.vjp is None:
            raise InvalidSpec(f"spec {self.name}: give it a forward, a vjp, or both")
        if self.saved not in ("own", "recomputed"):
            raise InvalidSpec(f"spec {self.name}: saved is {self.saved!r}; allowed: 'own', 'recomputed'")
        if self.saved == "recomputed" and not (self.forward and self.vjp):
            raise InvalidSpec(f"spec {self.name}: saved='recomputed' judges forward and vjp as one; give it both")
        known = {o.name for o in self.oracle.results}
        order = {} if callable(self.contract.order) else self.contract.order
        for output in (*order, *self.caps, *self.agrees):
            if output not in known:
                raise InvalidSpec(
                    f"spec {self.name}: no output {output!r}; {self.oracle.name} has {', '.join(sorted(known))}"
                )

    def _check_types(self) -> None:
        """What a slip in a spec file would otherwise turn into a crash, or a silence, much later."""
        if not isinstance(self.name, str) or not self.name.isprintable() or not self.name.strip():
            raise InvalidSpec(f"spec {self.name!r}: a name is printable text, since tests and reports show it")
        for field_, value, kind in (("oracle", self.oracle, Oracle), ("contract", self.contract, Contract)):
            if not isinstance(value, kind):
                raise InvalidSpec(f"spec {self.name}: {field_} is {value!r}; give a numcheck.{kind.__name__}")
        for field_ in ("forward", "vjp", "writers", "capability", "launches"):
            value = getattr(self, field_)
            optional = field_ not in ("capability", "launches")
            if not callable(value) and not (optional and value is None):
                raise InvalidSpec(f"spec {self.name}: {field_} is {value!r}; give a function")
        if not isinstance(self.must_run, tuple | list):
            # A jitted function can be subscripted without end, and a string is a sequence of letters.
            raise InvalidSpec(f"spec {self.name}: must_run is {_said(self.must_run)}; give a tuple: must_run=(kernel,)")
        for kernel in self.must_run:
            if not ((isinstance(kernel, str) and kernel) or hasattr(kernel, "__name__") or hasattr(kernel, "fn")):
                raise InvalidSpec(
                    f"spec {self.name}: must_run holds {kernel!r}; give Triton functions or name patterns"
                )
        for output, other in self.agrees.items():
            if not isinstance(other, KernelSpec) or other.oracle.name != self.oracle.name or output not in other.judged:
                raise InvalidSpec(
                    f"spec {self.name}: {output} agrees with {other!r}; give a KernelSpec of {self.oracle.name} that "
                    f"computes {output}"
                )
        for output, cap in self.caps.items():
            if isinstance(cap, bool) or not isinstance(cap, int | float) or not cap > 0:
                raise InvalidSpec(f"spec {self.name}: the cap of {output} is {cap!r}; give a relL2 above 0")

    @property
    def judged(self) -> tuple[str, ...]:
        """Names of the outputs that this spec computes, in whatever Case has them."""
        forward = [o.name for o in self.oracle.outputs] if self.forward else []
        backward = [g.name for g in self.oracle.gradients] if self.vjp else []
        return (*forward, *backward)

    def judged_for(self, case: Case) -> tuple[str, ...]:
        """Names of the outputs that this spec computes for `case`, which may lack optional ones."""
        asked = {r.name for r in self.oracle.results_for(case)}
        return tuple(name for name in self.judged if name in asked)

    def __repr__(self) -> str:
        """The name alone: Hypothesis writes its arguments out, and a spec with its oracle whole takes 45 kB."""
        return f"KernelSpec({self.name!r})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """As IPython's and Hypothesis's printers ask, which else write every field of a dataclass out."""
        printer.text(repr(self))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data dtypes that the spec takes: the Contract's, or those that its roundings leave open.

        An output of the data's dtype that always rounds to bf16 admits bf16 Cases only.
        """
        if self.contract.dtypes:
            return self.contract.dtypes
        return tuple(d for d in self.oracle.space.dtypes if self._fits(d))

    def _fits(self, dtype: str) -> bool:
        if callable(self.contract.rounds):
            return True
        for name, rounding in self.contract.rounds.items():
            target = rounding if isinstance(rounding, str) else rounding.dtype
            is_data = any(o.name == name and o.dtype == "data" for o in self.oracle.results)
            if is_data and target not in ("data", dtype):
                return False
        return True

    def illegal(self, case: Case) -> str | None:
        """Why `case` is outside the promise, or None where it is inside."""
        reason = self._reason("space.legal", self.oracle.space.legal, case)
        if reason is None and case.dtype not in self.dtypes:
            return f"takes {', '.join(self.dtypes)} data, not {case.dtype}"
        return reason or self._reason("contract.legal", self.contract.legal, case)

    def _reason(self, what: str, legal: Callable[[Case], object], case: Case) -> str | None:
        reason = self._asked(what, legal, case)
        if reason is not None and not isinstance(reason, str):
            raise InvalidSpec(
                f"spec {self.name}: {what} gave {reason!r}; it gives None where a Case is inside the promise, "
                f"and the reason as text where it is outside"
            )
        return reason

    def available(self, device: Device) -> Capability:
        """Whether the spec can run on `device` here; shared by dispatch, skip and report."""
        found = self._asked("capability", self.capability, device)
        if not isinstance(found, Available | Unavailable):
            raise InvalidSpec(
                f"spec {self.name}: capability gave {found!r}; it gives Available() or Unavailable(reason)"
            )
        return found

    def _asked(self, what: str, function: Callable[[T], object], question: T) -> object:
        """The answer of one of the spec's own callables; one that raises is a wrong spec, not a wrong kernel."""
        try:
            return function(question)
        except RAISED as error:
            raise InvalidSpec(f"spec {self.name}: {what} raised {type(error).__name__}: {error}") from error

    def on(self, device: Device) -> KernelSpec:
        """This spec with the Cases that its problem has on `device`."""
        oracle = self.oracle.on(device)
        return self if oracle is self.oracle else replace(self, oracle=oracle)

    def but(self, **changes: Any) -> KernelSpec:
        """This spec with some fields changed: a variant, or a claim to be refuted."""
        return replace(self, **changes)

    def claiming(self, **order: Any) -> KernelSpec:
        """This spec with another order promise for some outputs: `spec.claiming(d_post="fixed")`."""
        if callable(self.contract.order):
            raise InvalidSpec(f"spec {self.name}: its order promise is a function of the Case; replace it whole")
        return replace(self, contract=replace(self.contract, order={**self.contract.order, **order}))

    def pinned(self, *kernels: Any) -> tuple[KernelSpec, ...]:
        """One spec for each config of the autotuned `kernels`, each held to that config."""
        variants: tuple[KernelSpec, ...] = (self,)
        for kernel in kernels:
            count = len(kernel.configs)
            variants = tuple(
                replace(v, name=f"{v.name}[{i}]" if count > 1 else v.name, pins=(*v.pins, (kernel, i)))
                for v in variants
                for i in range(count)
            )
        return variants


@dataclass(frozen=True)
class Fault:
    """A declared broken variant: `spec` is wrong in the way `doc` says, and `law` must catch it."""

    spec: KernelSpec
    law: str
    doc: str
    source: str = ""
    honest: KernelSpec | None = None
