"""What every mHC post implementation takes, checked before anything is allocated or written."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

STREAM_COUNTS = (1, 2, 4, 8)
DTYPES = (torch.bfloat16, torch.float32)


class Sizes(NamedTuple):
    """S tokens, H residual streams, D features."""

    S: int
    H: int
    D: int

    @property
    def empty(self) -> bool:
        """Whether there is nothing to launch."""
        return self.S == 0 or self.D == 0


def sizes(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, d_out: Tensor | None = None) -> Sizes:
    """The sizes of a call with x [S, D], residual [S, H, D], post [S, H], comb [S, H, H] and d_out [S, H, D].

    Raises ValueError for shapes, values of H or devices that do not fit together, TypeError for dtypes.
    """
    if residual.dim() != 3:
        raise ValueError(f"residual has shape {_shape(residual)}, but it must be [S, H, D]")
    S, H, D = residual.shape
    if H not in STREAM_COUNTS:
        raise ValueError(f"residual has H={H} streams, but H must be one of {', '.join(map(str, STREAM_COUNTS))}")
    wanted = {"x": (S, D), "post": (S, H), "comb": (S, H, H), "d_out": (S, H, D)}
    given = {"x": x, "post": post, "comb": comb} | ({} if d_out is None else {"d_out": d_out})
    for name, tensor in given.items():
        if tuple(tensor.shape) != wanted[name]:
            raise ValueError(
                f"{name} has shape {_shape(tensor)}, but residual {_shape(residual)} asks for {list(wanted[name])}"
            )
        if tensor.device != residual.device:
            raise ValueError(f"{name} is on {tensor.device}, but residual is on {residual.device}; move one of them")
    if residual.dtype not in DTYPES:
        raise TypeError(f"residual is {residual.dtype}, but it must be one of {', '.join(map(str, DTYPES))}")
    for name, tensor in given.items():
        dtype = torch.float32 if name in ("post", "comb") else residual.dtype
        if tensor.dtype != dtype:
            raise TypeError(f"{name} is {tensor.dtype}, but it must be {dtype}: {_why(name)}")
    return Sizes(S, H, D)


def _shape(tensor: Tensor) -> list[int]:
    return list(tensor.shape)


def _why(name: str) -> str:
    if name in ("post", "comb"):
        return "coefficients stay in FP32, since a rounded one loses small results under cancellation"
    return "activations and their cotangents share the residual's dtype"
