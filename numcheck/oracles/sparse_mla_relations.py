"""What must follow in sparse MLA when a Case is changed, and the Cases whose d_kv cancels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.oracle import Cancellation, Relation
from numcheck.oracles.sparse_mla_cases import has_lengths, indices, lengths, live, named

Tensors = dict[str, Any]
# Which axis of each tensor counts heads.
_HEADS = {"q": 1, "sink": 0, "d_out": 1, "out": 1, "lse": 1, "d_q": 1, "d_sink": 0}


def _turned(tensors: Tensors, by: int) -> Tensors:
    return {name: t.roll(by, _HEADS[name]) if name in _HEADS else t for name, t in tensors.items()}


def _other_heads(case: Case, tensors: Tensors) -> Tensors | None:
    return _turned(tensors, 1) if case["H"] > 1 else None


def _other_slots(case: Case, tensors: Tensors) -> Tensors | None:
    """A length counts slots from the first, so that with one they may not move."""
    if case["topk"] < 2 or has_lengths(case):
        return None
    return {**tensors, "topk_idxs": tensors["topk_idxs"].roll(1, 1)}


def _with_holes(case: Case, tensors: Tensors) -> Tensors | None:
    """A hole before each slot."""
    topk_idxs: Tensor = tensors["topk_idxs"]
    if topk_idxs.numel() == 0 or has_lengths(case):
        return None
    padded = torch.stack([torch.full_like(topk_idxs, -1), topk_idxs], -1).flatten(1)
    return {**tensors, "topk_idxs": padded}


def _other_rows(case: Case, tensors: Tensors) -> Tensors | None:
    """Each KV row one further, and the slots that list it too."""
    rows, topk_idxs = case["S_k"], tensors["topk_idxs"]
    if rows < 2:
        return None
    inside = (topk_idxs >= 0) & (topk_idxs < rows)
    moved = torch.where(inside, (topk_idxs + 1) % rows, topk_idxs)
    return {**tensors, "kv": tensors["kv"].roll(1, 0), "topk_idxs": moved}


def _back_rows(case: Case, outputs: Tensors) -> Tensors:
    return {name: t.roll(-1, 0) if name == "d_kv" else t for name, t in outputs.items()}


def _pair(case: Case) -> tuple[int, int] | None:
    """A row that some query lists twice, and one that nobody lists; None where there are none."""
    drawn = {"topk_idxs": indices(case, "topk_idxs")}
    if has_lengths(case):
        drawn["topk_length"] = lengths(case, "topk_length")
    counts = torch.zeros((case["S_q"], case["S_k"]), dtype=torch.int64)
    counts.scatter_add_(1, drawn["topk_idxs"].clamp(0, max(0, case["S_k"] - 1)), live(case, drawn).long())
    repeated, unlisted = (counts > 1).any(0).nonzero(), (counts == 0).all(0).nonzero()
    return (int(repeated[0]), int(unlisted[0])) if len(repeated) and len(unlisted) else None


def _split(case: Case, tensors: Tensors) -> Tensors | None:
    """Of the slots that list one row, every second lists a copy of it instead, in a row that nobody lists."""
    pair = _pair(case) if 0 not in (case["S_q"], case["S_k"], case["topk"]) else None
    if pair is None:
        return None
    row, copy = pair
    lists = tensors["topk_idxs"] == row
    second = lists & (lists.cumsum(1) % 2 == 0)
    kv = tensors["kv"].clone()
    kv[copy] = kv[row]
    return {**tensors, "kv": kv, "topk_idxs": torch.where(second, copy, tensors["topk_idxs"])}


def _rejoined(case: Case, outputs: Tensors) -> Tensors:
    """The copy's gradient added to its row's, in FP64."""
    pair = _pair(case)
    if pair is None or "d_kv" not in outputs:
        return outputs
    row, copy = pair
    d_kv = outputs["d_kv"].double()
    d_kv[row] += d_kv[copy]
    d_kv[copy] = 0.0
    return {**outputs, "d_kv": d_kv}


def _same(case: Case, outputs: Tensors) -> Tensors:
    return outputs


def _bounded(
    name: str,
    transform: Callable[[Case, Tensors], Tensors | None],
    back: Callable[[Case, Tensors], Tensors] = _same,
) -> Relation:
    """Sums may take another order, so that the results agree within the two radii."""
    return Relation(name, transform, back, exact=False)


RELATIONS = (
    _bounded("slots in another order", _other_slots),
    _bounded("slots padded with holes", _with_holes),
    _bounded("a duplicate split over two equal rows", _split, _rejoined),
    _bounded("heads in another order", _other_heads, lambda case, outputs: _turned(outputs, -1)),
    _bounded("KV rows in another order", _other_rows, _back_rows),
)


def _cancels(name: str, terms: tuple[float, ...], D: int, **facts: Any) -> Cancellation:
    """One KV row that each query lists once: with one slot P is 1, out its value, dS 0, and d_kv the sum of d_out.

    One of two heads has all of the cotangent.
    """
    case = named(len(terms), 1, 2, D, D, 1, sink="none", regime="cancelling", **facts)
    size, exact = (len(terms), 2, D), torch.float64
    cotangent = torch.tensor([[term, 0.0] for term in terms], dtype=exact)[..., None].expand(size)
    values = {"q": torch.zeros(size, dtype=exact), "kv": torch.ones(1, D, dtype=exact), "d_out": cotangent}
    return Cancellation(name, case, values, {"d_kv": torch.full((1, D), sum(terms), dtype=exact)})


# Terms of both signs over six decades (20 binary orders), of which the smallest is left.
_SIX_DECADES = (2.0**10, 2.0**-10, -(2.0**10))
CANCELLATIONS = (
    _cancels("six decades", _SIX_DECADES, 1),
    _cancels("six decades, bf16", _SIX_DECADES, 1, dtype="bf16", d_kv="fp32"),
    _cancels("six decades, 512 features", _SIX_DECADES, 512, dtype="bf16"),
    _cancels("five terms", (2.0**9, -(2.0**8), 2.0**-8, 2.0**-2, -(2.0**8), -(2.0**-2)), 1, seed=1),
)
