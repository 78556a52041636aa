"""Sparse MLA's Triton kernels on a GPU: right against FP64, one hash or several, and how long. Run it, from the root:

    python -m tests.gpu.sparse_mla_triton [--repeats 10] [--tiles]

--tiles times other sides of the tiles too, each in a line of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernels.sparse_mla import atomic, eager, fixed_point, forward, ordered
from kernels.sparse_mla.backward_kv import ATOMIC, WIDE
from kernels.sparse_mla.halves import Backward, Scales
from kernels.sparse_mla.tiles import Tiles

Call = Callable[..., dict[str, Tensor]]
BACKWARDS: dict[str, tuple[Call, dict[str, Any]]] = {
    "atomic": (atomic.vjp, {}),
    "ordered": (ordered.vjp, {}),
    "fixed_point": (fixed_point.vjp, {}),
}
# (S_q, S_k, H, D, topk): small ones against FP32 eager, production ones for time and hashes.
SMALL = ((64, 100, 64, 512, 64), (129, 200, 128, 576, 65), (257, 64, 64, 576, 128), (5, 9, 3, 24, 7))
LARGE = ((16384, 16384, 64, 512, 2048), (4096, 16384, 128, 576, 2048))


def problem(S_q: int, S_k: int, H: int, D: int, topk: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, Any]:
    torch.manual_seed(0)
    value = 512 if D >= 512 else D - D // 3
    idxs = torch.randint(-1, S_k, (S_q, topk), dtype=torch.int32, device="cuda")
    q, kv, g = (torch.randn(*shape, device="cuda").to(dtype) for shape in ((S_q, H, D), (S_k, D), (S_q, H, value)))
    given = {"q": q, "kv": kv, "topk_idxs": idxs, "sink": torch.randn(H, device="cuda")}
    return {**given, "softmax_scale": D**-0.5, "value_dim": value, "d_out": g}


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """The median over `repeats` timed calls."""
    run()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def digest(t: Tensor) -> str:
    return hashlib.sha1(t.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()[:8]


def right(dtype: torch.dtype) -> None:
    for sizes in SMALL if dtype != torch.float32 else SMALL[-1:]:
        given = problem(*sizes, dtype)
        g = given.pop("d_out")
        made, wanted = forward.forward(**given), eager.forward(**given)
        print(dtype, sizes, "forward", {name: relative(made[name], wanted[name]) for name in made})
        wanted = eager.vjp(**given, **made, d_out=g)
        for name, (vjp, rest) in BACKWARDS.items():
            got = vjp(**given, **made, d_out=g, **rest)
            print(dtype, sizes, name, {key: relative(got[key], wanted[key]) for key in got})


def relative(got: Tensor, wanted: Tensor) -> str:
    finite = torch.isfinite(wanted)
    return f"{float((got.double() - wanted.double())[finite].norm() / wanted.double()[finite].norm()):.2e}"


def production(sizes: tuple[int, ...], repeats: int, tiles: bool) -> None:
    given = problem(*sizes)
    g = given.pop("d_out")
    print(sizes, f"forward {milliseconds(lambda: forward.forward(**given), repeats):.2f} ms")
    saved = forward.forward(**given)
    for name, (vjp, rest) in BACKWARDS.items():
        every = [vjp(**given, **saved, d_out=g, **rest) for _ in range(2)]
        hashes = {key: {digest(one[key]) for one in every} for key in every[0]}
        del every
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        took = milliseconds(lambda vjp=vjp, rest=rest: vjp(**given, **saved, d_out=g, **rest), repeats)
        extra = (torch.cuda.max_memory_allocated() - before) / 2**20
        print(sizes, name, f"{took:.2f} ms, peak {extra:.0f} MiB,", {k: len(v) for k, v in hashes.items()}, "hashes")
    if tiles:
        other_tiles(given, saved, g, repeats)


def other_tiles(given: dict[str, Any], saved: dict[str, Tensor], g: Tensor, repeats: int) -> None:
    """Each half alone, under other sides, warps and stages than `tiles_of` chooses."""
    call = Backward.of(
        given["q"], given["kv"], given["topk_idxs"], None, given["sink"], saved["out"], saved["lse"], g,
        given["softmax_scale"], given["value_dim"], "data",
    )  # fmt: skip
    n, device = call.n, given["q"].device
    _, delta = call.query_half()
    sums = torch.zeros((n.S_k, n.D), dtype=torch.int64, device=device)
    scales = Scales(
        torch.zeros((n.S_k, 8), dtype=torch.int64, device=device),
        torch.zeros((n.S_k,), dtype=torch.int32, device=device),
        torch.full((n.S_k + 1,), -1, dtype=torch.int32, device=device),
    )
    for slots, width, warps, stages in itertools.product((64, 32), (128, 64), (8, 4), (1, 2)):
        cut: Tiles = call.cut._replace(slots=slots, width=width, warps=warps, stages=stages)
        other = replace(call, cut=cut)
        runs: dict[str, Callable[[], object]] = {"query half": other.query_half}
        for label, mode in (("atomic", ATOMIC), ("wide", WIDE)):
            held = sums.view(torch.float32) if mode is ATOMIC else sums
            runs[label] = lambda other=other, mode=mode, held=held: other.kv_half(
                mode.value, delta, held, scales=scales
            )
        for label, run in runs.items():
            if label == "query half" and width != call.cut.width:
                continue
            try:
                print(f"{label} {cut}: {milliseconds(run, repeats):.2f} ms", flush=True)
            except Exception as error:
                print(f"{label} {cut}: {type(error).__name__} {str(error)[:80]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tiles", action="store_true")
    chosen = parser.parse_args()
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        right(dtype)
    for sizes in LARGE:
        production(sizes, chosen.repeats, chosen.tiles)


if __name__ == "__main__":
    main()
