"""Fakes of the cuDNN front-end: its two grouped backwards in torch, with or without the keyword, honest or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from kernels.grouped_srelu import cudnn_dglu, cudnn_dsrelu
from kernels.grouped_srelu.packing import ALIGNED, ONE, unpacked

Made = dict[str, Any]


@dataclass
class Front:
    """A front-end that calls itself `version`, and what its wrappers were called with.

    keyword: how they take `deterministic`: by name, not at all, or among any keywords. unsupported: the message with
    which a call that asks for it is turned down, "" for none.
    """

    version: str = "1.32.0"
    keyword: str = "named"
    unsupported: str = ""
    calls: list[Made] = field(default_factory=list)

    def module(self) -> ModuleType:
        """What `import cudnn` finds."""
        made = ModuleType("cudnn")
        made.__version__ = self.version  # type: ignore[attr-defined]
        setattr(made, cudnn_dsrelu.NAME, self.wrapper(dsrelu))
        setattr(made, cudnn_dglu.NAME, self.wrapper(dglu))
        return made

    def wrapper(self, compute: Callable[..., Made]) -> Callable[..., Made]:
        """`compute` behind a signature of that kind."""

        def seen(given: Made) -> Made:
            self.calls.append(given)
            if self.unsupported and given.get("deterministic"):
                raise NotImplementedError(self.unsupported)
            return compute(**{name: value for name, value in given.items() if name != "deterministic"})

        def named(*, deterministic: bool | None = None, **given: Any) -> Made:
            return seen(given if deterministic is None else given | {"deterministic": deterministic})

        def absent(
            *, a_tensor: Tensor, b_tensor: Tensor, c_tensor: Tensor, sfa_tensor: Tensor | None,
            sfb_tensor: Tensor | None, padded_offsets: Tensor, alpha_tensor: Tensor, prob_tensor: Tensor,
            dprob_tensor: Tensor, generate_dbias: bool, d_dtype: torch.dtype, sf_vec_size: int = 16,
            tanh_clamp_scale: float | None = None, beta_tensor: Tensor | None = None, act_func: str = "",
        ) -> Made:  # fmt: skip
            return seen({name: value for name, value in locals().items() if name not in ("self", "seen")})

        def anything(**given: Any) -> Made:
            return seen(given)

        return {"named": named, "absent": absent, "anything": anything}[self.keyword]


def dsrelu(
    *, a_tensor: Tensor, b_tensor: Tensor, c_tensor: Tensor, sfa_tensor: Tensor, sfb_tensor: Tensor,
    padded_offsets: Tensor, alpha_tensor: Tensor, prob_tensor: Tensor, dprob_tensor: Tensor, generate_dbias: bool,
    d_dtype: torch.dtype, sf_vec_size: int, tanh_clamp_scale: float | None = None, **unused: Any,
) -> Made:  # fmt: skip
    """cuDNN's dSReLU of 4-bit inputs whose scale factors are 1."""
    for scales in (sfa_tensor, sfb_tensor):
        assert bool((scales.view(torch.uint8) == ONE).all())
    b = unpacked(b_tensor.permute(2, 0, 1))
    r = _routed(unpacked(a_tensor[:, :, 0]), b, alpha_tensor, padded_offsets)
    kept = torch.relu(c_tensor[:, :, 0].float())
    act, slope = kept.square(), 2 * kept
    if tanh_clamp_scale is not None:
        t = torch.tanh(kept / tanh_clamp_scale)
        act, slope = (tanh_clamp_scale * t).square(), 2 * tanh_clamp_scale * (t - t**3)
    g = slope * r * prob_tensor[:, :, 0]
    return _made(g, act * r, dprob_tensor, padded_offsets, generate_dbias, d_dtype)


def dglu(
    *, a_tensor: Tensor, b_tensor: Tensor, c_tensor: Tensor, padded_offsets: Tensor, alpha_tensor: Tensor,
    beta_tensor: Tensor, prob_tensor: Tensor, dprob_tensor: Tensor, generate_dbias: bool, d_dtype: torch.dtype,
    act_func: str, **unused: Any,
) -> Made:  # fmt: skip
    """cuDNN's dSwiGLU of bf16 inputs: alpha squared, the gradient of beta c."""
    assert act_func == "dswiglu"
    b = b_tensor.permute(2, 0, 1).float()
    r = _routed(a_tensor[:, :, 0].float(), b, alpha_tensor.square(), padded_offsets)
    owner = _owner(padded_offsets, len(r))
    z = (c_tensor[:, :, 0].float() * beta_tensor[owner][:, None]).unflatten(1, (-1, 2, 32))
    gate, up = z[:, :, 0].flatten(1), z[:, :, 1].flatten(1)
    s = torch.sigmoid(gate)
    weighted = r * prob_tensor[:, :, 0]
    halves = weighted * up * s * (1 + gate * (1 - s)), weighted * gate * s
    g = torch.stack([half.unflatten(1, (-1, 32)) for half in halves], 2).flatten(1)
    return _made(g, up * gate * s * r, dprob_tensor, padded_offsets, generate_dbias, d_dtype)


def _owner(padded_offsets: Tensor, rows: int) -> Tensor:
    assert not bool((padded_offsets % ALIGNED).any()), "experts end at multiples of 256"
    assert rows % ALIGNED == 0
    row = torch.arange(rows)
    # Rows past the last expert are processed by nobody; what is made of them here is thrown away by `_made`.
    return torch.bucketize(row, padded_offsets, right=True).clamp(max=len(padded_offsets) - 1)


def _routed(a: Tensor, b: Tensor, scale: Tensor, padded_offsets: Tensor) -> Tensor:
    owner = _owner(padded_offsets, len(a))
    return scale[owner][:, None] * torch.einsum("mk,mnk->mn", a, b[owner])


def _made(
    g: Tensor, products: Tensor, dprob: Tensor, padded_offsets: Tensor, generate_dbias: bool, dtype: torch.dtype
) -> Made:
    used = int(padded_offsets[-1])
    owner = _owner(padded_offsets, len(g))[:used]
    d_row = torch.full((*g.shape, 1), torch.nan, dtype=dtype)
    d_row[:used, :, 0] = g[:used].to(dtype)
    dprob[:used, 0, 0] += products[:used].sum(-1)
    dbias = None
    if generate_dbias:
        dbias = torch.zeros(len(padded_offsets), g.shape[1]).index_add_(0, owner, g[:used]).bfloat16()[:, :, None]
    return {"d_row_tensor": d_row, "dprob_tensor": dprob, "dbias_tensor": dbias}
