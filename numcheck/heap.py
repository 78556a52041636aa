"""Heap: keep freed memory for the next tensor, where Cases are large."""

from __future__ import annotations

import ctypes

# glibc's mallopt parameters (malloc.h).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
# mallopt takes a C int: what the heap may have free at its end, and what it grows by.
_LARGEST, _GROWTH = 2**31 - 1, 2**28


def keep() -> bool:
    """Have the C library keep freed memory; False where it is not glibc, and all stays as it was.

    By default every allocation above 32 MB is mapped anew and given back when freed, and its pages come as zeros one by
    one. FP64 readings of a large Case make thousands of such tensors: half of their time went there (16 of 32 s of
    sparse MLA's invariance law at 257 queries, 64 heads, 512 features).
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (raises where there is none)
        mallopt = library.mallopt
    except (AttributeError, OSError, TypeError):
        return False
    taken = [mallopt(_MMAP_MAX, 0), mallopt(_TRIM_THRESHOLD, _LARGEST), mallopt(_TOP_PAD, _GROWTH)]
    return all(taken)
