"""What follows of the balance losses when a Case is changed in a known way, and sums that cancel on purpose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.oracle import Cancellation, Relation

Tensors = dict[str, Any]

_TOKENS = {"scores": 0, "routing_map": 0, "padding": 0, "d_scores": 0}
_EXPERTS = {"scores": 1, "routing_map": 1, "frequencies": 0, "mass": 0, "d_scores": 1}
_FACTOR = 4.0
# Norms above this are far from the clamp and swallow EPSILON in FP32; scores below its inverse stay finite times 4.
_PLAIN = 2.0**-20


def relations(given: bool) -> tuple[Relation, ...]:
    """The relations of the objective with a given map, or of the one that selects by itself."""
    return (_turned("tokens", "T", _TOKENS, given), _turned("experts", "E", _EXPERTS, given), _scaled(given))


def _turned(what: str, size: str, axes: dict[str, int], given: bool) -> Relation:
    """The `what` in another order give the same results in that order, up to the order of sums."""

    def turn(tensors: Tensors, by: int) -> Tensors:
        return {name: t.roll(by, axes[name]) if name in axes else t for name, t in tensors.items()}

    def transform(case: Case, tensors: Tensors) -> Tensors | None:
        # Which of two equal scores is chosen depends on where they stand.
        if case[size] < 2 or (size == "E" and not given and _tied(case, tensors["scores"])):
            return None
        return turn(tensors, 1)

    return Relation(f"{what} in another order", transform, lambda case, outputs: turn(outputs, -1), exact=False)


def _tied(case: Case, scores: Tensor) -> bool:
    """Whether the last chosen score of some row equals the first that is not."""
    ordered = scores.sort(-1, descending=True).values
    return case["K"] < case["E"] and bool((ordered[:, case["K"] - 1] == ordered[:, case["K"]]).any())


def _scaled(given: bool) -> Relation:
    """Scores times 4 choose the same experts and weigh the same; the gradient is a quarter."""

    def transform(case: Case, tensors: Tensors) -> Tensors | None:
        scores = tensors["scores"].double()
        if tensors.get("padding") is not None:
            scores = scores[~tensors["padding"]]
        norms = scores.abs().sum(-1) if given else scores.sum(-1).abs()
        plain = bool((norms > _PLAIN).all()) and bool((scores.abs() < 1 / _PLAIN).all())
        return {**tensors, "scores": tensors["scores"] * _FACTOR} if plain and norms.numel() else None

    def back(case: Case, outputs: Tensors) -> Tensors:
        return {name: t * _FACTOR if name == "d_scores" else t for name, t in outputs.items()}

    return Relation("scores times 4", transform, back)


def cancellations(given: bool) -> tuple[Cancellation, ...]:
    """Two tokens whose shares of the first expert are 3/4 and a/4 - 3/4, so that its mass is a/4."""
    return tuple(_cancels(2.0**-k, k, given) for k in (8, 14))


def _cancels(a: float, k: int, given: bool) -> Cancellation:
    # Both rows have den 4: by sizes (3 - a) + (1 + a), or as a plain sum (a - 3) + (7 - a).
    second = 1 + a if given else 7 - a
    values: Tensors = {"scores": [[3.0, 1.0], [a - 3, second]]}
    if given:
        values["routing_map"] = torch.tensor([[True, False], [False, True]])
    # Each token chose an expert of its own, so the frequencies are 1.
    exact = {"mass": [a / 4, (1 + second) / 4], "raw": (1 + second + a) / 4}
    return Cancellation(f"2^-{k}", Case.of(T=2, E=2, K=1, regime="normal", seed=k), values=values, exact=exact)
