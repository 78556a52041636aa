"""Bytes that each Triton backward allocates beyond its results, and the refusal of what does not fit.

Free of Triton, so that a Contract can read the formulas. Each is what lives at the worst moment, to the byte.
"""

from __future__ import annotations

import os

import torch

from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.tiles import blocks_of
from numcheck.errors import WorkspaceExceeded

# Contributions staged at a time by `ordered`, unless one query has more. 1 GiB holds 256 queries of 2048 slots of 512
# features, which keep a GPU busy; more would only take memory.
STAGED_BYTES = 2**30
# What torch.sort takes on a GPU beyond its results, an entry. It is freed before the contributions are staged.
SORT_BYTES = 32
# One bucket is an int64; see `common`.
BUCKET_BYTES = 8 * 8


def atomic_bytes(n: Sizes, wide: bool) -> int:
    """D [S_q, H] and, where d_kv is returned in 16 bits, its FP32 sums [S_k, D]. wide: d_kv is returned in FP32."""
    return 4 * n.S_q * n.H + (0 if wide else 4 * n.S_k * n.D)


def ordered_bytes(n: Sizes, wide: bool, element: int, queries: int) -> int:
    """As `atomic_bytes`, and of `queries` queries at a time: keys, sorted keys, their order, each row's start and the
    contributions themselves (FP32 [entries, D]), or what the sort takes where that is more."""
    entries = entries_of(n, element, queries)
    sort = (4 + 4 + 8) * entries + (4 + 8) * (n.S_k + 1)
    return atomic_bytes(n, wide) + sort + entries * max(4 * n.D, SORT_BYTES)


def entries_of(n: Sizes, element: int, queries: int) -> int:
    """Contributions of `queries` queries: one a slot and block of heads."""
    return queries * blocks_of(n, element) * n.topk


def queries_at_a_time(n: Sizes, element: int) -> int:
    """Queries whose contributions fit into STAGED_BYTES, at least one."""
    return max(1, min(n.S_q, STAGED_BYTES // max(1, 4 * n.D * entries_of(n, element, 1))))


def fixed_point_bytes(n: Sizes) -> int:
    """D [S_q, H]; int64 sums [S_k, D]; buckets, an exponent and a flag a KV row, and one flag."""
    return 4 * n.S_q * n.H + n.S_k * (8 * n.D + BUCKET_BYTES + 4 + 4) + 4


def check(kernel: str, n: Sizes, need: int, budget: int | None, device: torch.device) -> None:
    """Raise WorkspaceExceeded where `need` bytes are more than the budget, or than the device has free if it is None.

    Of a GPU, memory counts as free that no tensor of this process holds: asking the driver would cost every call.
    """
    allowed = free_bytes(device) if budget is None else budget
    if need > allowed:
        sizes = ", ".join(f"{name}={size}" for name, size in n._asdict().items())
        raise WorkspaceExceeded(
            f"{kernel} needs {need} bytes of workspace for {sizes}, but {allowed} are "
            f"{'free on ' + str(device) if budget is None else 'allowed (budget)'}; cut the problem, or free memory"
        )


def free_bytes(device: torch.device) -> int:
    """Bytes that a call can still allocate on `device`."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory - torch.cuda.memory_allocated(device)
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
