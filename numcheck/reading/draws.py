"""Draws: random numbers of one seed for noise readings, on the CPU or on the device that the tensors are on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

# From this many on torch's normal numbers are taken on the CPU too, which cost a third of numpy's.
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
        """Uniform on (-1/2, 1/2), FP64, of the shape and device of `like`."""
        if like.device.type == "cpu":
            numbers = torch.from_numpy(self._numpy.random(tuple(like.shape), np.float32))
        else:
            numbers = torch.rand(like.shape, generator=self._on(like.device), device=like.device)
        return numbers.to(torch.float64).sub_(0.5)

    def normal(self, like: Tensor) -> Tensor:
        """Normal, mean 0, variance 1, FP64, of the shape and device of `like`."""
        if like.device.type == "cpu" and like.numel() < BULK:
            return torch.from_numpy(self._numpy.standard_normal(tuple(like.shape), np.float32)).to(torch.float64)
        numbers = torch.randn(like.shape, generator=self._on(like.device), device=like.device)
        return numbers.to(torch.float64)

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
