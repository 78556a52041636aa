"""What the cuDNN specs promise, as functions of the Case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from kernels.sparse_mla import contracts
from kernels.sparse_mla.cudnn_arguments import DTYPES, legal
from kernels.sparse_mla.cudnn_workspace import fixed_point_workspace, sliced_workspace, stock_workspace
from numcheck import Case, Contract, Rounding, Sum
from numcheck.oracles.sparse_mla_cases import has_lengths, indices, lengths, live

# One CTA takes 64 heads of one query; in the preprocess, 8 warps share 64 queries of one head.
HEADS, QUERIES, WARPS = 64, 64, 8


def rounds(case: Case) -> Mapping[str, str | Rounding]:
    """The policy of tensor cores, with powers that are zero below 2^-126.

    P comes from ex2.approx.ftz. The sink's share is 1 / (1 + 2^x), which is zero where 2^x overflows.
    """
    power = Rounding("fp32", flush=True)
    return {**contracts.tensor_cores(case), "P.dS": power, "P.backward": Rounding("data", flush=True), "p_sink": power}


def sums(case: Case) -> Mapping[str, Sum]:
    """All products run on tensor cores, in bf16 and fp16 alike; a KV row is added to once a slot and tile of heads."""
    return contracts.sums_on_tensor_cores(-(-case["H"] // HEADS))


def stock_sums(case: Case) -> Mapping[str, Sum]:
    """The same, d_kv and d_sink by float atomics."""
    return contracts.by_atomics(sums(case), "d_kv", "d_sink")


def sliced_sums(case: Case) -> Mapping[str, Sum]:
    """The same, slices of d_kv by float atomics."""
    return contracts.by_atomics(sums(case), "d_kv")


def writers(case: Case) -> Mapping[str, int]:
    """The most additions to one address: one a listing slot and head tile for d_kv, one a warp for d_sink."""
    tiles = -(-case["H"] // HEADS)
    return {"d_q": 1, "d_kv": most_listed(case) * tiles, "d_sink": WARPS * -(-case["S_q"] // QUERIES)}


def most_listed(case: Case) -> int:
    """How many live slots list the KV row that is listed most, from the index data of the Case."""
    tensors = {"topk_idxs": indices(case, "topk_idxs")}
    if has_lengths(case):
        tensors["topk_length"] = lengths(case, "topk_length")
    listed = tensors["topk_idxs"][live(case, tensors)]
    return int(torch.bincount(listed.flatten()).max()) if listed.numel() else 0


STOCK = Contract(
    rounds=rounds,
    accumulate=stock_sums,
    order={"d_q": "single", "d_kv": "any", "d_sink": "any"},
    dtypes=DTYPES,
    legal=legal,
    refuses=True,
    workspace=stock_workspace,
)

FIXED_POINT = replace(
    STOCK,
    accumulate=sums,
    order={"d_q": "single", "d_kv": "fixed", "d_sink": "fixed"},
    workspace=fixed_point_workspace,
)
SLICED = replace(FIXED_POINT, accumulate=sliced_sums, workspace=sliced_workspace)
