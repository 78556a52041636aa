"""What every sparse-MLA implementation takes, checked before anything is allocated, launched or written."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# What d_kv comes back in: the data's dtype, or FP32, where the order of its sums shows.
D_KV_DTYPES = ("data", "fp32")


class Sizes(NamedTuple):
    """S_q queries, S_k KV rows, H heads, D query and key features, of which the first D_v are the value, topk slots."""

    S_q: int
    S_k: int
    H: int
    D: int
    D_v: int
    topk: int

    @property
    def empty(self) -> bool:
        """Whether no slot can be live, so that nothing has to be launched: outputs and gradients are constants."""
        return 0 in (self.S_q, self.S_k, self.H, self.topk)


def forward_sizes(
    q: Tensor,
    kv: Tensor,
    topk_idxs: Tensor,
    topk_length: Tensor | None,
    sink: Tensor | None,
    *,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
) -> Sizes:
    """The sizes of a call with q [S_q, H, D], kv [S_k, D], topk_idxs [S_q, topk], topk_length [S_q], sink [H].

    Raises ValueError for shapes, sizes, devices or scales that do not fit, TypeError for dtypes.
    """
    return _checked(inputs(q, kv, topk_idxs, topk_length, sink), softmax_scale, value_dim, d_kv_dtype)


def vjp_sizes(
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
    """As `forward_sizes`, with out and d_out [S_q, H, D_v] in q's dtype and lse [S_q, H] in FP32 checked too."""
    given = {**inputs(q, kv, topk_idxs, topk_length, sink), "out": out, "lse": lse, "d_out": d_out}
    return _checked(given, softmax_scale, value_dim, d_kv_dtype)


def optional(n: Sizes, topk_length: Tensor | None, sink: Tensor | None) -> tuple[int, int]:
    """How many queries have a length and how many heads a sink, as kernels take them: all or none."""
    return 0 if topk_length is None else n.S_q, 0 if sink is None else n.H


def d_kv_torch_dtype(q: Tensor, d_kv_dtype: str) -> torch.dtype:
    """What d_kv is returned in, for data of q's dtype."""
    return torch.float32 if d_kv_dtype == "fp32" else q.dtype


def inputs(
    q: Tensor, kv: Tensor, topk_idxs: Tensor, topk_length: Tensor | None, sink: Tensor | None
) -> dict[str, Tensor]:
    optional = {"topk_length": topk_length, "sink": sink}
    given = {name: t for name, t in optional.items() if t is not None}
    return {"q": q, "kv": kv, "topk_idxs": topk_idxs, **given}


def _checked(given: dict[str, Tensor], softmax_scale: float, value_dim: int, d_kv_dtype: str) -> Sizes:
    if d_kv_dtype not in D_KV_DTYPES:
        raise ValueError(f"d_kv_dtype is {d_kv_dtype!r}, but it must be one of {', '.join(D_KV_DTYPES)}")
    q = given["q"]
    for name, rank in (("q", 3), ("kv", 2), ("topk_idxs", 2)):
        if given[name].dim() != rank:
            raise ValueError(f"{name} has shape {_shape(given[name])}, but it must be {_named(name)}")
    n = Sizes(q.shape[0], given["kv"].shape[0], q.shape[1], q.shape[2], value_dim, given["topk_idxs"].shape[1])
    _check_value(n)
    for name, tensor in given.items():
        wanted = tuple(getattr(n, size) for size in SHAPES[name])
        if tuple(tensor.shape) != wanted:
            raise ValueError(
                f"{name} has shape {_shape(tensor)}, but q {_shape(q)}, kv {_shape(given['kv'])}, topk_idxs "
                f"{_shape(given['topk_idxs'])} and value_dim {value_dim} ask for {_named(name)} = {list(wanted)}"
            )
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}, but q is on {q.device}; move one of them")
    _check_dtypes(given)
    if not (isinstance(softmax_scale, int | float) and math.isfinite(softmax_scale)):
        raise ValueError(f"softmax_scale is {softmax_scale!r}, but it must be a finite number, such as D ** -0.5")
    return n


def _check_value(n: Sizes) -> None:
    if isinstance(n.D_v, bool) or not isinstance(n.D_v, int) or not 1 <= n.D_v <= n.D:
        raise ValueError(f"value_dim is {n.D_v!r}, but it must be from 1 to the feature count of q, {n.D}")


def _check_dtypes(given: dict[str, Tensor]) -> None:
    q = given["q"]
    if q.dtype not in DTYPES:
        raise TypeError(f"q is {q.dtype}, but it must be one of {', '.join(map(str, DTYPES))}")
    for name, tensor in given.items():
        dtype = _FIXED_DTYPES.get(name, q.dtype)
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is {tensor.dtype}, but it must be {dtype}")


SHAPES: dict[str, tuple[str, ...]] = {
    "q": ("S_q", "H", "D"),
    "kv": ("S_k", "D"),
    "topk_idxs": ("S_q", "topk"),
    "topk_length": ("S_q",),
    "sink": ("H",),
    "out": ("S_q", "H", "D_v"),
    "lse": ("S_q", "H"),
    "d_out": ("S_q", "H", "D_v"),
}
_FIXED_DTYPES = {
    "topk_idxs": torch.int32,
    "topk_length": torch.int32,
    "sink": torch.float32,
    "lse": torch.float32,
}


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _named(name: str) -> str:
    return f"[{', '.join(SHAPES[name])}]"
