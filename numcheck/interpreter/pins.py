"""Pins: autotuned kernels held to one of their configs, since timing decides otherwise (and there is none here)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from numcheck.errors import InvalidSpec


@contextmanager
def pinned(pins: Sequence[tuple[Any, int]]) -> Iterator[None]:
    """Hold each (autotuner, config index) to that config; put the configs back afterwards.

    Raises InvalidSpec for a kernel that is not autotuned or an index that it does not have.
    """
    before = [(kernel, _configs(kernel)) for kernel, _ in pins]
    for (kernel, configs), (_, index) in zip(before, pins, strict=True):
        if not 0 <= index < len(configs):
            raise InvalidSpec(f"pin {index} of {_name(kernel)}, but it has {len(configs)} config(s)")
    try:
        for (kernel, configs), (_, index) in zip(before, pins, strict=True):
            kernel.configs = [configs[index]]
        yield
    finally:
        for kernel, configs in reversed(before):
            kernel.configs = configs


def _configs(kernel: Any) -> list[Any]:
    configs = getattr(kernel, "configs", None)
    if not isinstance(configs, list):
        raise InvalidSpec(f"pin of {_name(kernel)}, which is not autotuned: it has no configs")
    return configs


def _name(kernel: Any) -> str:
    return str(getattr(getattr(kernel, "base_fn", kernel), "__name__", kernel))
