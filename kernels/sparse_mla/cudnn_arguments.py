"""What the cuDNN specs take, checked before anything is allocated, and the Cases that are inside their promise."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.sparse_mla.arguments import Limits, Sizes, vjp_sizes
from numcheck import Case

DTYPES = ("bf16", "fp16")
# (D, D_v): SM90's tiles exist for these two.
DIMS = ((512, 512), (576, 512))
LIMITS = Limits(dtypes=(torch.bfloat16, torch.float16), dims=DIMS, contiguous=True, device="cuda")
# The kernel is written for heads that share keys; it refuses a single one.
FEWEST_HEADS = 2
# Bytes: what the bulk copy engine and 16-byte loads ask for.
ALIGNMENT = 16


def sizes(
    q: Tensor,
    kv: Tensor,
    topk_idxs: Tensor,
    topk_length: Tensor | None,
    sink: Tensor | None,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    *,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
) -> Sizes:
    """As `arguments.vjp_sizes` within LIMITS; also raises ValueError for one head, FP32 d_kv and odd addresses."""
    n = vjp_sizes(
        q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
        softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype, limits=LIMITS,
    )  # fmt: skip
    if d_kv_dtype != "data":
        raise ValueError(f"d_kv_dtype is {d_kv_dtype!r}, but cuDNN returns d_kv in q's dtype only; ask for 'data'")
    if n.H < FEWEST_HEADS:
        raise ValueError(f"q has {n.H} heads, but cuDNN's kernel takes at least {FEWEST_HEADS}, which share their keys")
    given = {"q": q, "kv": kv, "topk_idxs": topk_idxs, "out": out, "lse": lse, "d_out": d_out}
    optional = {name: t for name, t in (("topk_length", topk_length), ("sink", sink)) if t is not None}
    for name, tensor in {**given, **optional}.items():
        if tensor.data_ptr() % ALIGNMENT:
            raise ValueError(
                f"{name} starts at an address that is no multiple of {ALIGNMENT} bytes (storage offset "
                f"{tensor.storage_offset()}), which the kernel's bulk copies need; call .clone()"
            )
    return n


def legal(case: Case) -> str | None:
    """Why a Case is outside the promise, or None; `sizes` refuses it."""
    if (case["D"], case["D_v"]) not in DIMS:
        allowed = ", ".join(f"{d} with D_v {v}" for d, v in DIMS)
        return f"D={case['D']} with D_v={case['D_v']}, but cuDNN has kernels for {allowed}"
    if case["H"] < FEWEST_HEADS:
        return f"H={case['H']}, but cuDNN's kernel takes at least {FEWEST_HEADS} heads"
    if case.fact("d_kv", "data") != "data":
        return "cuDNN returns d_kv in the data's dtype only"
    if case.layout != "contiguous":
        return "cuDNN's kernel takes contiguous tensors only"
    element = 2  # bytes of bf16 and fp16, the smallest elements among the inputs
    if case.offset * element % ALIGNMENT:
        return f"a storage offset of {case.offset} elements is off the {ALIGNMENT} bytes that the kernel's copies need"
    return None


def nothing(q: Tensor, kv: Tensor, sink: Tensor | None) -> dict[str, Tensor]:
    """The gradients where no slot can be live: zeros."""
    zeros = {"d_q": torch.zeros_like(q), "d_kv": torch.zeros_like(kv)}
    return zeros if sink is None else {**zeros, "d_sink": torch.zeros_like(sink)}
