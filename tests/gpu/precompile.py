"""Compile sparse MLA's Triton kernels into Triton's cache, in parallel, for an SM90 GPU that need not be there:

    python -m tests.gpu.precompile [-n WORKERS] [--production | --plain]

The laws on a GPU then start with what they need; by themselves they compile one kernel after the other in each worker.
--production: only what contiguous bf16 of deployed sizes takes. Prints what was compiled, each with its seconds.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

CAPABILITY, WARP = 90, 32
# Atomic and ordered share the half that makes d_q, so that one process compiles both.
PARTS = ("fixed_point", "floats", "forward")


class Job(NamedTuple):
    """Calls whose launches are compiled: a forward or backwards of some kind, and what their kernels specialise on."""

    part: str
    dtype: str
    H: int
    D: int
    D_v: int
    layout: str
    offset: int
    d_kv: str


class NoDevice:
    """Stands for Triton's driver where there is no GPU: it answers what a compilation asks."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", CAPABILITY, WARP)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def jobs(production: bool, plain: bool = False) -> Iterator[Job]:
    """Plain places first, then those that the invariance law lays its Cases out in; of each the dearest first: FP32.

    The laws' named Cases have 64 heads or more, so that two heads of 16 bits, which are drawn, come last elsewhere.
    """
    sizes = ((64, 512), (64, 576)) if production else ((64, 512), (64, 576), (2, 512), (2, 576))
    dtypes = ("bf16",) if production else ("fp32", "bf16", "fp16")
    places = (("contiguous", 0), ("strided", 1), ("contiguous", 1), ("strided", 0))
    wanted = list(itertools.product(places[:1] if production or plain else places, dtypes, sizes))
    for place, dtype, (H, D) in sorted(wanted, key=lambda w: w[0] != places[0] and w[1] != "fp32" and w[2][0] == 2):
        # Heads of FP32 data come in tiles of one size.
        if dtype != "fp32" or H == 2:
            yield from (Job(part, dtype, H, D, 512, *place, "data") for part in PARTS)
            if dtype != "fp32" and place == places[0]:
                yield Job("fixed_point", dtype, H, D, 512, *place, "fp32")
    if not production:
        # The Cases of one feature, whose d_kv cancels.
        yield from (
            Job(part, dtype, 2, 1, 1, "contiguous", 0, d_kv)
            for part in PARTS
            for dtype, d_kv in (("fp32", "data"), ("bf16", "fp32"))
        )


def compile_all(job: Job) -> tuple[Job, float]:
    """Compile what the call launches; nothing runs, so that its tensors may be of anything, on the CPU."""
    import torch
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from kernels.sparse_mla import atomic, fixed_point, forward, ordered
    from numcheck.sample import place
    from numcheck.ulp import torch_dtype

    driver.set_active(NoDevice())
    launch = JITFunction.run
    start = time.perf_counter()

    def laid(*shape: int, dtype: Any) -> torch.Tensor:
        return place(torch.zeros(shape, dtype=dtype), job.layout, job.offset)

    data = torch_dtype(job.dtype)
    given: dict[str, Any] = {
        "q": laid(2, job.H, job.D, dtype=data),
        "kv": laid(64, job.D, dtype=data),
        "topk_idxs": laid(2, 3, dtype=torch.int32),
        "sink": laid(job.H, dtype=torch.float32),
        "softmax_scale": 1.0,
        "value_dim": job.D_v,
    }
    saved = {
        "out": torch.zeros((2, job.H, job.D_v), dtype=data),
        "lse": torch.zeros((2, job.H)),
        "d_out": laid(2, job.H, job.D_v, dtype=data),
        "d_kv_dtype": job.d_kv,
    }
    JITFunction.run = lambda self, *args, warmup, **kwargs: launch(self, *args, warmup=True, **kwargs)
    try:
        if job.part == "forward":
            forward.forward(**given)
        else:
            for module in (atomic, ordered) if job.part == "floats" else (fixed_point,):
                module.vjp(**given, **saved)
    finally:
        JITFunction.run = launch
    return job, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--production", action="store_true")
    parser.add_argument("--plain", action="store_true", help="contiguous, aligned tensors alone")
    chosen = parser.parse_args()
    start, wanted = time.perf_counter(), list(jobs(chosen.production, chosen.plain))
    with ProcessPoolExecutor(chosen.n, mp_context=get_context("spawn")) as pool:
        for job, seconds in pool.map(compile_all, wanted):
            print(f"{seconds:6.1f} s  {' '.join(map(str, job))}", flush=True)
    print(f"{len(wanted)} calls compiled in {time.perf_counter() - start:.0f} s by {chosen.n} processes")


if __name__ == "__main__":
    main()
