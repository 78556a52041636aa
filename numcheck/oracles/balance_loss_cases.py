"""Which Cases the balance losses have: score rows of every kind, maps, padding and denominators, drawn by facts.

Facts: `rows`, how scores look (`SCORES`; "mixed" gives each row a kind of its own); `map`, how a given map looks;
`padding`; `denominator`, the global token count, and, where a Case states it, `coefficient`. K experts a token are
chosen, or E where there are fewer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from numcheck.case import Case, Fact
from numcheck.oracle import CaseSpace
from numcheck.sample import Counter

# The L1 norm's lower limit, 1e-12 rounded to FP32, the dtype of every norm: 9.99999996e-13, which is below 1e-12, so
# that comparing in FP64 would put a row that sits on the limit in the other regime. fp16 has no such number at all.
CLAMP = 0x8CBCCC * 2.0**-63
# What the plain sum is raised by, 1e-20 rounded to FP32.
EPSILON = 0xBCE508 * 2.0**-90
# CLAMP as three numbers of 8 bits each, exact in bf16, whose sums are exact in every order.
_PIECES = (0x8C0000 * 2.0**-63, 0x00BC00 * 2.0**-63, 0x0000CC * 2.0**-63)
# Far enough from the limit that no order of summation can take a row to its other side, near enough to mean it.
_APART = 2.0**-6
# About 1e-15: every row of such scores has its norm clamped.
_TINY = 2.0**-50
_COEFFICIENT = 2.0**-13
_DENOMINATOR = 4096.0
_PADDED = 0.25

Values = Callable[[Counter, tuple[int, int], Case], Tensor]


def _positive(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    if case.regime in ("ones", "zeros"):
        return torch.full(shape, 1.0 if case.regime == "ones" else 0.0, dtype=torch.float64)
    if case.regime == "integers":
        return counter.integers(shape, 0, 3)
    scores = counter.uniform(shape)
    return scores * counter.powers(shape, -8, 8) if case.regime == "wide" else scores


def _signed(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    return _positive(counter, shape, case) * replace(counter, name=f"{counter.name}/signs").signs(shape)


def _tiny(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    return counter.uniform(shape) * _TINY


def _zero(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def _clamp(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    """Rows whose norm is CLAMP to the bit: its pieces, signed, in neighbouring columns."""
    rows, experts = shape
    pieces = _PIECES if experts >= len(_PIECES) else (_PIECES[0] + _PIECES[1], _PIECES[2]) if experts == 2 else (CLAMP,)
    scores = torch.zeros(shape, dtype=torch.float64)
    start = replace(counter, name=f"{counter.name}/start").indices((rows,), 0, max(experts - 1, 0))
    for k, piece in enumerate(pieces):
        scores[torch.arange(rows), (start + k) % max(experts, 1)] = piece
    return scores * replace(counter, name=f"{counter.name}/signs").signs(shape)


def _above(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    return _clamp(counter, shape, case) * (1 + _APART)


def _below(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    return _clamp(counter, shape, case) * (1 - _APART)


def _ties(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    return (counter.integers(shape, 0, 2) + 0.5) / 4


def _mixed(counter: Counter, shape: tuple[int, int], case: Case) -> Tensor:
    kinds = (_positive, _signed, _clamp, _tiny, _zero, _above, _below)
    drawn = replace(counter, name=f"{counter.name}/kind").indices((shape[0], 1), 0, len(kinds) - 1)
    scores = torch.zeros(shape, dtype=torch.float64)
    for k, kind in enumerate(kinds):
        scores = torch.where(drawn == k, kind(counter, shape, case), scores)
    return scores


SCORES: Mapping[str, Values] = {
    "positive": _positive,
    "signed": _signed,
    "mixed": _mixed,
    "ties": _ties,
    "tiny": _tiny,
    "zero": _zero,
    "clamp": _clamp,
}


def scores(case: Case, name: str) -> Tensor:
    """FP64 scores (T, E) of the kind that the Case names."""
    return SCORES[str(case.fact("rows", "positive"))](Counter(case.seed, name), (case["T"], case["E"]), case)


def routing_map(case: Case, name: str) -> Tensor:
    """A map (T, E) that has nothing to do with the scores, as a router's bias and groups would make it.

    topk: K experts in each row; ragged: any number from none to all; empty; all.
    """
    shape, counter, kind = (case["T"], case["E"]), Counter(case.seed, name), case.fact("map", "topk")
    if kind in ("empty", "all"):
        return torch.full(shape, kind == "all")
    rank = counter.uniform(shape).argsort(-1).argsort(-1)
    if kind == "topk":
        return rank < case["K"]
    return rank < replace(counter, name=f"{name}/count").indices((case["T"], 1), 0, case["E"])


def padding(case: Case, name: str) -> Tensor:
    """True for the rows (T,) that are padding."""
    share = 1.0 if case.fact("padding", "none") == "all" else _PADDED
    return Counter(case.seed, name).uniform((case["T"],)) < share


def denominator(case: Case, name: str) -> Tensor:
    """The global count of live tokens, () in FP32; below 1 it counts as 1."""
    return torch.tensor(float(case.fact("denominator", _DENOMINATOR)), dtype=torch.float64)


def padded(case: Case) -> bool:
    """Whether the Case has a padding mask."""
    return case.fact("padding", "none") != "none"


def scalars(case: Case) -> Mapping[str, Fact]:
    """The loss's coefficient."""
    return {"coefficient": float(case.fact("coefficient", _COEFFICIENT))}


def scalars_topk(case: Case) -> Mapping[str, Fact]:
    """The coefficient, and how many experts a token takes."""
    return {**scalars(case), "topk": min(case["K"], case["E"])}


def wrong(case: Case) -> Mapping[str, tuple[Fact, ...]]:
    """A coefficient that is not finite."""
    return {"coefficient": (math.nan, math.inf)}


def wrong_topk(case: Case) -> Mapping[str, tuple[Fact, ...]]:
    """Also a number of experts that is not from 1 to E."""
    return {**wrong(case), "topk": (0, case["E"] + 1)}


def ignored(case: Case, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Whatever stands in a padding row must not matter."""
    mask = tensors.get("padding")
    if mask is None:
        return {}
    rows = mask[:, None].expand(case["T"], case["E"])
    return {name: rows for name in ("scores", "routing_map") if name in tensors}


# Thread 003's shapes (T, E, K). The tuned kernel there knew the last alone; the first three have odd tails.
NAMED = ((8193, 64, 6), (4097, 512, 8), (33, 129, 8), (4096, 256, 8))


def _case(T: int, E: int, K: int, *, dtype: str = "fp32", regime: str = "wide", **more: Any) -> Case:
    of_case = {name: more.pop(name) for name in ("layout", "offset", "seed") if name in more}
    return Case.of(T=T, E=E, K=K, dtype=dtype, regime=regime, facts=more, **of_case)


def _edges(given: bool) -> tuple[Case, ...]:
    own = (
        (_case(5, 9, 2, map="empty"), _case(5, 9, 2, map="all"), _case(5, 9, 2, map="ragged", padding="some"))
        if given
        else (
            _case(5, 9, 9),
            _case(6, 12, 3, rows="ties"),
            _case(4, 9, 3, regime="ones"),
            # Scores below zero among the chosen, where a tile has room for more experts than there are.
            _case(5, 9, 9, rows="signed", regime="normal"),
        )
    )
    return (
        _case(0, 9, 2),
        _case(0, 9, 2, padding="some", dtype="bf16", layout="strided", offset=1),
        _case(1, 1, 1),
        _case(1, 2, 1, rows="signed"),
        _case(3, 2, 2, rows="clamp", offset=1),
        _case(5, 9, 2, rows="clamp", padding="some"),
        _case(5, 9, 2, rows="clamp", dtype="bf16"),
        _case(5, 9, 2, rows="tiny", offset=3),
        _case(5, 9, 2, rows="zero", denominator=0.0),
        _case(5, 9, 2, rows="mixed", padding="all"),
        _case(7, 9, 2, rows="mixed", coefficient=0.0, denominator=3.75),
        *own,
        # Whole 16-byte lines of experts in any dtype, where addresses do not follow each other.
        _case(3, 32, 2, layout="strided"),
        # More tokens an expert than bf16 counts to, 256; with this seed in odd numbers, which it does not hold.
        _case(2049, 3, 2, padding="some", seed=1),
        _case(33, 129, 8, rows="signed", regime="normal"),
    )


def _tiny_cases(given: bool) -> tuple[Case, ...]:
    facts = ({"map": "ragged"}, {"map": "empty"}, {"map": "all"}) if given else ({"rows": "ties"}, {"rows": "zero"}, {})
    return (
        _case(1, 1, 1),
        _case(3, 4, 2, rows="mixed"),
        _case(5, 4, 2, rows="mixed", padding="some", seed=1),
        _case(3, 4, 2, rows="signed", regime="normal", denominator=3.75, seed=2),
        _case(3, 4, 2, rows="clamp", denominator=0.0, seed=3),
        _case(2, 3, 1, rows="tiny", dtype="bf16", seed=4),
        _case(2, 3, 2, padding="all", seed=5),
        *(_case(3, 4, 2, seed=6 + k, **fact) for k, fact in enumerate(facts)),
    )


# In full on a CPU too, once each.
_ONCE = tuple(_case(T, E, K, regime="normal", padding="some") for T, E, K in NAMED if T * E > 2**16)


def space(given: bool) -> CaseSpace:
    """The Cases of the objective with a given map, or of the one that selects by itself."""
    kinds: tuple[Fact, ...] = ("positive", "signed", "mixed") if given else ("positive", "signed", "mixed", "ties")
    maps: dict[str, tuple[Fact, ...]] = {"map": ("topk", "ragged")} if given else {}
    facts = {"rows": kinds, **maps, "padding": ("none", "some"), "denominator": (_DENOMINATOR, 3.75, 0.0)}
    memory: dict[str, tuple[Fact, ...]] = {
        "dtype": ("fp32", "bf16"),
        "layout": ("contiguous", "strided"),
        "offset": (0, 1, 2, 3),
    }
    # A Case costs its scores in FP64, several dozen times over; on a GPU the kernel itself is not the larger cost.
    there = CaseSpace(
        sizes={"T": (1, 2048), "E": (1, 520), "K": (1, 8)},
        facts=facts,
        regimes=("wide", "normal", "integers"),
        grid={"T": (3, 130, 1025), "E": (2, 129, 512), "K": (1, 8), **facts, **memory},
        edges=_edges(given),
        tiny=_tiny_cases(given),
        once=_ONCE,
    )
    return replace(
        there,
        sizes={"T": (1, 130), "E": (1, 130), "K": (1, 8)},
        grid={**there.grid, "T": (3, 33, 130), "E": (2, 64, 129)},
        elsewhere={"cuda": there},
    )
