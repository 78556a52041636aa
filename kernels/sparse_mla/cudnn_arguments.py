"""What the cuDNN specs take, checked before anything is allocated, and the Cases that are inside their promise."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from kernels.sparse_mla.arguments import Sizes, inputs, vjp_sizes
from numcheck import Case

DTYPES = ("bf16", "fp16")
TORCH_DTYPES = (torch.bfloat16, torch.float16)
# (D, D_v): SM90's tiles exist for these two.
DIMS = ((512, 512), (576, 512))
DEVICE = "cuda"
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
    """As `arguments.vjp_sizes`, for 16-bit data of DIMS on DEVICE.

    Also raises ValueError for one head, FP32 d_kv, strides and odd addresses.
    """
    n = vjp_sizes(
        q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
        softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype,
    )  # fmt: skip
    if q.dtype not in TORCH_DTYPES:
        raise TypeError(f"q is {q.dtype}, but it must be one of {', '.join(map(str, TORCH_DTYPES))}")
    if (n.D, n.D_v) not in DIMS:
        allowed = ", ".join(f"{d} with value_dim {v}" for d, v in DIMS)
        raise ValueError(f"q has {n.D} features and value_dim is {n.D_v}, but this kernel takes {allowed}")
    given = inputs(q, kv, topk_idxs, topk_length, sink)
    _check_memory({**given, "out": out, "lse": lse, "d_out": d_out})
    if q.device.type != DEVICE:
        raise ValueError(f"q is on {q.device}, but this kernel runs on {DEVICE}")
    if d_kv_dtype != "data":
        raise ValueError(f"d_kv_dtype is {d_kv_dtype!r}, but cuDNN returns d_kv in q's dtype only; ask for 'data'")
    if n.H < FEWEST_HEADS:
        raise ValueError(f"q has {n.H} heads, but cuDNN's kernel takes at least {FEWEST_HEADS}, which share their keys")
    return n


def _check_memory(given: Mapping[str, Tensor]) -> None:
    """Raises ValueError for strides and for addresses that the kernel's bulk copies cannot take."""
    for name, tensor in given.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}, but it must be contiguous; call .contiguous()")
        if tensor.data_ptr() % ALIGNMENT:
            raise ValueError(
                f"{name} starts at an address that is no multiple of {ALIGNMENT} bytes (storage offset "
                f"{tensor.storage_offset()}), which the kernel's bulk copies need; call .clone()"
            )


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
