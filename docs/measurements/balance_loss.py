"""Balance losses on a GPU: the interpreter's bits, graph replay, fullgraph compile, and time against torch.

    python docs/measurements/balance_loss.py OUT                   on a GPU: everything, into OUT/gpu.jsonl
    TRITON_INTERPRET=1 python docs/measurements/balance_loss.py OUT        on a CPU: hashes alone, into OUT/cpu.jsonl

With both files in one folder the second run says where their bits differ. Each row is one JSON object with its kind:
environment, time (with every raw pair), native, compile, replay, bits.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.measurements.replay import captured, interleaved, line, summary, writer
from kernels.balance_loss import SPECS
from numcheck import Case, KernelSpec
from numcheck.environment import environment
from numcheck.execute import execute
from numcheck.oracles.balance_loss_cases import EPSILON, NAMED
from numcheck.reading import Radius, Truth, read
from numcheck.sample import Sample, sample
from numcheck.ulp import digest, ulp, ulp_distance

BY_NAME = {spec.name: spec for spec in SPECS}
FUSED = ("balance_loss_map.triton", "balance_loss_topk.triton")
Step = Callable[[], Any]
Static = dict[str, Tensor]


def case_of(T: int, E: int, K: int, **facts: Any) -> Case:
    return Case.of(T=T, E=E, K=K, regime="normal", facts=facts)


def named_cases() -> list[Case]:
    small = [case_of(5, 9, 2, rows="mixed", padding="some"), case_of(130, 64, 6, rows="signed", denominator=3.75)]
    return [*small, *(case_of(T, E, K, rows="signed") for T, E, K in NAMED)]


def bits(device: str, write: Callable[..., None]) -> None:
    """Hashes of every output, and whether each is within its radius of the truth."""
    for name in FUSED:
        spec = BY_NAME[name]
        for case in named_cases():
            drawn = sample(spec.oracle, case, device=device)
            run = execute(spec, drawn, device=device)
            exact, saved = drawn.exact(), {"frequencies": run.outputs["frequencies"].cpu().double()}
            truth = read(spec.oracle, Truth(), exact, saved)
            radius = read(spec.oracle, Radius(spec.contract.policy(case)), exact, saved)
            apart = {n: (t.cpu().double() - truth[n]).abs() for n, t in run.outputs.items()}
            held = {n: bool((apart[n] <= radius[n]).all()) for n in apart}
            hashes = {n: digest(t) for n, t in run.outputs.items()}
            write("bits", spec=name, case=case.to_json(), hashes=hashes, within_radius=held, error=run.error)


def step(spec: KernelSpec, given: Mapping[str, Any]) -> dict[str, Tensor]:
    """Forward and backward of one spec."""
    assert spec.forward is not None
    assert spec.vjp is not None
    outputs = spec.forward(**spec.oracle.for_forward(given))
    return {**outputs, **spec.vjp(**spec.oracle.for_vjp(given, outputs))}


def replay(write: Callable[..., None]) -> None:
    """A graph replayed with other scores, maps, padding, denominators and cotangents has the bits of plain calls."""
    for name in (*FUSED, "balance_loss_map.eager", "balance_loss_topk.eager"):
        spec = BY_NAME[name]
        for T, E, K in NAMED[:3]:
            case = case_of(T, E, K, rows="signed", padding="some")
            static = sample(spec.oracle, case, device="cuda")
            with torch.no_grad():
                graph, results = captured(lambda spec=spec, static=static: step(spec, static.given))
                rows = [replayed(spec, static, graph, results, case, seed) for seed in (1, 2, 3, 1)]
            same = all(all(row.values()) for row in rows)
            print(f"replay {name} {(T, E, K)}: {'equal' if same else rows}", flush=True)
            write("replay", spec=name, case=case.to_json(), equal=rows)


def replayed(spec: KernelSpec, static: Sample, graph: Any, results: dict[str, Tensor], case: Case, seed: int) -> Any:
    """Whether each output of a replay with another seed and denominator equals a plain call's, bit for bit."""
    other = case.but(seed=seed)
    new = sample(spec.oracle, other, device="cuda").but(denominator=torch.tensor((4096.0, 3.75, 0.0)[seed % 3]))
    for tensor, value in zip(static.tensors.values(), new.tensors.values(), strict=True):
        tensor.copy_(value)
    graph.replay()
    torch.cuda.synchronize()
    expected = step(spec, new.given)
    return {n: digest(results[n]) == digest(t) for n, t in expected.items()}


def compiled(write: Callable[..., None]) -> None:
    """torch.compile(fullgraph=True) of loss and gradient through the custom operators, against plain calls."""
    for T, E, K in (NAMED[0], NAMED[2]):
        case = case_of(T, E, K, rows="signed", padding="some")
        given = sample(BY_NAME[FUSED[0]].oracle, case, device="cuda").inputs
        for name, function in losses(given, K).items():
            torch.compiler.reset()
            pairs = [graded(f, given["scores"]) for f in (function, torch.compile(function, fullgraph=True))]
            equal = [digest(a) == digest(b) for a, b in zip(*pairs, strict=True)]
            print(f"compile {name} {(T, E, K)}: {'equal' if all(equal) else equal}", flush=True)
            write("compile", operator=name, case=case.to_json(), loss_equal=equal[0], gradient_equal=equal[1])


def losses(given: Mapping[str, Tensor], K: int) -> dict[str, Callable[[Tensor], Tensor]]:
    from kernels.balance_loss import operators

    mask, routing, below = given["padding"], given["routing_map"], given["denominator"]
    return {
        "balance_loss_map": lambda s: 3.0 * operators.balance_loss_map(s, routing, mask, below, 0.5)[3],
        "balance_loss_topk": lambda s: 3.0 * operators.balance_loss_topk(s, mask, below, 0.5, K)[3],
    }


def graded(function: Callable[[Tensor], Tensor], scores: Tensor) -> tuple[Tensor, Tensor]:
    leaf = scores.clone().requires_grad_()
    loss = function(leaf)
    return loss.detach(), torch.autograd.grad(loss, leaf)[0]


def beside_native(write: Callable[..., None]) -> None:
    """How many ulps the fused kernels are from native torch at most, and how many the two Contracts' radii allow."""
    for objective, other in (("map", "native"), ("topk", "eager")):
        pair = [BY_NAME[f"balance_loss_{objective}.{kind}"] for kind in ("triton", other)]
        for (T, E, K), rows in itertools.product(NAMED, ("positive", "signed")):
            case = case_of(T, E, K, rows=rows)
            drawn = sample(pair[0].oracle, case, device="cuda")
            got, expected = (step(spec, drawn.given) for spec in pair)
            exact, saved = drawn.exact(), {"frequencies": got["frequencies"].cpu().double()}
            radii = [read(spec.oracle, Radius(spec.contract.policy(case)), exact, saved) for spec in pair]
            found = {}
            for name, value in got.items():
                a, b = value.cpu(), expected[name].cpu()
                allowed = (radii[0][name] + radii[1][name]) / ulp(b.double(), "fp32")
                found[name] = {"ulps": int(ulp_distance(a, b).max()), "share": float((a != b).double().mean()),
                               "allowed": float(allowed.max()), "held": bool(((a.double() - b.double()).abs()
                                <= radii[0][name] + radii[1][name]).all())}  # fmt: skip
            print(
                f"{pair[1].name} {(T, E, K)} {rows}:", {n: (f["ulps"], f["held"]) for n, f in found.items()}, flush=True
            )
            write("native", a=pair[0].name, b=pair[1].name, case=case.to_json(), outputs=found)


def native(spec: KernelSpec, given: Mapping[str, Any]) -> Step:
    """Forward and backward as torch users write them, by autograd; the top-k map by torch.topk."""
    leaf = given["scores"].detach().clone().requires_grad_()
    coefficient, below, d_loss = given["coefficient"], given["denominator"], given["d_loss"]

    def run() -> Any:
        if "topk" in given:
            chosen = torch.zeros_like(leaf, dtype=torch.bool)
            chosen.scatter_(1, leaf.detach().topk(given["topk"], dim=1).indices, True)
            mass = (leaf / (leaf.sum(-1, keepdim=True) + EPSILON)).sum(0)
        else:
            chosen, mass = given["routing_map"], F.normalize(leaf, p=1, dim=-1).sum(0)
        frequencies = F.normalize(chosen.to(torch.float32).sum(0), p=1, dim=0) * leaf.shape[1]
        raw = (frequencies * mass).sum()
        loss = raw * coefficient / below.clamp(min=1.0)
        return loss, torch.autograd.grad(loss, leaf, d_loss)[0]

    return run


def times(write: Callable[..., None]) -> None:
    """Forward and backward by graph replay, interleaved pairs: native over fused, and atomic over fused."""
    for objective in ("map", "topk"):
        fused, atomic = (BY_NAME[f"balance_loss_{objective}.{kind}"] for kind in ("triton", "triton_atomic"))
        for T, E, K in NAMED:
            case = case_of(T, E, K)
            given = sample(fused.oracle, case, device="cuda").given
            ours, theirs = (captured_step(s, given) for s in (fused, atomic))
            with torch.enable_grad():
                plain = captured(native(fused, given))[0]
            for label, other in (("native / fused", plain), ("atomic / fused", theirs)):
                pairs = interleaved(ours, other)
                found = summary(pairs)
                print(line(f"{objective:<5}{(T, E, K)!s:<16}{label}", found), flush=True)
                write("time", objective=objective, case=case.to_json(), what=label, **found)


def captured_step(spec: KernelSpec, given: Mapping[str, Any]) -> torch.cuda.CUDAGraph:
    with torch.no_grad():
        return captured(lambda: step(spec, given))[0]


def compared(folder: Path) -> str:
    """How many hashes of the GPU and of the interpreter agree, where both have been written to `folder`."""
    files = [folder / name for name in ("cpu.jsonl", "gpu.jsonl")]
    if not all(file.exists() for file in files):
        return "bits: one of cpu.jsonl and gpu.jsonl is not there to compare with"
    found = []
    for file in files:
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        bits = [row for row in rows if row["kind"] == "bits"]
        found.append({(r["spec"], json.dumps(r["case"]), n): h for r in bits for n, h in r["hashes"].items()})
    differ = sorted(
        {(spec, output) for (spec, case, output), h in found[0].items() if found[1].get((spec, case, output)) != h}
    )
    return f"bits: {len(found[0])} outputs in the interpreter, other bits on the GPU in {differ or 'none'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the rows")
    parser.add_argument("--bits", action="store_true", help="hashes alone")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / f"{'gpu' if device == 'cuda' else 'cpu'}.jsonl").open("w") as file:
        write = writer(file)
        write("environment", **environment(device))
        if device == "cuda" and not options.bits:
            times(write)
            beside_native(write)
            compiled(write)
            replay(write)
        bits(device, write)
    print(compared(options.out))


if __name__ == "__main__":
    main()
