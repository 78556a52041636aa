"""Hooks on the builder's memory operations: bounds, poison in masked-off lanes, shuffled atomic lanes, trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as upstream

from numcheck import poison
from numcheck.errors import NumcheckError
from numcheck.interpreter import bits
from numcheck.interpreter.patch import Patches
from numcheck.interpreter.programs import Programs
from numcheck.interpreter.spans import Reaches, Spans
from numcheck.interpreter.spin import Patience
from numcheck.interpreter.trace import ATOMIC, READ, WRITE, Touched, Trace

_Handle = upstream.TensorHandle
_ADDS = (upstream._ir.ATOMIC_OP.ADD, upstream._ir.ATOMIC_OP.FADD)
_16_BIT = (tl.bfloat16, tl.float16)


class OutOfBounds(NumcheckError, IndexError):
    """A compare-and-swap beyond the memory that its launch was given."""


class Memory:
    """What the programs of a session do to memory.

    findings: accesses beyond the tensors that a launch was given, each with the storage address of the tensor that was
    overrun; such lanes are not done (a load gets poison).
    touched: per launch, readers and writers of each address, where `measure` asks for it.
    known: how far the caller's tensors reach in their storages.
    poisoned_integers: whether masked-off lanes of integers hold a large sentinel too; index arithmetic on it would
    overflow, so not where overflow is checked.
    """

    def __init__(self, programs: Programs, measure: bool, poisoned_integers: bool, known: Reaches) -> None:
        self.programs, self._known = programs, known
        self._poisoned_integers = poisoned_integers
        self.findings: list[tuple[str, int]] = []
        self.touched: list[Touched] = []
        self.patience = Patience()
        self._spans = Spans({}, known)
        self._kernel = ""
        self._trace = Trace() if measure else None
        self._atomic_access = False
        self._reported: set[tuple[str, str, bool]] = set()
        self._other_given = False

    def begin(self, kernel: str, arguments: Mapping[str, Any]) -> None:
        """A launch of `kernel` with these arguments starts."""
        self._kernel, self._spans = kernel, Spans(arguments, self._known)
        self._trace = Trace() if self._trace is not None else None

    def end(self, programs: int) -> None:
        """The launch of that many programs is over."""
        if self._trace is not None:
            touched = self._trace.reduce(self.programs.launch, programs)
            if touched is not None:
                self.touched.append(touched)

    def install(self, builder: Any, patches: Patches) -> None:
        """Hook the builder instance's loads, stores and atomics."""
        hooks: dict[str, Callable[..., Any]] = {
            "create_masked_load": self._load(builder.create_masked_load),
            "create_masked_store": self._store(builder.create_masked_store),
            "create_atomic_rmw": self._rmw(builder.create_atomic_rmw),
            "create_atomic_cas": self._cas(builder.create_atomic_cas),
            "create_int_to_ptr": self._from_integer(builder.create_int_to_ptr),
        }
        for name in ("create_atomic_load", "create_atomic_store", "create_atomic_poll"):
            if hasattr(builder, name):
                hooks[name] = self._as_atomic(getattr(builder, name))
        for name, hook in hooks.items():
            patches.set(builder, name, hook)
        patches.set(TritonSemantic, "load", self._asked(TritonSemantic.load))

    def _asked(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Remember whether a load has an `other`: the interpreter forgets one whose only element is zero."""

        def load(semantic: Any, ptr: Any, mask: Any, other: Any, *rest: Any, **kwargs: Any) -> Any:
            self._other_given = other is not None
            return original(semantic, ptr, mask, other, *rest, **kwargs)

        return load

    def _load(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_load(ptrs: Any, mask: Any, other: Any, *rest: Any, **kwargs: Any) -> Any:
            dtype = ptrs.get_element_ty()
            width = upstream._get_np_dtype(dtype).itemsize
            mask, addresses, whole = self._checked("load", ptrs, mask, width)
            if other is None and not whole and not self._other_given:
                other = _Handle(self._lane_poison(ptrs.data.shape, dtype), dtype)
            self._other_given = False
            result = original(ptrs, mask, other, *rest, **kwargs)
            self._note(ATOMIC if self._atomic_access else READ, addresses, width)
            self.patience.read("load", addresses, result.data)
            return result

        return create_masked_load

    def _store(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_masked_store(ptrs: Any, value: Any, mask: Any, *rest: Any, **kwargs: Any) -> Any:
            width = upstream._get_np_dtype(ptrs.get_element_ty()).itemsize
            mask, addresses, _ = self._checked("store", ptrs, mask, width)
            self._note(ATOMIC if self._atomic_access else WRITE, addresses, width)
            self.patience.wrote()
            return original(ptrs, value, mask, *rest, **kwargs)

        return create_masked_store

    def _rmw(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_rmw(op: Any, ptr: Any, val: Any, mask: Any, *rest: Any, **kwargs: Any) -> Any:
            dtype = val.dtype.scalar
            width = upstream._get_np_dtype(dtype).itemsize
            mask, addresses, _ = self._checked("atomic", ptr, mask, width)
            adds = op in _ADDS
            self._note(ATOMIC, addresses, width, _nonzero(addresses, dtype) if adds and self._trace else None)
            pointers, values, active, shape = _flat(ptr, val, mask)
            lanes = self.programs.lanes(pointers.data.size)
            if lanes is not None:
                pointers, values, active = (_Handle(h.data[lanes], h.dtype) for h in (pointers, values, active))
            if adds and dtype in _16_BIT:
                old = _add_16_bit(pointers.data, values.data, active.data, dtype)
            else:
                old = original(op, pointers, values, active, *rest, **kwargs).data
            if lanes is not None:
                back = np.empty_like(old)
                back[lanes] = old
                old = back
            self.patience.read("atomic", addresses, old)
            return _Handle(old.reshape(shape), dtype)

        return create_atomic_rmw

    def _cas(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_atomic_cas(ptr: Any, cmp: Any, val: Any, *rest: Any, **kwargs: Any) -> Any:
            width = upstream._get_np_dtype(val.dtype.scalar).itemsize
            addresses = np.asarray(ptr.data).ravel()
            if not self._spans.inside(addresses, width).all():
                where, _ = self._spans.describe(int(addresses[0]), width)
                raise OutOfBounds(f"{self._kernel} compares and swaps {where}; check the pointer arithmetic")
            self._note(ATOMIC, addresses, width)
            result = original(ptr, cmp, val, *rest, **kwargs)
            self.patience.read("compare-and-swap", addresses, result.data)
            return result

        return create_atomic_cas

    def _from_integer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def create_int_to_ptr(src: Any, dst_type: Any) -> Any:
            self._spans.open = True
            return original(src, dst_type)

        return create_int_to_ptr

    def _as_atomic(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def hook(*args: Any, **kwargs: Any) -> Any:
            self._atomic_access = True
            try:
                return original(*args, **kwargs)
            finally:
                self._atomic_access = False

        return hook

    def _note(self, kind: int, addresses: Any, width: int, started: Any = None) -> None:
        if self._trace is not None:
            self._trace.add(self.programs.current, kind, addresses, width, started)

    def _checked(self, what: str, ptrs: Any, mask: Any, width: int) -> tuple[Any, Any, bool]:
        """The mask less lanes beyond the launch's memory, the addresses left, and whether every lane is on."""
        if not isinstance(mask, _Handle):  # Triton 3.6 hands a bare array from block pointers and descriptors
            mask = _Handle(np.asarray(mask), tl.int1)
        pointers = ptrs.data
        on = mask.data if mask.data.shape == pointers.shape else np.broadcast_to(mask.data, pointers.shape)
        whole = bool(on.all())
        addresses = pointers.ravel() if whole else pointers[on]
        if addresses.size == 0 or self._spans.holds(int(addresses.min()), int(addresses.max()) + width):
            return mask, addresses, whole
        inside = self._spans.inside(pointers, width)
        if inside[on].all():
            return mask, addresses, whole
        self._report(what, pointers[on & ~inside], pointers[on & inside], width)
        on = on & inside
        return _Handle(on, tl.int1), pointers[on], False

    def _lane_poison(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """What masked-off lanes of a load without `other` hold: undefined on a device, so values that show.

        By turns NaN and infinity, since a maximum passes over the one and a minimum over the other; of integers a large
        one of either sign, since a bound stops one of them. Every second program begins with the other, since a scalar
        has one lane.
        """
        kind = upstream._get_np_dtype(dtype)
        unsigned = np.dtype(f"u{kind.itemsize}")
        if dtype.name in poison.LANE_BITS:
            by_turns = poison.LANE_BITS[dtype.name], poison.INFINITY_BITS[dtype.name]
        elif kind.itemsize == 1 or not self._poisoned_integers:
            return np.full(shape, 1, dtype=kind)
        else:
            large = poison.integer(kind.itemsize)
            by_turns = large, large ^ (1 << (8 * kind.itemsize - 1))
        first = self.programs.current % 2
        lanes = np.full(shape, by_turns[first], dtype=unsigned)
        lanes.reshape(-1)[1::2] = by_turns[1 - first]
        return lanes.view(kind)

    def _report(self, what: str, addresses: Any, others: Any, width: int) -> None:
        far = max((int(addresses.min()), int(addresses.max())), key=lambda a: self._spans.distance(a, width))
        where, start = self._spans.describe(far, width, int(others.flat[0]) if others.size else None)
        key = (self._kernel, where.partition(" ")[2], what == "load")
        if key not in self._reported:
            self._reported.add(key)
            verb = {"load": "reads", "store": "writes", "atomic": "adds"}[what]
            program = self.programs.current
            finding = (
                f"{self._kernel} {verb} out of bounds: {addresses.size} lane(s) of program {program}, up to {where}"
            )
            self.findings.append((finding, start))


def _flat(ptr: Any, val: Any, mask: Any) -> tuple[Any, Any, Any, tuple[int, ...]]:
    """Pointer, value and mask as 1-D handles, and the shape that they had."""
    shape = ptr.data.shape
    parts = [(h, np.broadcast_to(h.data, shape).reshape(-1)) for h in (ptr, val, mask)]
    pointers, values, active = (_Handle(np.ascontiguousarray(data), h.dtype) for h, data in parts)
    return pointers, values, active, shape


def _read(addresses: Any, kind: Any) -> Any:
    return upstream._interpreter.load(addresses, np.ones(addresses.shape, bool), np.zeros(addresses.shape, kind), kind)


def _nonzero(addresses: Any, dtype: Any) -> Any:
    """Whether each address holds something other than zero (of either sign)."""
    kind = upstream._get_np_dtype(dtype)
    values = _read(np.ascontiguousarray(addresses), kind)
    return (values & 0x7FFF) != 0 if dtype == tl.bfloat16 else values != 0


def _add_16_bit(pointers: Any, values: Any, active: Any, dtype: Any) -> Any:
    """Atomic add of 16-bit floats, one rounding a lane, lanes that hit one address one after another."""
    kind = upstream._get_np_dtype(dtype)
    old = np.zeros(values.shape, dtype=kind)
    left = np.flatnonzero(active)
    while left.size:
        _, first = np.unique(pointers[left], return_index=True)
        now = left[np.sort(first)]
        before = _read(np.ascontiguousarray(pointers[now]), kind)
        old[now] = before
        if dtype == tl.bfloat16:
            after = bits.narrow(bits.widen(before) + bits.widen(values[now]))
        else:
            after = bits.to_fp16(before.astype(np.float32) + values[now].astype(np.float32))
        upstream._interpreter.store(np.ascontiguousarray(pointers[now]), after, np.ones(now.shape, bool))
        left = np.setdiff1d(left, now, assume_unique=True)
    return old
