"""cuDNN's sparse-MLA backward and its order-free variants on an H200: bits, time, memory, and where the time goes.

    python docs/measurements/sparse_mla_cudnn.py OUT STEP ...        needs nvidia-cudnn-frontend[cutedsl], SM90

Steps: first (each spec once, with what ran), bits (hashes over repeats, beside a busy stream, from graph replay),
slices (the same of cudnn_sliced alone), process (the same hashes from a process of its own, on whichever GPU it is
given), adversarial (a scale that the sample cannot guess), halves (bits and relL2 of cudnn_fixed_point in fp16),
accuracy (relL2 to FP64), fingerprint (which rounding policy explains stock), time (interleaved A/B), memory (peaks
against the formulas), flush (below which P the kernels have zero), parts and without (where the rest of the time goes).
Each row of OUT/cudnn.jsonl is one JSON object with its step; a step that fails leaves its traceback there, and the next
one starts.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from sparse_mla_data import D_V, Shape, backward, hashed, hashes, made, relative

from kernels.sparse_mla import cudnn, cudnn_fixed_point, cudnn_workspace
from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.cudnn_workspace import fixed_point_bytes, sliced_bytes, stock_bytes
from numcheck import KernelSpec

FIVE = (
    Shape(64, 256, 64, 512, 64),
    Shape(129, 256, 128, 512, 64, 0.1),
    Shape(257, 256, 64, 576, 128, 0.1),
    Shape(16384, 16384, 64, 512, 2048),
    Shape(4096, 16384, 128, 576, 2048),
)
LARGE = FIVE[3:]
# Long context at the widest keys.
LONGEST = Shape(64, 524288, 64, 576, 128)
STOCK, DETERMINISTIC = cudnn.STOCK, tuple(spec for spec in cudnn.SPECS if spec is not cudnn.STOCK)
FLIPS, REPEATS, BESIDE, PAIRS, WARM, RESAMPLES = 10, 100, 20, 20, 3, 2000
FORMULAS = {
    "sparse_mla.cudnn_stock": stock_bytes,
    "sparse_mla.cudnn_fixed_point": fixed_point_bytes,
    "sparse_mla.cudnn_sliced": sliced_bytes,
}
# Small enough that 256 rows take several tiles: 132 slices of 64 rows are more than this.
FEW_BYTES = 2**24
# A square FP32 product that keeps all multiprocessors busy for longer than a small kernel runs.
BUSY = 4096
DEVICE = "cuda"
# The first exponent of P that `flush` tries: FP32's normal numbers end at 126, bf16's last subnormal is 133.
LEAST = 100
Write = Callable[..., None]
Call = Callable[[], dict[str, Tensor]]


def call_of(spec: KernelSpec, given: dict[str, Any]) -> Call:
    assert spec.vjp is not None
    vjp = spec.vjp
    return lambda: vjp(**given)


def sizes_of(n: Shape) -> Sizes:
    return Sizes(n.S_q, n.S_k, n.H, n.D, D_V, n.topk)


def first(write: Write) -> None:
    """Each spec once on the smallest shape: seconds of the first and second call, kernels that ran, determinism."""
    given = made(FIVE[0])
    for spec in cudnn.SPECS:
        with caught(write, "first", spec=spec.name):
            once(write, spec, given)


def once(write: Write, spec: KernelSpec, given: dict[str, Any]) -> None:
    from torch.profiler import ProfilerActivity, profile

    found = spec.available("cuda")
    run = call_of(spec, given)
    seconds = [timed(run) for _ in range(2)]
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    names = sorted({e.name for e in profiler.events() if e.device_type.name == "CUDA"})
    torch.use_deterministic_algorithms(True)
    try:
        asked = f"honoured: {hashes(run()) == hashes(run())}"
    except Exception as error:
        asked = f"refused: {type(error).__name__}: {error}"
    finally:
        torch.use_deterministic_algorithms(False)
    write("first", spec=spec.name, capability=str(found), seconds=seconds, kernels=names, determinism=asked)


def timed(run: Call) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def plain(run: Call, count: int) -> Iterable[dict[str, str]]:
    return (hashes(run()) for _ in range(count))


def beside(run: Call, count: int) -> Iterable[dict[str, str]]:
    """The same while a second stream multiplies."""
    side, load = torch.cuda.Stream(), torch.ones(BUSY, BUSY, device="cuda")
    for _ in range(count):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                torch.mm(load, load)
        results = run()
        torch.cuda.synchronize()
        yield hashes(results)


def replayed(run: Call, count: int) -> Iterable[dict[str, str]]:
    """From replays of one captured graph, whose results are overwritten with NaN in between."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()
    for _ in range(count):
        for tensor in results.values():
            tensor.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        yield hashes(results)


def bits(write: Write) -> None:
    """Hashes at the five shapes: stock's flips in 10, the deterministic specs in 100, busy and from a graph."""
    for n in FIVE:
        repeated(write, n, cudnn.SPECS)
        if n.S_q * n.H * n.D <= 2**24:
            widest_flips(write, n)


def slices(write: Write) -> None:
    """`bits` of cudnn_sliced alone."""
    for n in FIVE:
        repeated(write, n, (cudnn.SLICED,))


def repeated(write: Write, n: Shape, specs: Iterable[KernelSpec]) -> None:
    """One shape's hashes, in each of the three ways."""
    given = made(n)
    inputs = hashes(given)
    for spec in specs:
        run = call_of(spec, given)
        ways = {"plain": (plain, FLIPS if spec is STOCK else REPEATS)}
        ways |= {"busy stream": (beside, FLIPS if spec is STOCK else BESIDE)}
        ways |= {"graph replay": (replayed, FLIPS if spec is STOCK else BESIDE)}
        for way, (repeat, count) in ways.items():
            with caught(write, "bits", shape=n, spec=spec.name, way=way):
                write("bits", shape=n, spec=spec.name, way=way, inputs=inputs, **counted(repeat(run, count)))


def counted(found: Iterable[dict[str, str]]) -> dict[str, Any]:
    """All hashes in order, how many differ from the first, and the flip rate that this many repeats exclude (95 %)."""
    rows = list(found)
    flips = {name: sum(row[name] != rows[0][name] for row in rows[1:]) for name in rows[0]}
    distinct = {name: len({row[name] for row in rows}) for name in rows[0]}
    return {"runs": len(rows), "flips": flips, "distinct": distinct, "power": 1 - 0.05 ** (1 / (len(rows) - 1)),
            "hashes": {name: [row[name] for row in rows] for name in rows[0]}}  # fmt: skip


def widest_flips(write: Write, n: Shape) -> None:
    """Elsewhere: stock on ten other draws of this shape, ten repeats each."""
    for seed in range(1, 11):
        found = counted(plain(call_of(STOCK, made(n, seed)), FLIPS))
        write("flips", shape=n, seed=seed, spec=STOCK.name, **{k: found[k] for k in ("runs", "flips", "power")})


def process(write: Write) -> None:
    """One hash an output: to be held beside `bits`, from another process or GPU (its row says which)."""
    for n in reversed(FIVE):
        given = made(n)
        for spec in DETERMINISTIC:
            with caught(write, "process", shape=n, spec=spec.name):
                found = counted(plain(call_of(spec, given), 5))
                write("process", shape=n, spec=spec.name, inputs=hashes(given), **found)


def halves(write: Write) -> None:
    """`bits` and relL2 of cudnn_fixed_point in fp16 at the large shapes, where its units are finer than in bf16."""
    spec = cudnn.FIXED_POINT
    for n in LARGE:
        given = made(n, dtype=torch.float16)
        run = call_of(spec, given)
        exact, stock = backward(given), call_of(STOCK, given)()
        found = run()
        error = {name: [relative(t[name], exact[name]) for t in (found, stock)] for name in exact}
        write("halves", shape=n, spec=spec.name, relL2_and_stocks=error, inputs=hashes(given))
        del exact, stock, found
        for way, repeat, count in (
            ("plain", plain, REPEATS),
            ("busy stream", beside, BESIDE),
            ("graph replay", replayed, BESIDE),
        ):
            with caught(write, "halves", shape=n, spec=spec.name, way=way):
                write("halves", shape=n, spec=spec.name, way=way, **counted(repeat(run, count)))


def adversarial(write: Write) -> None:
    """All queries on one row, and d_out times 2^30 in queries that the sample misses: the proof must see it."""
    n = Shape(257, 1024, 64, 512, 128)
    for spec in DETERMINISTIC:
        for huge in (False, True):
            given = made(n, one_row=True)
            if huge:
                given["d_out"][1::2] *= 2.0**30
            kept: list[Any] = []
            make = cudnn_fixed_point._Scratch.of
            cudnn_fixed_point._Scratch.of = staticmethod(lambda *a, k=kept, m=make: k.append(m(*a)) or k[-1])  # type: ignore[method-assign,assignment,func-returns-value]
            try:
                found = call_of(spec, given)()
            finally:
                cudnn_fixed_point._Scratch.of = make  # type: ignore[method-assign]
            exact, stock = backward(given), call_of(STOCK, given)()
            failed = [bool(s.flags[4]) for s in kept]
            error = {name: relative(found[name], exact[name]) for name in exact}
            stocks = {name: relative(stock[name], exact[name]) for name in exact}
            again = counted(plain(call_of(spec, given), 10))["flips"]
            write("adversarial", spec=spec.name, huge=huge, proof_failed=failed, relL2=error, stock=stocks, flips=again)


def accuracy(write: Write) -> None:
    """relL2 to FP64 on the same bits, and whether d_q is stock's bit for bit."""
    for n in (*FIVE[:3], Shape(257, 1024, 64, 512, 2048, 0.1), Shape(129, 1024, 128, 576, 2048, 0.1)):
        given = made(n)
        exact, stock = backward(given), call_of(STOCK, given)()
        for spec in cudnn.SPECS:
            found = call_of(spec, given)()
            error = {name: relative(found[name], exact[name]) for name in exact}
            same = hashed(found["d_q"]) == hashed(stock["d_q"])
            write("accuracy", shape=n, spec=spec.name, relL2=error, d_q_as_stock=same)
        with caught(write, "tiles", shape=n):
            write("tiles", shape=n, **tiled(given, exact, stock))


def tiled(given: dict[str, Any], exact: dict[str, Tensor], stock: dict[str, Tensor]) -> dict[str, Any]:
    """cudnn_sliced with its KV rows in several tiles: relL2, repeats, and whether d_q is stock's."""
    whole, cudnn_workspace.SLICED_BYTES = cudnn_workspace.SLICED_BYTES, FEW_BYTES
    try:
        run = call_of(cudnn.SLICED, given)
        found, again = run(), counted(plain(run, FLIPS))
    finally:
        cudnn_workspace.SLICED_BYTES = whole
    error = {name: relative(found[name], exact[name]) for name in exact}
    return {"relL2": error, "flips": again["flips"], "d_q_as_stock": hashed(found["d_q"]) == hashed(stock["d_q"])}


def fingerprint(write: Write) -> None:
    """Which of the oracle's policies explains the residual; the oracle is read on the CPU."""
    from numcheck.execute import execute
    from numcheck.fingerprint import fingerprint as policies
    from numcheck.laws.measured import saved_alone
    from numcheck.oracles.sparse_mla_cases import named
    from numcheck.reading import Truth, read
    from numcheck.sample import sample

    for S_q, H, D, topk, regime in ((65, 64, 512, 64, "normal"), (33, 128, 576, 128, "mean4")):
        case = named(S_q, 256, H, D, D_V, topk, dtype="bf16", regime=regime, indices="holes", sink="none")
        for spec in cudnn.SPECS:
            here, there = (sample(spec.oracle, case, device=device) for device in ("cpu", DEVICE))
            run = execute(spec, there, device=DEVICE, saved=saved_alone(spec, there))
            saved = {name: t.cpu().double() for name, t in run.saved.items()}
            outputs = {name: t.cpu() for name, t in run.outputs.items()}
            truth = read(spec.oracle, Truth(), here.exact(), saved)
            found = policies(spec.oracle, spec.contract.policy(case), here, outputs, truth, saved)
            write("fingerprint", spec=spec.name, case=case.to_json(), error=run.error, **found)


def flush(write: Write) -> None:
    """The lowest power of two that P may be: query t has one slot with P = 2^(1/2 - x), x = LEAST + t.

    q is zero, so that the given lse alone makes P. dP - D is 2^31 and d_out 2^30, so that nothing else underflows.
    """
    n = Shape(64, 64, 64, 512, 64)
    given = made(n, sink=False)
    index, d_out, out = (torch.zeros_like(given[name]) for name in ("topk_idxs", "d_out", "out"))
    index[:] = -1
    index[:, 0] = torch.arange(n.S_q)
    d_out[..., 0], out[..., 0] = 2.0**30, -1.0
    powers = torch.arange(LEAST, LEAST + n.S_q, device=DEVICE)
    lse = ((powers - 0.5) * math.log(2))[:, None].expand(n.S_q, n.H).float().contiguous()
    kv = torch.zeros_like(given["kv"])
    kv[:, 0] = 1.0
    given |= {"q": torch.zeros_like(given["q"]), "kv": kv, "topk_idxs": index, "d_out": d_out, "out": out, "lse": lse}
    for spec in cudnn.SPECS:
        with caught(write, "flush", spec=spec.name):
            found = call_of(spec, given)()
            lost = {"d_q": found["d_q"][:, :, 0].eq(0).all(1), "d_kv": found["d_kv"][:, 0].eq(0)}
            least = {name: int(powers[where].min()) if bool(where.any()) else None for name, where in lost.items()}
            write("flush", spec=spec.name, zero_from_two_to_the_minus=least)


def clocked(run: Call) -> float:
    """Milliseconds of one call by events."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def interval(values: list[float]) -> list[float]:
    """Median, and the 95 % bootstrap interval of the median."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return [statistics.median(values), medians[int(0.025 * RESAMPLES)], medians[-int(0.025 * RESAMPLES) - 1]]


def pairs_of(a: Call, b: Call, count: int = PAIRS) -> list[tuple[float, float]]:
    """Milliseconds of a and b in turns that swap, so that drift falls on both alike."""
    for _ in range(WARM):
        a(), b()
    found = []
    for k in range(count):
        if k % 2:
            second, first_ = clocked(b), clocked(a)
        else:
            first_, second = clocked(a), clocked(b)
        found.append((first_, second))
    return found


def peak(run: Call) -> int:
    """Bytes alive at the worst moment of a call beyond its results, as they were asked for."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    results = run()
    torch.cuda.synchronize()
    most = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    return int(most - sum(t.numel() * t.element_size() for t in results.values()))


def times(write: Write) -> None:
    """Each deterministic spec against stock."""
    for n in LARGE:
        given = made(n)
        stock = call_of(STOCK, given)
        for spec in DETERMINISTIC:
            with caught(write, "time", shape=n, spec=spec.name):
                pairs = pairs_of(stock, call_of(spec, given))
                found = {
                    "stock_ms": [a for a, _ in pairs],
                    "ms": [b for _, b in pairs],
                    "ratio": [b / a for a, b in pairs],
                }
                told = {name: interval(values) for name, values in found.items()}
                write("time", shape=n, spec=spec.name, **told, pairs=pairs)


def memory(write: Write) -> None:
    """Each spec's peak against its formula."""
    for n in (LONGEST, *FIVE):
        given = made(n)
        for spec in cudnn.SPECS:
            with caught(write, "memory", shape=n, spec=spec.name):
                run = call_of(spec, given)
                run()
                formula = FORMULAS[spec.name](sizes_of(n), True)
                write("memory", shape=n, spec=spec.name, measured=peak(run), formula=formula)


def parts(write: Write) -> None:
    """The backward's kernels one by one, from the profiler: medians of ten calls."""
    from torch.profiler import ProfilerActivity, profile

    for n in LARGE:
        given = made(n)
        for spec in cudnn.SPECS:
            run = call_of(spec, given)
            for _ in range(WARM):
                run()
            with profile(activities=[ProfilerActivity.CUDA]) as profiler:
                for _ in range(10):
                    run()
                torch.cuda.synchronize()
            spent: dict[str, list[float]] = {}
            for event in profiler.events():
                if event.device_type.name == "CUDA":
                    spent.setdefault(event.name, []).append(event.device_time / 1000)
            each = {name: [len(ms) / 10, sum(ms) / 10, max(ms)] for name, ms in spent.items()}
            write("parts", shape=n, spec=spec.name, unit="launches a call, ms a call, longest ms", kernels=each)


def without(write: Write) -> None:
    """cudnn_fixed_point with a stage of its scatter left out: what each costs. Its results are wrong, its time is not.

    The sample keeps its own kernel, so that scales are what they were.
    """
    from kernels.sparse_mla import cudnn_fixed_kernel as kernel

    def nothing(self: Any, *arguments: Any) -> None:
        return None

    def unswapped(self: Any, kept: Any, sent: Any, offset: int, is_first: Any) -> Any:
        return kept, sent

    whole = kernel.FixedPoint
    stages = {"nothing": {}, "sizes for the proof": {"_add_sizes": nothing}, "additions": {"_add": nothing},
              "exchange among lanes": {"_pick": unswapped}}  # fmt: skip
    for n in LARGE:
        given = made(n)
        stock, run = call_of(STOCK, given), call_of(cudnn.FIXED_POINT, given)
        for stage, changes in stages.items():
            with caught(write, "without", shape=n, stage=stage):
                kernel.FixedPoint = type("FixedPoint", (whole,), dict(changes))
                kernel.main_kernel.cache_clear()
                pairs = pairs_of(stock, run)
                write("without", shape=n, stage=stage, ratio=interval([b / a for a, b in pairs]),
                      ms=interval([b for _, b in pairs]), pairs=pairs)  # fmt: skip
    kernel.FixedPoint = whole
    kernel.main_kernel.cache_clear()


class caught:
    """What is raised inside becomes a row with its traceback; the next thing is measured all the same."""

    def __init__(self, write: Write, step: str, **about: Any) -> None:
        self.write, self.step, self.about = write, step, about

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        traceback.print_exception(error)
        self.write(self.step, **self.about, error="".join(traceback.format_exception(error)))
        return True


STEPS = {"first": first, "bits": bits, "slices": slices, "process": process, "adversarial": adversarial,
         "halves": halves, "accuracy": accuracy, "fingerprint": fingerprint, "time": times, "memory": memory,
         "flush": flush, "parts": parts, "without": without}  # fmt: skip


def main() -> None:
    out, *steps = sys.argv[1:]
    Path(out).mkdir(parents=True, exist_ok=True)
    here = {"device": torch.cuda.get_device_name(), "uuid": str(torch.cuda.get_device_properties(0).uuid)}
    with (Path(out) / "cudnn.jsonl").open("a", encoding="utf-8") as file:

        def write(step: str, **row: Any) -> None:
            shape = row.get("shape")
            row |= {"shape": asdict(shape)} if isinstance(shape, Shape) else {}
            print(json.dumps({"step": step, **here, **row}), file=file, flush=True)
            told = {k: v for k, v in row.items() if k not in ("hashes", "inputs", "pairs", "figures")}
            print(step, json.dumps(told)[:1500], flush=True)

        with torch.no_grad():
            for step in steps:
                start = time.perf_counter()
                with caught(write, step):
                    STEPS[step](write)
                torch.cuda.empty_cache()
                print(f"== {step}: {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
