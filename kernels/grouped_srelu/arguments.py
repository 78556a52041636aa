"""What every grouped backward takes, checked before anything is allocated or written."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float32)


class Sizes(NamedTuple):
    """M rows, N features, H hidden, E experts; width: columns of c for a feature (2 for a gated activation)."""

    M: int
    N: int
    H: int
    E: int
    width: int

    @property
    def columns(self) -> int:
        """Columns of c, d_c and d_bias."""
        return self.N * self.width

    @property
    def empty(self) -> bool:
        """Whether there is nothing to launch."""
        return self.M == 0


def sizes(
    tensors: dict[str, Tensor | None], *, width: int = 1, generate_dbias: bool = True, clamp: float | None = None
) -> Sizes:
    """The sizes of a call, from its tensors by name.

    c [M, width N], prob [M] or None, alpha [E], beta [E] (gated only), w1 [E, width N, H], w2 [E, N, H], tokens [E],
    offsets [E], d_out [M, H], d_prob_onto [M] or None, d_bias_onto [E, width N] or None. What the integers say is not
    read, since that would stop the device: tokens and offsets that do not fit M are undefined behaviour.

    Raises ValueError for shapes, devices or options that do not fit together, TypeError for dtypes.
    """
    w2 = tensors["w2"]
    if w2 is None or w2.dim() != 3:
        raise ValueError(f"w2 has shape {_shape(w2)}, but it must be [E, N, H]")
    c = tensors["c"]
    if c is None or c.dim() != 2:
        raise ValueError(f"c has shape {_shape(c)}, but it must be [M, {'' if width == 1 else f'{width} '}N]")
    (E, N, H), M = w2.shape, c.shape[0]
    n = Sizes(M, N, H, E, width)
    for size in ("N", "H", "E"):
        if not getattr(n, size):
            raise ValueError(f"w2 has shape {_shape(w2)}, but {size} must be at least 1")
    _options(tensors, generate_dbias, clamp)
    wanted = _wanted(n)
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tuple(tensor.shape) != wanted[name]:
            given = f"M={M}, N={N}, H={H}, E={E}"
            raise ValueError(f"{name} has shape {_shape(tensor)}, but {given} ask for {list(wanted[name])}")
        if tensor.device != w2.device:
            raise ValueError(f"{name} is on {tensor.device}, but w2 is on {w2.device}; move one of them")
        _check_dtype(name, tensor, w2)
    return n


def _wanted(n: Sizes) -> dict[str, tuple[int, ...]]:
    return {
        "c": (n.M, n.columns),
        "prob": (n.M,),
        "alpha": (n.E,),
        "beta": (n.E,),
        "w1": (n.E, n.columns, n.H),
        "w2": (n.E, n.N, n.H),
        "tokens": (n.E,),
        "offsets": (n.E,),
        "d_out": (n.M, n.H),
        "d_prob_onto": (n.M,),
        "d_bias_onto": (n.E, n.columns),
    }


def _options(tensors: dict[str, Tensor | None], generate_dbias: bool, clamp: float | None) -> None:
    if tensors.get("d_prob_onto") is not None and tensors["prob"] is None:
        raise ValueError("d_prob_onto is given but prob is None: without a routing weight there is no d_prob to add")
    if tensors.get("d_bias_onto") is not None and not generate_dbias:
        raise ValueError("d_bias_onto is given but generate_dbias is False; leave one of them out")
    if clamp is not None and not (math.isfinite(clamp) and clamp > 0):
        raise ValueError(f"tanh_clamp_scale={clamp!r}, but it must be finite and above 0; None leaves the clamp out")


def _check_dtype(name: str, tensor: Tensor, w2: Tensor) -> None:
    if name in ("tokens", "offsets"):
        if tensor.dtype != torch.int32:
            raise TypeError(f"{name} is {tensor.dtype}, but it must be torch.int32, as the device code reads it")
    elif name in ("prob", "alpha", "beta", "d_prob_onto", "d_bias_onto"):
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name} is {tensor.dtype}, but it must be torch.float32: scales and sums stay in FP32")
    elif w2.dtype not in DTYPES:
        raise TypeError(f"w2 is {w2.dtype}, but it must be one of {', '.join(map(str, DTYPES))}")
    elif tensor.dtype != w2.dtype:
        raise TypeError(f"{name} is {tensor.dtype}, but w2 is {w2.dtype}: both GEMMs take one dtype")


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)
