"""What every balance loss implementation takes, checked before anything is allocated or written."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.balance_loss.tiles import MOST_EXPERTS

DTYPES = (torch.bfloat16, torch.float32)
# fp16 has no number near 1e-12 or 1e-20: its smallest is 6e-8.
_NO_FP16 = "its limits, 1e-12 and 1e-20, need the exponents of FP32 or bf16"


class Sizes(NamedTuple):
    """T tokens, E experts."""

    T: int
    E: int


def forward_sizes(
    scores: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    coefficient: float,
    *,
    routing_map: Tensor | None = None,
    topk: int | None = None,
) -> Sizes:
    """The sizes of a call with scores [T, E], padding [T] or None, denominator [], and a routing_map [T, E] or topk.

    Raises ValueError for shapes, devices or numbers that do not fit, TypeError for dtypes.
    """
    if scores.dim() != 2:
        raise ValueError(f"scores has shape {list(scores.shape)}, but it must be [T, E]")
    T, E = scores.shape
    if not 1 <= E <= MOST_EXPERTS:
        raise ValueError(f"scores has E={E} experts, but E must be from 1 to {MOST_EXPERTS}: a tile holds whole rows")
    if scores.dtype not in DTYPES:
        raise TypeError(f"scores is {scores.dtype}, but it must be {' or '.join(map(str, DTYPES))}: {_NO_FP16}")
    _fits("denominator", denominator, (), torch.float32, scores)
    if padding is not None:
        _fits("padding", padding, (T,), torch.bool, scores)
    if routing_map is not None:
        _fits("routing_map", routing_map, (T, E), torch.bool, scores)
    if topk is not None and not 1 <= topk <= E:
        raise ValueError(f"topk is {topk}, but it must be from 1 to E={E}")
    if not math.isfinite(coefficient):
        raise ValueError(f"coefficient is {coefficient}, but it must be finite")
    return Sizes(T, E)


def backward_sizes(
    scores: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    coefficient: float,
    frequencies: Tensor,
    d_loss: Tensor,
    *,
    routing_map: Tensor | None = None,
    topk: int | None = None,
) -> Sizes:
    """The sizes of a backward: as `forward_sizes`, with frequencies [E] and d_loss [] in FP32."""
    sizes = forward_sizes(scores, padding, denominator, coefficient, routing_map=routing_map, topk=topk)
    _fits("frequencies", frequencies, (sizes.E,), torch.float32, scores)
    _fits("d_loss", d_loss, (), torch.float32, scores)
    return sizes


def _fits(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, scores: Tensor) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} has shape {list(tensor.shape)}, but scores {list(scores.shape)} asks for {list(shape)}"
        )
    if tensor.dtype != dtype:
        raise TypeError(f"{name} is {tensor.dtype}, but it must be {dtype}")
    if tensor.device != scores.device:
        raise ValueError(f"{name} is on {tensor.device}, but scores is on {scores.device}; move one of them")
