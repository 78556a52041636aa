"""What each sparse-MLA implementation promises, as functions of the Case.

Totals and points are the oracle's (`numcheck.oracles.sparse_mla` lists them): E and P.forward in the forward,
P.backward (as it enters d_kv), P.dS (as it enters dS), dP, D, dS.unscaled and dS in the backward.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.blocks import eager_bytes
from numcheck import Case, Contract, Sum

DTYPES = ("fp32", "bf16", "fp16")
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def returned(case: Case) -> Mapping[str, str]:
    """Only outputs round: out, d_q and d_kv to the data's dtype, d_kv only where it is not asked for in FP32."""
    names = ["out", "d_q"] + (["d_kv"] if case.fact("d_kv", "data") == "data" else [])
    return {} if case.dtype == "fp32" else dict.fromkeys(names, "data")


def tensor_cores(case: Case) -> Mapping[str, str]:
    """The policy of fused attention on tensor cores: also P and the scaled dS round to the data's dtype.

    In the forward it is exp(S - row maximum) that rounds (E), before the division by its FP32 sum.
    """
    points = () if case.dtype == "fp32" else ("E", "P.backward", "dS")
    return {**returned(case), **dict.fromkeys(points, "data")}


# torch.matmul, tl.dot and tensor cores each take a tree of their own.
PRODUCTS = Sum("fp32", tree="any", products=True)
# Totals that are matrix products (`numcheck.oracles.sparse_mla` lists them). The interpreter rounds them to nearest.
DOTS = ("S", "out", "dP", "d_q", "dK", "dV")
# Hopper's tensor cores add 16 products of 16-bit numbers at a time.
TENSOR_CORES = replace(PRODUCTS, rounding="any", aligned=16)


def sums_on_tensor_cores(blocks: int) -> Mapping[str, Sum]:
    """FP32 in a tree of the kernel's choice; products on tensor cores, which do not round to nearest.

    A KV row is added to once a slot and block of heads.
    """
    row = replace(PRODUCTS, split=max(1, blocks))
    return {"": PRODUCTS, "d_kv": row, **dict.fromkeys(DOTS, TENSOR_CORES)}


def by_atomics(sums: Mapping[str, Sum], *totals: str) -> Mapping[str, Sum]:
    """`sums` where FP32 atomics on global memory make these totals: they flush addends and sums (PTX ISA, red.f32)."""
    return {**sums, **{name: replace(sums.get(name, sums[""]), flush=True) for name in totals}}


def eager_workspace(case: Case) -> int:
    """Bytes of temporaries of `eager`."""
    n = Sizes(*(case[name] for name in Sizes._fields))
    return eager_bytes(n, BYTES[case.dtype], d_kv_bytes(case), sink=case.fact("sink", "none") != "none")


def d_kv_bytes(case: Case) -> int:
    """Bytes of an element of d_kv."""
    return 4 if case.fact("d_kv", "data") == "fp32" else BYTES[case.dtype]


EAGER = Contract(rounds=returned, accumulate=PRODUCTS, dtypes=DTYPES, refuses=True, workspace=eager_workspace)
