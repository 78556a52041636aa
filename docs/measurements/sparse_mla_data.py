"""Sparse attention made on a GPU, with all that a backward is given; an FP64 backward; hashes of bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

D_V = 512
# Queries at a time, so that what is gathered for them stays within some GiB in FP64.
QUERIES = 16
# Two odd 64-bit constants (those of splitmix64, as signed integers).
FIRST, SECOND = -7046029254386353131, -4658895280553007687


@dataclass(frozen=True)
class Shape:
    """Sizes of a problem; holes: the share of slots that are dead."""

    S_q: int
    S_k: int
    H: int
    D: int
    topk: int
    holes: float = 0.0

    @property
    def label(self) -> str:
        return f"S_q={self.S_q} S_k={self.S_k} H={self.H} D={self.D} topk={self.topk} holes={self.holes}"


def made(
    n: Shape, seed: int = 0, sink: bool = True, one_row: bool = False, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Any]:
    """The keywords of a vjp on normal data of 16 bits; one_row: every slot lists row 0."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    q, kv, d_out = normal(n.S_q, n.H, n.D), normal(n.S_k, n.D), normal(n.S_q, n.H, D_V)
    index = torch.randint(0, n.S_k, (n.S_q, n.topk), generator=generator, device="cuda", dtype=torch.int32)
    index = torch.zeros_like(index) if one_row else index
    index[torch.rand(index.shape, generator=generator, device="cuda") < n.holes] = -1
    scale = float(torch.tensor(1 / math.sqrt(n.D), dtype=torch.float32))
    given = {
        "q": q,
        "kv": kv,
        "topk_idxs": index,
        "topk_length": None,
        "sink": torch.randn(n.H, generator=generator, device="cuda") if sink else None,
        "d_out": d_out,
        "softmax_scale": scale,
        "value_dim": D_V,
    }
    return given | forward(given)


def forward(given: dict[str, Any]) -> dict[str, Tensor]:
    """out and lse, in FP32, some queries at a time."""
    q, kv, index, sink = given["q"], given["kv"], given["topk_idxs"], given["sink"]
    out, lse = torch.empty_like(given["d_out"]), torch.empty(q.shape[:2], device=q.device)
    for t in range(0, len(q), QUERIES):
        rows = slice(t, t + QUERIES)
        keys, live = kv[index[rows].clamp(min=0).long()].float(), (index[rows] >= 0)[:, None]
        S = (q[rows].float() @ keys.mT * given["softmax_scale"]).masked_fill(~live, -math.inf)
        lse[rows] = torch.logsumexp(S, -1)
        whole = lse[rows] if sink is None else torch.logaddexp(lse[rows], sink)
        out[rows] = (torch.exp(S - whole[..., None]) @ keys[..., :D_V]).to(out.dtype)
        lse[rows] = torch.where(live.any(-1), lse[rows], math.inf)
    return {"out": out, "lse": lse}


def backward(given: dict[str, Any]) -> dict[str, Tensor]:
    """d_q and d_kv in FP64 of the same bits, the saved out and lse among them."""
    q, kv, index, sink = given["q"], given["kv"], given["topk_idxs"], given["sink"]
    d_q, d_kv = torch.empty(q.shape, dtype=torch.float64, device=q.device), torch.zeros_like(kv, dtype=torch.float64)
    for t in range(0, len(q), QUERIES):
        rows = slice(t, t + QUERIES)
        flat, dead = index[rows].clamp(min=0).long(), (index[rows] < 0)[:, None]
        keys, Q, dO = kv[flat].double(), q[rows].double(), given["d_out"][rows].double()
        lse = given["lse"][rows].double()
        whole = lse if sink is None else torch.logaddexp(lse, sink.double())
        P = torch.exp(Q @ keys.mT * given["softmax_scale"] - whole[..., None]).masked_fill(dead, 0.0)
        D = (dO * given["out"][rows].double()).sum(-1, keepdim=True)
        dS = P * (dO @ keys[..., :D_V].mT - D) * given["softmax_scale"]
        d_q[rows] = dS @ keys
        shares = dS.mT @ Q
        shares[..., :D_V] += P.mT @ dO
        d_kv.index_add_(0, flat.flatten(), shares.flatten(0, 1))
    return {"d_q": d_q, "d_kv": d_kv}


def relative(found: Tensor, exact: Tensor) -> float:
    """relL2 of a result to FP64."""
    return float((found.double() - exact).norm() / exact.norm())


def hashed(t: Tensor) -> str:
    """Sixteen hex digits of a tensor's bits, made where it lies.

    A sum, mod 2^64, of its 16-bit words times odd weights of their places: no order enters, and a change of one word
    always shows, since an odd number times its difference is not 0.
    """
    words, total = t.detach().contiguous().view(torch.int16).flatten(), 0
    for start in range(0, words.numel(), 2**26):
        part = words[start : start + 2**26].long()
        place = torch.arange(start, start + part.numel(), device=t.device)
        weight = place * FIRST
        weight = (weight ^ (weight >> 29)) * SECOND | 1
        total = (total + int(((part + 1) * weight).sum())) % 2**64
    return f"{total:016x}"


def hashes(tensors: dict[str, Any]) -> dict[str, str]:
    """The hash of each tensor among these."""
    return {name: hashed(t) for name, t in sorted(tensors.items()) if isinstance(t, Tensor)}
