"""Router balance losses: how unevenly T tokens are spread over E experts, from scores s and who was chosen.

With counts_e the live tokens that chose expert e (no gradient flows through them) and den_t a token's denominator,

    f_e = E counts_e / max(sum counts, 1e-12)          frequencies
    P_e = sum_t s_te / den_t                           mass, over live tokens
    raw = sum_e f_e P_e
    loss = coefficient raw / max(denominator, 1)       denominator: the step's global count of live tokens

Two objectives, which differ in who chose and in den, and so in their gradients. With c_e = d_loss coefficient f_e /
max(denominator, 1):

    map    the router's map chose; den = max(n, CLAMP), n = sum_e |s_te|
           d_s_te = c_e / den - sgn(s_te) [n > CLAMP] (sum_j c_j s_tj) / den^2
    topk   the K largest scores chose, of equal ones the first; den = sum_e s_te + EPSILON
           d_s_te = c_e / den - (sum_j c_j s_tj) / den^2

The derivative is that of a quotient; sgn is the slope of |s| with sgn(0) = 0, and the clamp's slope is strict: 0 where
n equals CLAMP. A frequency, like the selection itself, is constant. A padding row counts nowhere and has gradient 0,
whatever it holds: it is left out by selection, never by a product. T = 0, or no live row, or an empty map: f, P, raw
and loss are 0. CLAMP and EPSILON are 1e-12 and 1e-20 in FP32, the dtype of every norm; bf16 scores are upcast exactly.

Source: DeepSeek-V3, arXiv 2412.19437, equations 17 to 20, as torchtitan normalises them (its microbatch-wise loss and
pull request 5552, which keeps both objectives); VJP derived above.

Shapes: scores (T, E) in the data's dtype; routing_map (T, E) bool; padding (T,) bool, optional, True for padding;
denominator () FP32; frequencies (E,), mass (E,), raw (), loss () FP32. The VJP takes frequencies as they were saved.

Points: norm, share (counts over their sum), frequencies, q (s over den), mass, raw, loss; weights (c), push and pull
(the two parts of the gradient), d_scores. Totals: norm, mass, raw, and d_scores: a row's dot product in its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.contract import Rounds
from numcheck.oracle import Input, Oracle, Output, Reading
from numcheck.oracles import balance_loss_cases as cases
from numcheck.oracles.balance_loss_cases import CLAMP, EPSILON
from numcheck.oracles.balance_loss_relations import cancellations, relations
from numcheck.reading import Ball

FP32 = "fp32"


def forward_map(
    read: Reading, scores: Any, routing_map: Tensor, padding: Tensor | None, denominator: Any, *, coefficient: float
) -> dict[str, Any]:
    """{"frequencies": (E,), "mass": (E,), "raw": (), "loss": ()} of the map objective."""
    s = _live(scores, padding)
    return _forward(read, s, _live(routing_map, padding), _clamped(_norm(read, s)), denominator, coefficient)


def forward_topk(
    read: Reading, scores: Any, padding: Tensor | None, denominator: Any, *, coefficient: float, topk: int
) -> dict[str, Any]:
    """{"frequencies": (E,), "mass": (E,), "raw": (), "loss": ()} of the top-k objective."""
    s = _live(scores, padding)
    return _forward(read, s, _live(_largest(scores, topk), padding), _plain(read, s), denominator, coefficient)


def vjp_map(
    read: Reading,
    scores: Any,
    routing_map: Tensor,
    padding: Tensor | None,
    denominator: Any,
    frequencies: Any,
    d_loss: Any,
    *,
    coefficient: float,
) -> dict[str, Any]:
    """{"d_scores": (T, E)} of the map objective."""
    s = _live(scores, padding)
    norm = _norm(read, s)
    # sign(n - CLAMP) is 1 above the limit and -1 or 0 elsewhere, and a Ball of it knows where that is uncertain.
    moves = torch.clamp(torch.sign(norm - CLAMP), min=0.0)
    push, pull = _parts(read, s, _clamped(norm), denominator, frequencies, d_loss, coefficient)
    return {"d_scores": read.at("d_scores", _live(push - torch.sign(s) * (moves * pull)[:, None], padding))}


def vjp_topk(
    read: Reading,
    scores: Any,
    padding: Tensor | None,
    denominator: Any,
    frequencies: Any,
    d_loss: Any,
    *,
    coefficient: float,
    topk: int,
) -> dict[str, Any]:
    """{"d_scores": (T, E)} of the top-k objective."""
    s = _live(scores, padding)
    push, pull = _parts(read, s, _plain(read, s), denominator, frequencies, d_loss, coefficient)
    return {"d_scores": read.at("d_scores", _live(push - pull[:, None], padding))}


def _forward(read: Reading, s: Any, chosen: Tensor, den: Any, denominator: Any, coefficient: float) -> dict[str, Any]:
    counts, total = torch.count_nonzero(chosen, dim=0), torch.count_nonzero(chosen).clamp(min=1)
    share = read.at("share", read.enter(counts.double()) / read.enter(total.double()))
    frequencies = read.at("frequencies", share * float(s.shape[1]))
    mass = read.at("mass", read.total("mass", read.at("q", s / den[:, None]), 0))
    raw = read.at("raw", read.total("raw", frequencies * mass, 0))
    loss = read.at("loss", raw * coefficient / torch.clamp(denominator, min=1.0))
    return {"frequencies": frequencies, "mass": mass, "raw": raw, "loss": loss}


def _parts(
    read: Reading, s: Any, den: Any, denominator: Any, frequencies: Any, d_loss: Any, coefficient: float
) -> tuple[Any, Any]:
    """c_e / den (T, E) and (sum_j c_j s_j) / den^2 (T,)."""
    weights = read.at("weights", d_loss * coefficient / torch.clamp(denominator, min=1.0) * frequencies)
    dot = read.total("d_scores", weights * s, -1)
    return read.at("push", weights / den[:, None]), read.at("pull", dot / den / den)


def _norm(read: Reading, s: Any) -> Any:
    return read.at("norm", read.total("norm", s.abs(), -1))


def _clamped(norm: Any) -> Any:
    return torch.clamp(norm, min=CLAMP)


def _plain(read: Reading, s: Any) -> Any:
    return read.at("norm", read.total("norm", s, -1)) + EPSILON


def _live(values: Any, padding: Tensor | None) -> Any:
    """The values, with zero (False) in padding rows."""
    return values if padding is None else torch.where(padding[:, None], torch.zeros_like(values), values)


def _largest(scores: Any, topk: int) -> Tensor:
    """The K largest of each row as a map (T, E). Scores enter as they are, so there is no doubt which these are."""
    values: Tensor = scores.value if isinstance(scores, Ball) else scores
    chosen = torch.sort(values, dim=-1, descending=True, stable=True).indices[:, :topk]
    return torch.zeros(values.shape, dtype=torch.bool).scatter_(1, chosen, True)


def twin_map(
    mp: Any, case: Case, scores: Any, routing_map: Any, padding: Any, denominator: Any, *, coefficient: float
) -> dict[str, Any]:
    """The map objective in scalar arithmetic, written from the formula."""

    def den(row: list[Any]) -> Any:
        norm = mp.fsum(abs(x) for x in row)
        return norm if norm > mp.mpf(CLAMP) else mp.mpf(CLAMP)

    return _twin(mp, case, scores, routing_map, padding, denominator, coefficient, den)


def twin_topk(
    mp: Any, case: Case, scores: Any, padding: Any, denominator: Any, *, coefficient: float, topk: int
) -> dict[str, Any]:
    """The top-k objective in scalar arithmetic; who was chosen is found by value, and held fixed."""

    def before(row: list[Any], e: int) -> int:
        return sum(row[j] > row[e] or (j < e and not row[j] < row[e]) for j in range(len(row)))

    chosen = [[before(row, e) < topk for e in range(case["E"])] for row in scores]
    return _twin(
        mp, case, scores, chosen, padding, denominator, coefficient, lambda row: mp.fsum(row) + mp.mpf(EPSILON)
    )


def _twin(
    mp: Any, case: Case, scores: Any, chosen: Any, padding: Any, denominator: Any, coefficient: float, den: Any
) -> dict[str, Any]:
    experts, live = range(case["E"]), [t for t in range(case["T"]) if not (padding and padding[t])]
    counts = [sum(bool(chosen[t][e]) for t in live) for e in experts]
    frequencies = [mp.mpf(case["E"] * count) / max(sum(counts), 1) for count in counts]
    dens = {t: den(scores[t]) for t in live}
    mass = [mp.fsum(scores[t][e] / dens[t] for t in live) for e in experts]
    raw = mp.fsum(mass[e] * frequencies[e] for e in experts)
    below = denominator if denominator > 1 else mp.mpf(1)
    return {"frequencies": frequencies, "mass": mass, "raw": raw, "loss": raw * coefficient / below}


def _candidates() -> dict[str, Rounds]:
    """Alternative roundings for the policy fingerprint: what a router in the data's dtype would round on the way."""
    cast: Rounds = {"d_scores": "data"}
    points = {
        "norm and q": ("norm", "q"),
        "norm": ("norm",),
        "q": ("q",),
        "frequencies": ("share", "frequencies"),
        "weights": ("weights",),
        "push and pull": ("push", "pull"),
        "push": ("push",),
        "pull": ("pull",),
    }
    return {"fp32": cast, **{name: {**cast, **dict.fromkeys(found, "bf16")} for name, found in points.items()}}


_SOURCE = "DeepSeek-V3 (arXiv 2412.19437) and torchtitan pull request 5552; VJP derived in this file"
_OUTPUTS = (
    Output("frequencies", ("E",), dtype=FP32, saved=True, cotangent=False),
    Output("mass", ("E",), dtype=FP32, cotangent=False),
    Output("raw", (), dtype=FP32, cotangent=False),
    Output("loss", (), dtype=FP32),
)
_SCORES = Input("scores", ("T", "E"), fill=cases.scores)
_MAP = Input("routing_map", ("T", "E"), dtype="bool", fill=cases.routing_map, grad=False)
_PADDING = Input("padding", ("T",), dtype="bool", fill=cases.padding, grad=False, given=cases.padded)
_DENOMINATOR = Input("denominator", (), dtype=FP32, fill=cases.denominator, grad=False)

balance_loss_map = Oracle(
    name="balance_loss_map",
    inputs=(_SCORES, _MAP, _PADDING, _DENOMINATOR),
    outputs=_OUTPUTS,
    forward=forward_map,
    vjp=vjp_map,
    twin=twin_map,
    space=cases.space(given=True),
    policies=_candidates(),
    cancellations=cancellations(given=True),
    relations=relations(given=True),
    scalars=cases.scalars,
    wrong=cases.wrong,
    ignored=cases.ignored,
    source=_SOURCE,
)

balance_loss_topk = Oracle(
    name="balance_loss_topk",
    inputs=(_SCORES, _PADDING, _DENOMINATOR),
    outputs=_OUTPUTS,
    forward=forward_topk,
    vjp=vjp_topk,
    twin=twin_topk,
    space=cases.space(given=False),
    policies=_candidates(),
    cancellations=cancellations(given=False),
    relations=relations(given=False),
    scalars=cases.scalars_topk,
    wrong=cases.wrong_topk,
    ignored=cases.ignored,
    source=_SOURCE,
)
