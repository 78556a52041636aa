"""A checked call of a grouped backward: its tensors by name, its sizes and its options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.grouped_srelu.arguments import Sizes, sizes

Tensors = dict[str, Tensor]
# beta is the gated activation's alone.
TENSORS = ("c", "prob", "alpha", "beta", "w1", "w2", "tokens", "offsets", "d_out", "d_prob_onto", "d_bias_onto")


@dataclass(frozen=True, eq=False)
class Call:
    """Tensors by name (None: not given), sizes, whether d_bias is wanted, and where the activation is clamped."""

    given: Mapping[str, Tensor | None]
    n: Sizes
    generate_dbias: bool
    clamp: float | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any], *, width: int = 1) -> Call:
        """From the arguments of a backward by name. Raises as `arguments.sizes` does."""
        given = {name: arguments[name] for name in TENSORS if name in arguments}
        biased, clamp = arguments.get("generate_dbias", True), arguments.get("tanh_clamp_scale")
        n = sizes(given, width=width, generate_dbias=biased, clamp=clamp)
        return cls(given, n, biased, clamp)

    def __getitem__(self, name: str) -> Tensor:
        """A tensor that every call has."""
        tensor = self.given[name]
        assert tensor is not None
        return tensor

    @property
    def weighted(self) -> bool:
        """Whether there is a routing weight, and so a d_prob."""
        return self.given["prob"] is not None

    def start(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A new FP32 buffer with what the caller's holds: zeros where there is none."""
        onto = self.given[name]
        if onto is None:
            return torch.zeros(shape, dtype=torch.float32, device=self["c"].device)
        return torch.empty(shape, dtype=torch.float32, device=onto.device).copy_(onto)

    def begun(self) -> Tensors:
        """The gradients before anything is added: d_c and d_x zero, d_prob and d_bias as the caller's buffers are."""
        n, c = self.n, self["c"]
        found = {"d_c": torch.zeros((n.M, n.columns), dtype=c.dtype, device=c.device)}
        if self.weighted:
            found["d_prob"] = self.start("d_prob_onto", (n.M,))
        if self.generate_dbias:
            found["d_bias"] = self.start("d_bias_onto", (n.E, n.columns))
        found["d_x"] = torch.zeros((n.M, n.H), dtype=c.dtype, device=c.device)
        return found
