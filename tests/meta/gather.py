"""A tiny problem of all kinds of inputs, out[t] = bias + sum_j scale * w[t, j] * table[idx[t, j]], and its kernel.

A slot is live where idx >= 0 and keep: the index of another may be anything, and so may its weight and a table row that
no live slot lists. bias is optional. A token without a live slot leaves its row of `out` open, and its `level`, the log
of its weights' sum, is +inf. The number of live slots is an integer that the VJP takes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numcheck import Case, CaseSpace, Contract, Input, KernelSpec, Oracle, Output
from numcheck.sample import Counter


def _forward(read: Any, table: Any, idx: Any, w: Any, keep: Any, bias: Any, scale: float) -> dict[str, Any]:
    live = (idx >= 0) & keep
    count = live.sum(1)
    weight = torch.where(live, scale * w, 0.0)
    picked = torch.where(live[..., None], table[torch.where(live, idx, 0)], 0.0)
    start = None if bias is None else bias[None].expand(len(idx), table.shape[1])
    out = read.total("out", weight[..., None] * picked, 1, onto=start)
    mass = read.total("mass", torch.where(live, w, 0.0), 1)
    level = torch.where(count > 0, torch.log(torch.where(count > 0, mass, 1.0)), float("inf"))
    return {"out": read.at("out", out), "level": read.at("level", level), "count": count}


def _vjp(
    read: Any, table: Any, idx: Any, w: Any, keep: Any, bias: Any, scale: float, count: Any, d_out: Any
) -> dict[str, Any]:
    live = (idx >= 0) & keep
    rows = torch.where(live, idx, 0)
    g = torch.where(count[:, None] > 0, d_out, 0.0)
    weight = torch.where(live, scale * w, 0.0)
    listed = live[..., None] & (rows[..., None] == torch.arange(table.shape[0]))
    spread = torch.where(listed[..., None], (weight[..., None] * g[:, None])[:, :, None], 0.0)
    picked = torch.where(live[..., None], table[rows], 0.0)
    return {
        "d_table": read.at("d_table", read.total("d_table", spread, (0, 1))),
        "d_w": read.at("d_w", scale * read.total("d_w", picked * g[:, None], 2)),
        "d_bias": None if bias is None else read.at("d_bias", read.total("d_bias", g, 0)),
    }


def _twin(mp: Any, case: Case, table: Any, idx: Any, w: Any, keep: Any, bias: Any, scale: Any) -> dict[str, Any]:
    out, level, count = [], [], []
    for rows, weights, kept in zip(idx, w, keep, strict=True):
        live = [(row, x) for row, x, k in zip(rows, weights, kept, strict=True) if k and row >= 0]
        start = [mp.mpf(0)] * case["D"] if bias is None or not live else bias
        out.append([start[d] + mp.fsum(scale * x * table[row][d] for row, x in live) for d in range(case["D"])])
        level.append(mp.log(mp.fsum(x for _, x in live)) if live else mp.inf)
        count.append(len(live))
    return {"out": out, "level": level, "count": count}


def _indices(case: Case, name: str) -> Tensor:
    return Counter(case.seed, name).indices((case["T"], case["K"]), -1, case["R"] - 1)


def _kept(case: Case, name: str) -> Tensor:
    return Counter(case.seed, name).uniform((case["T"], case["K"])) < float(case.fact("kept", 0.75))


def _weights(case: Case, name: str) -> Tensor:
    return Counter(case.seed, name).uniform((case["T"], case["K"])) + 0.25


def _live(tensors: Any) -> Tensor:
    live: Tensor = (tensors["idx"] >= 0) & tensors["keep"]
    return live


def _ignored(case: Case, tensors: Any) -> dict[str, Tensor]:
    live = _live(tensors)
    unlisted = torch.ones(case["R"], dtype=torch.bool)
    unlisted[tensors["idx"][live]] = False
    return {"table": unlisted[:, None], "w": ~live, "idx": ~tensors["keep"], "d_out": ~live.any(1, keepdim=True)}


def _unspecified(case: Case, tensors: Any) -> dict[str, Tensor]:
    return {"out": ~_live(tensors).any(1, keepdim=True)}


SPACE = CaseSpace(
    sizes={"T": (1, 8), "K": (1, 6), "R": (1, 6), "D": (1, 40)},
    facts={"bias": (True, False), "kept": (0.75, 0.0, 1.0)},
    grid={"T": (1, 5), "K": (4,), "R": (1, 3), "D": (7, 32), "bias": (True, False), "dtype": ("fp32", "bf16")},
    edges=(
        Case.of(T=6, K=3, R=4, D=8, facts={"bias": True, "kept": 0.75}),
        Case.of(T=6, K=3, R=4, D=8, dtype="bf16", layout="strided", offset=1, facts={"bias": False, "kept": 0.75}),
        Case.of(T=3, K=2, R=2, D=5, facts={"bias": True, "kept": 0.0}),
        Case.of(T=0, K=2, R=2, D=5, facts={"bias": True, "kept": 1.0}),
    ),
    tiny=(
        Case.of(T=3, K=2, R=3, D=2, facts={"bias": True, "kept": 0.75}),
        Case.of(T=4, K=3, R=2, D=2, dtype="bf16", facts={"bias": False, "kept": 0.75}, seed=1),
        Case.of(T=2, K=2, R=2, D=1, facts={"bias": True, "kept": 0.0}),
    ),
)

gather = Oracle(
    "gather",
    inputs=(
        Input("table", ("R", "D")),
        Input("idx", ("T", "K"), dtype="int32", fill=_indices, grad=False),
        Input("w", ("T", "K"), dtype="fp32", fill=_weights),
        Input("keep", ("T", "K"), dtype="bool", fill=_kept, grad=False),
        Input("bias", ("D",), dtype="fp32", given=lambda case: bool(case.fact("bias", True))),
    ),
    outputs=(
        Output("out", ("T", "D")),
        Output("level", ("T",), dtype="fp32", cotangent=False),
        Output("count", ("T",), dtype="int32", saved=True, cotangent=False),
    ),
    forward=_forward,
    vjp=_vjp,
    twin=_twin,
    space=SPACE,
    batch="T",
    scalars=lambda case: {"scale": 1.0 / case["K"]},
    ignored=_ignored,
    unspecified=_unspecified,
)


def forward(
    table: Tensor, idx: Tensor, w: Tensor, keep: Tensor, bias: Tensor | None, *, scale: float
) -> dict[str, Tensor]:
    """The kernel: bias first, then slot after slot in FP32, one cast."""
    check(table, idx, w, keep, bias)
    live, count, weight, picked = slots(table, idx, w, keep, scale)
    acc = torch.zeros((len(idx), table.shape[1])) if bias is None else bias.repeat(len(idx), 1)
    for j in range(idx.shape[1]):
        acc += weight[:, j, None] * picked[:, j]
    mass = torch.where(live, w, 0.0).sum(1)
    level = torch.where(count > 0, torch.log(mass), torch.inf)
    return {"out": acc.to(table.dtype), "level": level, "count": count}


def vjp(
    table: Tensor,
    idx: Tensor,
    w: Tensor,
    keep: Tensor,
    bias: Tensor | None,
    *,
    scale: float,
    count: Tensor,
    d_out: Tensor,
) -> dict[str, Tensor | None]:
    """The gradients in FP32, those of data cast once."""
    check(table, idx, w, keep, bias, d_out)
    live, _, weight, picked = slots(table, idx, w, keep, scale)
    g = torch.where(count[:, None] > 0, d_out.float(), 0.0)
    d_table = torch.zeros(table.shape)
    d_table.index_add_(0, idx[live], (weight[..., None] * g[:, None])[live])
    d_w = scale * (picked * g[:, None]).sum(2)
    return {"d_table": d_table.to(table.dtype), "d_w": d_w, "d_bias": None if bias is None else g.sum(0)}


def slots(table: Tensor, idx: Tensor, w: Tensor, keep: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Live slots, how many each token has, their weights, and their rows in FP32; 0 in others."""
    live = (idx >= 0) & keep
    picked = torch.where(live[..., None], table[torch.where(live, idx, 0)].float(), 0.0)
    return live, live.sum(1).to(torch.int32), torch.where(live, scale * w, 0.0), picked


def check(
    table: Tensor, idx: Tensor, w: Tensor, keep: Tensor, bias: Tensor | None = None, d_out: Tensor | None = None
) -> None:
    """Refuse what does not fit together."""
    data, fp32 = table.dtype, torch.float32
    wanted = {"idx": (idx, idx.shape, torch.int32), "w": (w, idx.shape, fp32), "keep": (keep, idx.shape, torch.bool)}
    if bias is not None:
        wanted["bias"] = (bias, table.shape[1:], fp32)
    if d_out is not None:
        wanted["d_out"] = (d_out, (len(idx), table.shape[1]), data)
    if data not in (fp32, torch.bfloat16):
        raise TypeError(f"table is {data}; give float32 or bfloat16")
    for name, (tensor, shape, dtype) in wanted.items():
        if tuple(tensor.shape) != tuple(shape) or tensor.dtype != dtype:
            raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}; it must be {dtype} {list(shape)}")


GATHER = KernelSpec(
    "gather",
    gather,
    forward=forward,
    vjp=vjp,
    contract=Contract(
        rounds={"out": "data", "d_table": "data"},
        order={"level": "single", "count": "single"},
        dtypes=("fp32", "bf16"),
        # Operators of torch keep more alive than a kernel would; the memory law has its own tests.
        workspace=lambda case: 64 * (case["T"] * case["K"] + case["R"]) * (case["D"] + 8),
    ),
)
# A backward alone is given the oracle's saved counts.
BACKWARD = GATHER.but(name="gather_backward", forward=None)
SPECS = (GATHER, BACKWARD)
