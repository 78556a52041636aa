"""Speed-ups: what the interpreter makes anew for every value of a kernel and could have kept.

Nothing of a value is kept, only what follows from its shape and dtype. Each memo is filled by the original code, and
holds for one session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as upstream

from numcheck.interpreter.patch import Patches


def install(patches: Patches) -> None:
    """Keep numpy dtypes by Triton dtype, shapes of tensors, and names and sizes of block types."""
    patches.set(upstream, "_get_np_dtype", _kept_dtype(upstream._get_np_dtype))
    patches.set(tl.core.tensor, "__init__", _kept_shape(tl.core.tensor.__init__))
    patches.set(tl.core.block_type, "__init__", _kept_block(tl.core.block_type.__init__))
    patches.set(tl.core, "_unwrap_if_constexpr", _short_unwrap(tl.core._unwrap_if_constexpr))
    patches.set(tl.core.tuple, "__eq__", _short_equal(tl.core.tuple.__eq__))


def _kept_dtype(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    kept: dict[str, Any] = {}

    def get_np_dtype(dtype: Any) -> Any:
        found = kept.get(dtype.name)
        if found is None:
            found = kept[dtype.name] = original(dtype)
        return found

    return get_np_dtype


def _kept_shape(original: Callable[..., None]) -> Callable[..., None]:
    kept: dict[Any, tuple[Any, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        shape = tuple(type.shape) if type.is_block() else ()
        found = kept.get(shape)
        if found is None:
            original(self, handle, type)
            if set(vars(self)) == {"handle", "shape", "numel", "type", "dtype"}:
                kept[shape] = (self.shape, self.numel)
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = found

    return init


def _kept_block(original: Callable[..., None]) -> Callable[..., None]:
    kept: dict[Any, tuple[Any, Any, str]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (str(element_ty), *(s.value if isinstance(s, tl.constexpr) else s for s in shape))
        found = kept.get(key)
        if found is None:
            original(self, element_ty, shape)
            if set(vars(self)) == {"element_ty", "shape", "numel", "name"}:
                kept[key] = (self.shape, self.numel, self.name)
            return
        self.element_ty = element_ty
        self.shape, self.numel, self.name = found

    return init


def _short_unwrap(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    plain = (tl.core.tensor, int, float, bool, str, type(None))

    def unwrap(value: Any) -> Any:
        kind = type(value)
        if kind is tl.core.constexpr:
            return value.value
        return value if kind in plain else original(value)

    return unwrap


def _short_equal(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    constexpr = tl.core.constexpr

    def equal(self: Any, other: Any) -> Any:
        if type(other) is type(self) and all(type(v) in (int, constexpr) for v in other.values):
            return constexpr(self.values == [v.value if type(v) is constexpr else v for v in other.values])
        return original(self, other)

    return equal
