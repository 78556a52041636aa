"""What the Triton implementations of sparse MLA promise, as functions of the Case. Free of Triton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from kernels.sparse_mla import contracts, workspace
from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.tiles import blocks_of, tiles_of
from numcheck import Case, Contract, Sum
from numcheck.contract import OrderPromise
from numcheck.oracles import sparse_mla_cases as cases

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


def rounds(case: Case) -> Mapping[str, str]:
    """Outputs, P as PV and d_kv take it, and the scaled dS round to the data's dtype; FP32 data rounds nowhere."""
    points = () if case.dtype == "fp32" else ("P.forward", "P.backward", "dS")
    return {**contracts.returned(case), **dict.fromkeys(points, "data")}


def sums(case: Case) -> Mapping[str, Sum]:
    """FP32 in a tree of Triton's choice. Products of 16-bit data run on tensor cores, of FP32 data they do not."""
    every = contracts.sums_on_tensor_cores(blocks_of(sizes(case), element(case)))
    return every if case.dtype != "fp32" else {name: how for name, how in every.items() if name not in contracts.DOTS}


def atomic_sums(case: Case) -> Mapping[str, Sum]:
    """The same, d_kv by float atomics."""
    return contracts.by_atomics(sums(case), "d_kv")


def legal(case: Case) -> str | None:
    """Why the kernels refuse a Case, or None."""
    try:
        tiles_of(sizes(case), element(case))
    except ValueError as error:
        return str(error)
    return None


def sizes(case: Case) -> Sizes:
    """A Case's sizes as the kernels name them."""
    return Sizes(case["S_q"], case["S_k"], case["H"], case["D"], case["D_v"], case["topk"])


def element(case: Case) -> int:
    """Bytes of one element of the data."""
    return _BYTES[case.dtype]


def launches(case: Case) -> bool:
    """Whether anything is launched: no slot can be live where a size is 0."""
    return not sizes(case).empty


def writers(case: Case) -> Mapping[str, int]:
    """Values added to an address of each output: for d_kv one a live slot that lists the row and block of heads."""
    n = sizes(case)
    return {"out": 1, "lse": 1, "d_q": 1, "d_sink": 1, "d_kv": busiest_row(case) * blocks_of(n, element(case))}


def busiest_row(case: Case) -> int:
    """The most live slots that list one KV row, from the Case's own indices and lengths."""
    made = {"topk_idxs": cases.indices(case, "topk_idxs")}
    if cases.has_lengths(case):
        made["topk_length"] = cases.lengths(case, "topk_length")
    listed = made["topk_idxs"][cases.live(case, made)]
    return int(torch.bincount(listed).max()) if listed.numel() else 0


def atomic_workspace(case: Case) -> int:
    """Bytes of `atomic.vjp`."""
    n = sizes(case)
    return 0 if n.empty else workspace.atomic_bytes(n, _wide(case))


def ordered_workspace(case: Case) -> int:
    """Bytes of `ordered.vjp`."""
    n, width = sizes(case), element(case)
    return 0 if n.empty else workspace.ordered_bytes(n, _wide(case), width, workspace.queries_at_a_time(n, width))


def fixed_point_workspace(case: Case) -> int:
    """Bytes of `fixed_point.vjp`."""
    n = sizes(case)
    return 0 if n.empty else workspace.fixed_point_bytes(n)


def _wide(case: Case) -> bool:
    return cases.d_kv_dtype(case) == "fp32"


def _order(d_kv: OrderPromise) -> Mapping[str, OrderPromise]:
    return {"out": "single", "lse": "single", "d_q": "single", "d_sink": "single", "d_kv": d_kv}


FORWARD = Contract(
    rounds=rounds,
    accumulate=sums,
    order=_order("fixed"),
    dtypes=contracts.DTYPES,
    legal=legal,
    refuses=True,
)
ATOMIC = replace(FORWARD, accumulate=atomic_sums, order=_order("any"), workspace=atomic_workspace)
ORDERED = replace(FORWARD, workspace=ordered_workspace)
FIXED_POINT = replace(FORWARD, workspace=fixed_point_workspace)
