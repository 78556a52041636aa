"""Cycles of objects: nobody looks for them while a page is made, of a million objects that stay until it is written."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def left_alone() -> Iterator[None]:
    """Inside, the collector does not run: of ten thousand rows it takes a third of the time and finds nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
