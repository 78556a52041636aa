"""Draws: random numbers of one seed for noise readings, on the CPU or on the device that the tensors are on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# From this many on, normal numbers come from torch on the CPU too, at a third of the cost of numpy's, and how far an
# element may be disturbed is kept in FP32, in half of the memory: seven digits of a spread are plenty.
BULK = 2**16


class Draws:
    """A stream of uniform and normal numbers, a function of its seed.

    On the CPU it is numpy's PCG64, stable across versions, but for normal numbers in bulk; a device has torch's own
    generator. Their numbers differ, so figures that rest on draws agree across devices within their spread only.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._cpu: np.random.Generator | None = None
        self._devices: dict[torch.device, torch.Generator] = {}

    def uniform(self, like: Tensor) -> Tensor:
        """Uniform on (-1/2, 1/2), of the shape, dtype (FP32 or FP64) and device of `like`."""
        if like.device.type == "cpu":
            return torch.from_numpy(self._numpy.random(tuple(like.shape), np.float32)).to(like.dtype).sub_(0.5)
        numbers = torch.empty(like.shape, device=like.device)
        return numbers.uniform_(-0.5, 0.5, generator=self._on(like.device)).to(like.dtype)

    def normal(self, like: Tensor) -> Tensor:
        """Normal, mean 0, variance 1, of the shape, dtype (FP32 or FP64) and device of `like`."""
        if like.device.type == "cpu" and like.numel() < BULK:
            return torch.from_numpy(self._numpy.standard_normal(tuple(like.shape), np.float32)).to(like.dtype)
        numbers = torch.randn(like.shape, generator=self._on(like.device), device=like.device)
        return numbers.to(like.dtype)

    @property
    def _numpy(self) -> np.random.Generator:
        if self._cpu is None:
            self._cpu = np.random.Generator(np.random.PCG64(self.seed))
        return self._cpu

    def _on(self, device: torch.device) -> torch.Generator:
        if device not in self._devices:
            # A Case's hash may have more bits than a device's seed takes.
            self._devices[device] = torch.Generator(device).manual_seed(self.seed % 2**63)
        return self._devices[device]


def compact(spread: Tensor) -> Tensor:
    """How far elements may be disturbed, in FP32 where there are many and none is beyond its range."""
    if spread.numel() < BULK:
        return spread
    short = spread.float()
    return short if bool(torch.isfinite(short.sum())) else spread
