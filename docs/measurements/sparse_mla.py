"""Sparse MLA's backwards at deployed sizes on a GPU: bits, time against a base, memory, and each output judged.

    python docs/measurements/sparse_mla.py OUT.jsonl [bits times memory adversarial judged] [--spec NAME ...] [--small]

Each row of OUT.jsonl is one JSON object with its kind: environment, made (hashes of inputs and saved outputs), bits,
times (every raw pair), memory, adversarial, judged (every gate, peak memory, seconds). Two runs of one command, in two
processes or on two GPUs, have to give the same hashes but for d_kv of the atomic one. The base of the times is cuDNN's
stock backward where it is installed. --spec: the Triton backwards where it is left out; judged takes cuDNN's too.
--small: sizes that a plumbing check takes seconds for.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.sparse_mla import SPECS, fixed_point
from kernels.sparse_mla.halves import Backward
from numcheck import Case, KernelSpec, stream
from numcheck.capability import Unavailable
from numcheck.environment import environment
from numcheck.gate import Gate
from numcheck.oracles.sparse_mla import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.sample import Sample
from numcheck.stream import side_by_side
from numcheck.ulp import digest

# (S_q, S_k, H, D, topk)
DEPLOYED = ((16384, 16384, 64, 512, 2048), (4096, 16384, 128, 576, 2048))
SMALL = ((96, 300, 64, 512, 128), (64, 300, 128, 576, 128))
# For memory alone: long context, whose sums are what grows.
LONG = ((4096, 131072, 64, 576, 512), (512, 524288, 128, 576, 2048))
BY_NAME = {spec.name: spec for spec in SPECS}
FORWARD = BY_NAME["sparse_mla.triton_forward"]
ATOMIC, ORDERED, FIXED = (BY_NAME[f"sparse_mla.triton_{name}"] for name in ("atomic", "ordered", "fixed_point"))
# As users call it: the spec asks for a finer first scale, so that its Cases see the second pass.
FIXED = BY_NAME[FIXED.name] = FIXED.but(vjp=fixed_point.vjp)
BACKWARDS = (ATOMIC, ORDERED, FIXED)
CUDNN = tuple(spec for spec in SPECS if spec.name.startswith("sparse_mla.cudnn"))
REPEATS, ATOMIC_REPEATS, BESIDE, REPLAYS = 100, 10, 10, 10
PAIRS, WARM, RESAMPLES = 30, 2, 2000
# A square FP32 product of this size keeps every SM busy.
BUSY = 8192
Write = Callable[..., None]
Tensors = dict[str, Tensor]
Specs = tuple[KernelSpec, ...]
Claim = tuple[KernelSpec, Tensors]
Backwards = Callable[[KernelSpec], Callable[[], Tensors]]


def drawn(sizes: tuple[int, ...]) -> Sample:
    """Normal bf16 data and distinct random rows, made on the GPU: hashing so many counters takes minutes."""
    S_q, S_k, H, D, topk = sizes
    value = min(D, 512)
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    case = named(S_q, S_k, H, D, value, topk, dtype="bf16", regime="normal", sink="finite", indices="distinct")
    step = max(1, 2**24 // S_k)
    rows = [torch.rand(min(step, S_q - t), S_k, generator=generator, device="cuda") for t in range(0, S_q, step)]
    index = torch.cat([row.topk(topk, dim=1).indices.int() for row in rows])
    inputs = {"q": normal(S_q, H, D), "kv": normal(S_k, D), "topk_idxs": index}
    inputs["sink"] = torch.randn(H, generator=generator, device="cuda")
    return Sample(case, inputs, {"d_out": normal(S_q, H, value)}, sparse_mla.scalars(case))


def raw(t: Tensor) -> Tensor:
    return t.view({2: torch.int16, 4: torch.int32}[t.element_size()])


def calls(made: Sample) -> tuple[Tensors, Backwards]:
    """What the forward saves, and each spec's backward of it as a function of nothing."""
    assert FORWARD.forward is not None
    saved = FORWARD.forward(**sparse_mla.for_forward(made.given))
    given = sparse_mla.for_vjp(made.given, saved)

    def backward(spec: KernelSpec) -> Callable[[], Tensors]:
        assert spec.vjp is not None
        return partial(spec.vjp, **given)

    return saved, backward


def bits(made: Sample, backward: Backwards, write: Write, specs: Specs, repeats: int = REPEATS) -> None:
    """Every further run against the first, bit for bit on the device; d_kv's hashes where it differs."""
    for spec in specs:
        run = backward(spec)
        first = run()
        hashes = {name: digest(t) for name, t in first.items()}
        rungs = {
            "same process": again(run, first, min(repeats, ATOMIC_REPEATS) if spec is ATOMIC else repeats),
            "beside a busy stream": again(beside(run), first, BESIDE),
            "graph replay": again(replayed(run), first, REPLAYS),
        }
        write("bits", spec=spec.name, case=made.case.to_json(), hashes=hashes, rungs=rungs)
        del first


def again(run: Callable[[], Tensors], first: Tensors, repeats: int) -> dict[str, Any]:
    """Runs, and for each output how many of them differed and what other d_kv came back."""
    flips, others = dict.fromkeys(first, 0), set()
    for _ in range(repeats):
        for name, t in run().items():
            if not torch.equal(raw(t), raw(first[name])):
                flips[name] += 1
                others |= {digest(t)} if name == "d_kv" else set()
    return {"runs": repeats, "flips": flips, "other_d_kv": sorted(others)}


def beside(run: Callable[[], Tensors]) -> Callable[[], Tensors]:
    side, load = torch.cuda.Stream(), torch.ones(BUSY, BUSY, device="cuda")

    def busy() -> Tensors:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                torch.mm(load, load)
        results = run()
        torch.cuda.synchronize()
        return results

    return busy


def replayed(run: Callable[[], Tensors]) -> Callable[[], Tensors]:
    stream_ = torch.cuda.Stream()
    stream_.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream_):
        run()
    torch.cuda.current_stream().wait_stream(stream_)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = run()

    def replay() -> Tensors:
        for t in results.values():
            # What a replay does not write again must not pass for its result.
            t.fill_(math.nan)
        graph.replay()
        torch.cuda.synchronize()
        return results

    return replay


def times(made: Sample, backward: Backwards, write: Write, specs: Specs) -> None:
    """Interleaved pairs of a base and each backward, in milliseconds of the device."""
    stock = BY_NAME["sparse_mla.cudnn_stock"]
    installed = not isinstance(stock.available("cuda"), Unavailable)
    base = stock if installed else ATOMIC
    for spec in (s for s in specs if s is not base):
        pair = (backward(base), backward(spec))
        for _ in range(WARM):
            pair[0](), pair[1]()
        rows = []
        for k in range(PAIRS):
            took = {i: milliseconds(pair[i]) for i in ((0, 1), (1, 0))[k % 2]}
            rows.append((took[0], took[1]))
        ratio, low, high = interval([b / a for a, b in rows])
        write(
            "times", base=base.name, spec=spec.name, case=made.case.to_json(), pairs_ms=rows, ratio=ratio, low=low,
            high=high, base_ms=statistics.median(a for a, _ in rows), spec_ms=statistics.median(b for _, b in rows),
        )  # fmt: skip


def milliseconds(run: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % bootstrap interval."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES))
    edge = int(0.025 * RESAMPLES)
    return statistics.median(ratios), medians[edge], medians[-edge - 1]


def memory(made: Sample, backward: Backwards, write: Write, specs: Specs) -> None:
    """Peak bytes beyond inputs and results, as the allocator counts them, beside the Contract's formula."""
    for spec in specs:
        run = backward(spec)
        run()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        results = run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before - sum(t.nbytes for t in results.values())
        formula = spec.contract.workspace(made.case) if spec.contract.workspace else 0
        write("memory", spec=spec.name, case=made.case.to_json(), measured=peak, formula=formula)
        del results


def formulas(write: Write) -> None:
    """The formulas at the problem's declared maxima."""
    case = named(**{**sparse_mla.space.maxima, "D_v": 512}, dtype="bf16", sink="finite")
    for spec in BACKWARDS:
        assert spec.contract.workspace is not None
        write("memory", spec=spec.name, case=case.to_json(), formula=spec.contract.workspace(case))


def adversarial(write: Write, small: bool) -> None:
    """All queries on one KV row, a huge d_out, scales finer than the bound: the proof fails, the result is right."""
    queries = 64 if small else 4096
    case = named(queries, 64, 64, 512, 512, 64, dtype="bf16", indices="one_row", sink="finite", regime="normal")
    made = drawn((queries, 64, 64, 512, 64))
    rows = torch.full_like(made.inputs["topk_idxs"], 7)
    made = Sample(
        case, {**made.inputs, "topk_idxs": rows}, {"d_out": made.cotangents["d_out"] * 2.0**100}, made.scalars
    )
    saved, _ = calls(made)
    given = sparse_mla.for_vjp(made.given, saved)
    for finer in (0, 24):
        flags: list[Tensor] = []
        half = Backward.kv_half

        def seen(this: Backward, *args: Any, half: Any = half, flags: Any = flags, **rest: Any) -> None:
            if rest.get("again"):
                flags.append(rest["scales"].retries.clone())
            half(this, *args, **rest)

        Backward.kv_half = seen  # type: ignore[method-assign]
        try:
            run = partial(fixed_point.vjp, **given, finer=finer)
            first = run()
        finally:
            Backward.kv_half = half  # type: ignore[method-assign]
        spec = FIXED.but(vjp=partial(fixed_point.vjp, finer=finer))
        gates = stream.gates(spec, made, first, saved=saved)
        write(
            "adversarial", finer=finer, case=case.to_json(),
            rows_tried_again=int((flags[0][:-1] == 1).sum()), second_pass=int(flags[0][-1]) == 1,
            hashes={name: digest(t) for name, t in first.items()},
            rungs={"same process": again(run, first, BESIDE), "graph replay": again(replayed(run), first, REPLAYS)},
            gates=of_gates(gates),
        )  # fmt: skip


def judged(made: Sample, saved: Tensors, backward: Backwards, write: Write, specs: Specs) -> None:
    """The backwards, Triton's with their forward, each policy by readings of its own; then truth alone."""
    forward = [] if all(spec in CUDNN for spec in specs) else [(FORWARD, saved)]
    claims = [*forward, *((spec, backward(spec)()) for spec in specs)]
    for group in alike(claims, made.case):
        gates, figures = on_the_clock(lambda group=group: side_by_side(group, made, saved=saved))
        for (spec, _), of_spec in zip(group, gates, strict=True):
            write("judged", spec=spec.name, case=made.case.to_json(), gates=of_gates(of_spec), **figures)
    _, figures = on_the_clock(lambda: truth_alone(made, saved))
    write("judged", spec="truth alone", case=made.case.to_json(), **figures)


def alike(claims: Sequence[Claim], case: Case) -> list[list[Claim]]:
    """The claims by what they promise of roundings and sums, which is what readings are made of."""
    groups: list[list[Claim]] = []
    for claim in claims:
        policy = claim[0].contract.policy(case)
        group = next((g for g in groups if g[0][0].contract.policy(case) == policy), None)
        if group is None:
            groups.append([claim])
        else:
            group.append(claim)
    return groups


def truth_alone(made: Sample, saved: Tensors) -> None:
    """FP64 forward and VJP of every query, part by part."""
    from numcheck.reading import Truth
    from numcheck.reading.pieces import Pieces
    from numcheck.reading.slices import rows_that_fit, sliced, upcast
    from numcheck.reading.walk import walk

    reading, rows = Truth(), rows_that_fit(sparse_mla, made, "cuda")
    reading.pieces = Pieces(frozenset(sparse_mla.partial))
    for start in range(0, made.case["S_q"], rows):
        stop = min(start + rows, made.case["S_q"])
        kept = {name: upcast(t[start:stop], "cuda") for name, t in saved.items()}
        results = walk(sparse_mla, reading, sliced(sparse_mla, made, start, stop, "cuda"), kept)
        for name in sparse_mla.partial:
            reading.keep(name, results[name])
    for name in sparse_mla.partial:
        reading.leave(reading.settle(name))


def on_the_clock(function: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """What `function` returns, its seconds, and its peak GiB beyond what is held already."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    given, start = torch.cuda.memory_allocated(), time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - given) / 2**30
    return result, {"seconds": time.perf_counter() - start, "peak_gib": peak, "given_gib": given / 2**30}


def of_gates(gates: tuple[Gate, ...]) -> list[dict[str, Any]]:
    return [{**gate.to_json(), "held": gate.held} for gate in gates]


def told(row: Mapping[str, Any]) -> str:
    """One line of a row, without its Case, raw pairs, hashes and reasons."""
    short = {k: v for k, v in row.items() if k not in ("case", "pairs_ms", "hashes", "gates", "environment")}
    sizes = tuple(row["case"]["sizes"].values()) if "case" in row else ""
    lines = [f"{sizes} {json.dumps(short)}"]
    lines += [
        f"    {g['kind']:8} {g['output']:7} {float(g['value']):12.5g} <= {float(g['limit']):10.5g} "
        f"{'held' if g['held'] else 'BROKEN'}"
        for g in row.get("gates", ())
    ]
    return "\n".join(lines)


STEPS = ("bits", "times", "memory", "adversarial", "judged")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("steps", nargs="*", metavar="STEP", help="some of " + ", ".join(STEPS) + " (default: all)")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", type=int, help="the deployed shape of that number alone")
    parser.add_argument(
        "--spec", nargs="+", choices=[s.name for s in (*BACKWARDS, *CUDNN)], default=[s.name for s in BACKWARDS]
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, help="of bits, in one process (default: %(default)s)")
    chosen = parser.parse_args()
    specs = tuple(BY_NAME[name] for name in chosen.spec)
    steps = chosen.steps or list(STEPS)
    torch.set_grad_enabled(False)
    with chosen.out.open("a") as file:

        def write(kind: str, **row: Any) -> None:
            file.write(json.dumps({"kind": kind, **row}) + "\n")
            file.flush()
            print(told({"kind": kind, **row}), flush=True)

        write("environment", environment=environment("cuda"))
        if "adversarial" in steps:
            adversarial(write, chosen.small)
        shapes = SMALL if chosen.small else DEPLOYED
        shapes = shapes if chosen.only is None else (shapes[chosen.only],)
        for sizes in (*shapes, *(() if chosen.small or chosen.only is not None else LONG)):
            wanted = [step for step in steps if step == "memory" or (step != "adversarial" and sizes in shapes)]
            if wanted:
                measure(drawn(sizes), wanted, write, specs, chosen.repeats)
        if "memory" in steps:
            formulas(write)


def measure(made: Sample, steps: list[str], write: Write, specs: Specs, repeats: int) -> None:
    saved, backward = calls(made)
    hashes = {name: digest(t) for name, t in {**made.tensors, **saved}.items()}
    write("made", case=made.case.to_json(), hashes=hashes, gpu=str(torch.cuda.get_device_properties(0).uuid))
    for step in steps:
        if step == "judged":
            judged(made, saved, backward, write, specs)
        elif step == "bits":
            bits(made, backward, write, specs, repeats)
        else:
            {"times": times, "memory": memory}[step](made, backward, write, specs)


if __name__ == "__main__":
    main()
