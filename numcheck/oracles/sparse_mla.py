"""Sparse MLA: multi-query attention over listed rows of one latent KV, and its VJP.

Query t of head h sees the KV rows that its slots j list, i = topk_idxs[t, j]; the first D_v features of a row are its
value v_i. Over the live slots of t, with s_j = softmax_scale * q[t, h] . kv[i]:

    lse[t, h] = ln sum_j exp(s_j)                      natural, KV only: the sink is left out
    L[t, h]   = ln(exp(lse) + exp(sink[h]))            lse where there is no sink
    p_j       = exp(s_j - L)
    out[t, h] = sum_j p_j v_i

A slot is live if j < topk_length[t] (without lengths all are) and 0 <= i < S_k. A dead one contributes nothing: a row
that only dead slots list may hold NaN. A row that several slots list counts once for each. A query without a live slot
(a dead row) has out = 0 and no gradient; its lse is left open (+inf here). sink = -inf is no sink; sink = +inf leaves
out = 0 and no gradient.

With g the cotangent of out, and out and lse as the forward saved them:

    D[t, h]   = sum_d g_d out_d
    dP_j      = g . v_i
    dS_j      = softmax_scale p_j (dP_j - D)
    d_q[t, h] = sum_j dS_j kv[i]
    d_kv[i]   = sum over every (t, h, j) that lists i of dS_j q[t, h] (+ p_j g in the first D_v features)
    d_sink[h] = - sum_t exp(sink - L) D

Judged on the saved out, which has rounded, the VJP is held to what it made of that one; on its own forward's, the whole
chain is judged (`KernelSpec.saved`).

Source: DeepSeek sparse attention as FlashMLA and cuDNN define it; the VJP is derived from the softmax's Jacobian.

Shapes: q (S_q, H, D), kv (S_k, D), out (S_q, H, D_v) in the data's dtype; topk_idxs (S_q, topk), topk_length (S_q)
int32; sink (H), lse (S_q, H) FP32. topk_length and sink are optional; D >= D_v. d_kv comes in the data's dtype, or in
FP32 where the Case's fact `d_kv` says so.

Points: S (scaled), L (in base 2); in the forward E (exp(s - row maximum), so 1 at the maximum), P.forward (p), out,
lse; in the VJP O (the saved out as it enters D), P.backward (p as it enters d_kv), P.dS (p as it enters dS), dP, D,
dS.unscaled, dS, share (what a slot adds to d_kv), sink (sink - L), p_sink (its power), d_q, d_kv, d_sink. Totals: S,
lse (the row sum of exp), out, D, dP, d_q, dK and dV (a slot's two shares of d_kv, over the heads), d_kv (over slots and
queries), d_sink.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.contract import Rounds
from numcheck.oracle import Input, Oracle, Output, Reading
from numcheck.oracles import sparse_mla_cases as cases
from numcheck.oracles.sparse_mla_relations import CANCELLATIONS, RELATIONS

# Kernels take powers of two, so that what they subtract is in base 2 and has rounded there.
LOG2E = math.log2(math.e)
# No logit of FP32 data that a softmax can tell apart is near this, so that a sink beyond it takes all or nothing.
BEYOND = 2.0**100


class _Listed(NamedTuple):
    """What the slots list, topk >= 1.

    live: bool (S_q, 1, topk). keys: (S_q, topk, D), zeros in a dead slot. rows: int64 (S_q, topk), -1 in a dead slot.
    alive: bool (S_q, 1), whether the query has a live slot. first: int64 (S_q, topk), the query's first slot that lists
    the same row.
    """

    live: Tensor
    keys: Any
    rows: Tensor
    alive: Tensor
    first: Tensor

    def alike(self, value: Any) -> Any:
        """(S_q, H, topk) with what a row's first slot has in all of its slots: equal terms round alike, once."""
        return value.take_along_dim(self.first[:, None, :], -1)


def forward(
    read: Reading,
    q: Any,
    kv: Any,
    topk_idxs: Tensor,
    topk_length: Tensor | None,
    sink: Any,
    *,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
) -> dict[str, Any]:
    """{"out": (S_q, H, D_v), "lse": (S_q, H)}. `d_kv_dtype` is the VJP's alone."""
    listed = _listed(kv, topk_idxs, topk_length)
    S = _logits(read, q, listed, softmax_scale)
    top = torch.where(listed.alive, torch.amax(torch.where(listed.live, S, -math.inf), -1), 0.0)
    powers = torch.where(listed.live, torch.exp(S - top[..., None]), 0.0)
    row_sum = torch.where(listed.alive, read.total("lse", listed.alike(powers), -1), 1.0)
    lse = top + torch.log(row_sum)
    P = read.at("E", powers) / row_sum[..., None]
    if sink is not None:
        share = torch.exp2(lse * LOG2E - read.at("L", _with_sink(lse, sink) * LOG2E))
        P = _unless_infinite(sink, P * share[..., None])
    P = listed.alike(read.at("P.forward", P))
    out = read.matmul("out", P, listed.keys[..., :value_dim])
    return {"out": read.at("out", out), "lse": read.at("lse", torch.where(listed.alive, lse, math.inf))}


def vjp(
    read: Reading,
    q: Any,
    kv: Any,
    topk_idxs: Tensor,
    topk_length: Tensor | None,
    sink: Any,
    out: Any,
    lse: Any,
    d_out: Any,
    *,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
) -> dict[str, Any]:
    """d_q (S_q, H, D), d_kv (S_k, D) and, where there is a sink, d_sink (H)."""
    listed = _listed(kv, topk_idxs, topk_length)
    live, keys = listed.live, listed.keys
    lse = torch.where(listed.alive, lse, 0.0)
    L = read.at("L", (lse if sink is None else _with_sink(lse, sink)) * LOG2E)
    S = _logits(read, q, listed, softmax_scale) * LOG2E
    P = torch.where(live, torch.exp2(S - L[..., None]), 0.0)
    P = P if sink is None else _unless_infinite(sink, P)
    D = read.at("D", read.total("D", d_out * read.at("O", out), -1))
    dP = read.at("dP", read.matmul("dP", d_out, keys[..., :value_dim].mT))
    dS = read.at("dS.unscaled", torch.where(live, read.at("P.dS", P) * (dP - D[..., None]), 0.0))
    dS = read.at("dS", dS * softmax_scale)
    dK = read.matmul("dK", dS.mT, q)
    dV = read.matmul("dV", read.at("P.backward", P).mT, d_out)
    shares = read.at("share", torch.cat([dK[..., :value_dim] + dV, dK[..., value_dim:]], -1))
    shares = shares.take_along_dim(listed.first[..., None], 1).flatten(0, 1)
    gradients = {
        "d_q": read.at("d_q", read.matmul("d_q", listed.alike(dS), keys)),
        "d_kv": read.at("d_kv", read.scatter("d_kv", shares, listed.rows.flatten(), len(kv))),
    }
    if sink is not None:
        leak = torch.where(listed.alive & _finite(sink), -_sink_share(read, L, sink) * D, 0.0)
        gradients["d_sink"] = read.at("d_sink", read.total("d_sink", leak, 0))
    return gradients


def _listed(kv: Any, topk_idxs: Tensor, topk_length: Tensor | None) -> _Listed:
    """Without a slot there is one dead one. A dead slot reads a row of zeros, so that no row it names can leak."""
    if topk_idxs.shape[1] == 0:
        topk_idxs = topk_idxs.new_full((len(topk_idxs), 1), -1)
    live = (topk_idxs >= 0) & (topk_idxs < len(kv))
    if topk_length is not None:
        live = live & (torch.arange(live.shape[1], device=live.device) < topk_length[:, None])
    nothing = torch.zeros((1, kv.shape[1]), dtype=torch.float64, device=live.device)
    keys = torch.cat([kv, nothing])[torch.where(live, topk_idxs, len(kv))]
    rows = torch.where(live, topk_idxs, -1)
    return _Listed(live[:, None, :], keys, rows, live.any(-1, keepdim=True), _first(rows))


def _first(rows: Tensor) -> Tensor:
    """For each slot the first one of its query with the same row."""
    ordered, order = torch.sort(rows, dim=1, stable=True)
    slot = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
    begins = torch.cat([torch.ones_like(ordered[:, :1], dtype=torch.bool), ordered[:, 1:] != ordered[:, :-1]], 1)
    start = torch.where(begins, slot, 0).cummax(1).values
    return torch.zeros_like(rows).scatter_(1, order, order.gather(1, start))


def _logits(read: Reading, q: Any, listed: _Listed, scale: float) -> Any:
    return read.at("S", read.matmul("S", q, listed.keys.mT) * scale)


def _finite(sink: Any) -> Tensor:
    finite: Tensor = (sink > -math.inf) & (sink < math.inf)
    return finite


def _with_sink(lse: Any, sink: Any) -> Any:
    """ln(exp(lse) + exp(sink)) for finite sinks, in the form that cannot overflow; lse for infinite ones."""
    finite = _finite(sink)
    usual = torch.where(finite, sink, 0.0)
    both = torch.maximum(lse, usual) + torch.log1p(torch.exp(-torch.abs(lse - usual)))
    return torch.where(finite, both, lse)


def _sink_share(read: Reading, L: Any, sink: Any) -> Any:
    """exp(sink - L), which a sink beyond all logits settles alone: there L is the sink, and their difference exact."""
    near = (sink > -BEYOND) & (sink < BEYOND)
    share = torch.exp2(read.at("sink", torch.where(near, sink, 0.0) * LOG2E - L))
    return torch.where(near, read.at("p_sink", share), (sink > 0).to(torch.float64))


def _unless_infinite(sink: Any, P: Any) -> Any:
    """A sink of +inf takes all of the probability."""
    return torch.where((sink == math.inf)[:, None], 0.0, P)


def twin(
    mp: Any,
    case: Case,
    q: Any,
    kv: Any,
    topk_idxs: Any,
    topk_length: Any,
    sink: Any,
    *,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
) -> dict[str, Any]:
    """The forward in scalar arithmetic, written from the definition: nested lists in, nested lists out."""

    def rows(t: int) -> list[Any]:
        slots = topk_idxs[t] if topk_length is None else topk_idxs[t][: max(0, topk_length[t])]
        return [kv[i] for i in slots if 0 <= i < case["S_k"]]

    def head(t: int, h: int) -> tuple[list[Any], Any]:
        listed = rows(t)
        if not listed:
            return [mp.mpf(0)] * value_dim, mp.inf
        weights = [mp.exp(softmax_scale * mp.fsum(a * b for a, b in zip(q[t][h], row, strict=True))) for row in listed]
        total = mp.fsum(weights)
        lse = mp.log(total)
        if sink is not None and sink[h] > -mp.inf:
            if not sink[h] < mp.inf:
                return [mp.mpf(0)] * value_dim, lse
            total = total + mp.exp(sink[h])
        values = [mp.fsum(w * row[d] for w, row in zip(weights, listed, strict=True)) for d in range(value_dim)]
        return [value / total for value in values], lse

    heads = [[head(t, h) for h in range(case["H"])] for t in range(case["S_q"])]
    return {
        "out": [[out for out, _ in of_t] for of_t in heads],
        "lse": [[lse for _, lse in of_t] for of_t in heads],
    }


def _candidates() -> dict[str, Rounds]:
    """Alternative roundings for the policy fingerprint, the usual one of a tensor-core kernel first."""
    outputs = ("out", "d_q", "d_kv")
    cast = dict.fromkeys(outputs, "data")
    usual = {**cast, "E": "data", "P.backward": "data", "dS": "data"}
    less = {name: point for name, point in usual.items() if name not in ("E", "P.backward", "dS")}
    named: dict[str, Rounds] = {
        "P and scaled dS": usual,
        "outputs only": cast,
        "dS before the scale": {**less, "E": "data", "P.backward": "data", "dS.unscaled": "data"},
        "dS cast, scaled, cast again": {**usual, "dS.unscaled": "data"},
        "P in FP32": {**less, "dS": "data"},
        "dS in FP32": {**less, "E": "data", "P.backward": "data"},
        "dP too": {**usual, "dP": "data"},
        "D too": {**usual, "D": "data"},
        "P inside dS too": {**usual, "P.dS": "data"},
        "logits too": {**usual, "S": "data"},
        "normalised P in the forward": {**less, "P.forward": "data", "P.backward": "data", "dS": "data"},
        "slots' shares of d_kv too": {**usual, "d_kv.terms": "data"},
    }
    return named


sparse_mla = Oracle(
    name="sparse_mla",
    inputs=(
        Input("q", ("S_q", "H", "D"), fill=cases.query_data),
        Input("kv", ("S_k", "D"), fill=cases.key_data),
        Input("topk_idxs", ("S_q", "topk"), dtype="int32", fill=cases.indices),
        Input("topk_length", ("S_q",), dtype="int32", fill=cases.lengths, given=cases.has_lengths),
        Input("sink", ("H",), dtype="fp32", fill=cases.sinks, given=cases.has_sink),
    ),
    outputs=(
        Output("out", ("S_q", "H", "D_v"), saved=True, fill=cases.out_cotangent),
        Output("lse", ("S_q", "H"), dtype="fp32", saved=True, cotangent=False),
    ),
    gradients=(
        Output("d_q", ("S_q", "H", "D"), cotangent=False),
        Output("d_kv", ("S_k", "D"), dtype=cases.d_kv_dtype, cotangent=False),
        Output("d_sink", ("H",), dtype="fp32", cotangent=False, given=cases.has_sink),
    ),
    forward=forward,
    vjp=vjp,
    twin=twin,
    space=cases.SPACE,
    policies=_candidates(),
    batch="S_q",
    partial=("d_kv", "d_sink"),
    scalars=cases.scalars,
    wrong=cases.wrong,
    cancellations=CANCELLATIONS,
    relations=RELATIONS,
    ignored=cases.ignored,
    unspecified=cases.unspecified,
    source="FlashMLA's and cuDNN's DeepSeek sparse attention; VJP derived in this file",
)
