"""A production-sized sparse attention, made by plain torch in FP32, judged part by part on the GPU that made it.

    python docs/measurements/stream.py S H D topk [draws jitters]

The kernel rounds as a fused one
does on tensor cores: P and the scaled dS to bf16, then the outputs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from kernels.sparse_mla.contracts import tensor_cores
from numcheck import Contract, KernelSpec, stream
from numcheck.oracles.sparse_mla import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.sample import Sample

ROWS = 64
GIB = 2**30


def drawn(S: int, H: int, D: int, topk: int) -> Sample:
    """Normal data and distinct random indices, made on the GPU: counter-based hashing of so many takes minutes."""
    generator = torch.Generator("cuda").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    case = named(S, S, H, D, D, topk, dtype="bf16", regime="normal", sink="none")
    rows = [torch.rand(min(1024, S - t), S, generator=generator, device="cuda") for t in range(0, S, 1024)]
    index = torch.cat([row.topk(topk, dim=1).indices.int() for row in rows])
    inputs = {"q": normal(S, H, D), "kv": normal(S, D), "topk_idxs": index}
    return Sample(case, inputs, {"d_out": normal(S, H, D)}, sparse_mla.scalars(case))


def kernel(made: Sample) -> dict[str, Tensor]:
    """Forward and backward, some queries at a time."""
    q, kv, index = (made.inputs[name] for name in ("q", "kv", "topk_idxs"))
    d_out, scale = made.cotangents["d_out"], float(made.scalars["softmax_scale"])
    out, d_q = torch.empty_like(q), torch.empty_like(q)
    lse = torch.empty(q.shape[:2], device="cuda")
    d_kv = torch.zeros(kv.shape, device="cuda")
    for t in range(0, len(q), ROWS):
        rows = slice(t, t + ROWS)
        keys, Q, dO = kv[index[rows].long()].float(), q[rows].float(), d_out[rows].float()
        S = Q @ keys.mT * scale
        top = S.amax(-1, keepdim=True)
        powers = torch.exp(S - top)
        row_sum = powers.sum(-1, keepdim=True)
        out[rows] = (powers.bfloat16().float() @ keys) / row_sum
        lse[rows] = (top + torch.log(row_sum))[..., 0]
        P = torch.exp(S - lse[rows][..., None])
        delta = (dO * out[rows].float()).sum(-1, keepdim=True)
        dS = (P * (dO @ keys.mT - delta) * scale).bfloat16().float()
        d_q[rows] = dS @ keys
        share = dS.mT @ Q + P.bfloat16().float().mT @ dO
        d_kv.index_add_(0, index[rows].long().flatten(), share.flatten(0, 1))
    return {"out": out, "lse": lse, "d_q": d_q, "d_kv": d_kv.bfloat16()}


def main(S: int, H: int, D: int, topk: int, draws: int = stream.DRAWS, jitters: int = 4) -> None:
    """Make, judge, print."""
    made = drawn(S, H, D, topk)
    outputs = kernel(made)
    contract = Contract(rounds=tensor_cores, accumulate="fp32")
    spec = KernelSpec("torch", sparse_mla, forward=dict, vjp=dict, contract=contract)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    given, start = torch.cuda.memory_allocated(), time.perf_counter()
    gates = stream.gates(spec, made, outputs, draws=draws, jitters=jitters)
    seconds, peak = time.perf_counter() - start, torch.cuda.max_memory_allocated() - given
    print(f"S {S} H {H} D {D} topk {topk}: {seconds:.1f} s, {peak / GIB:.2f} GiB beyond {given / GIB:.2f}")
    for gate in gates:
        held = "held" if gate.held else "BROKEN"
        print(f"{gate.kind:7} {gate.output:4} {gate.value:11.5g} <= {gate.limit:10.5g} {held}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
