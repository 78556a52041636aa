"""Grouped dSReLU: the backward of a mixture-of-experts MLP with squared ReLU, its routing weight's gradient and sums.

    act(c) = relu(c)^2                     or, clamped at s,   act(c) = s^2 tanh(relu(c) / s)^2
    d act  = 2 relu(c)                                         d act  = 2 s (t - t^3),   t = tanh(relu(c) / s)

The rest is `numcheck.oracles.grouped_mlp`, with alpha entering once. Both activations have slope 0 at c = 0 from either
side, so there is no kink.

Source: the squared ReLU of So et al. (arXiv 2109.08668); the grouped backward of cudnn-frontend 1.32.0 (dSReLU, with
its tanh clamp) for what is returned; derived in that file and above.

Shapes: c, d_c (M, N), d_out, d_x (M, H), w1, w2 (E, N, H) in the data's dtype; prob, d_prob, d_prob_onto (M,), alpha
(E,), d_bias, d_bias_onto (E, N) in FP32; tokens, offsets (E,) int32. M rows, N features, H hidden, E experts.
Facts: rows (see grouped_rows), prob ("none": no routing weight), bias (whether d_bias is wanted), clamp (s; 0: none),
onto (what the caller's buffers hold). Scalars: tanh_clamp_scale where clamped, generate_dbias.
Points beside grouped_mlp's: t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from numcheck.case import Case, Fact
from numcheck.oracle import Cancellation, CaseSpace, Input, Oracle, Reading
from numcheck.oracles import grouped_case as cases
from numcheck.oracles import grouped_mlp as mlp


def activation(read: Reading, z: Any, tanh_clamp_scale: float | None = None) -> Any:
    """act (M, N) of z (M, N)."""
    import torch

    if tanh_clamp_scale is None:
        return torch.relu(z) ** 2
    return (_clamped(read, z, tanh_clamp_scale) * tanh_clamp_scale) ** 2


def gradient(read: Reading, z: Any, r: Any, tanh_clamp_scale: float | None = None) -> Any:
    """dL/dz (M, N) of r = dL/d act (M, N)."""
    import torch

    if tanh_clamp_scale is None:
        return 2.0 * r * torch.relu(z)
    t = _clamped(read, z, tanh_clamp_scale)
    return 2.0 * tanh_clamp_scale * (t - t**3) * r


def _clamped(read: Reading, z: Any, scale: float) -> Any:
    import torch

    return read.at("t", torch.tanh(torch.relu(z) / scale))


SRELU = mlp.Activation(activation, gradient)


def forward(
    read: Reading, c: Any, prob: Any, alpha: Any, w1: Any, w2: Any, tokens: Any, offsets: Any, **options: Any
) -> dict[str, Any]:
    """out (M, H) of the MLP from its FC1 output c, with prob and bias as they are used elsewhere."""
    rows = mlp.Rows.of(tokens, offsets, c.shape[0])
    return mlp.forward(read, SRELU, c, prob, alpha, w2, rows, mlp.Options.of(options))


def vjp(
    read: Reading, c: Any, prob: Any, alpha: Any, w1: Any, w2: Any, tokens: Any, offsets: Any,
    d_out: Any, d_prob_onto: Any = None, d_bias_onto: Any = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """d_c, d_x, and with their buffers d_prob and d_bias."""
    rows = mlp.Rows.of(tokens, offsets, c.shape[0])
    return mlp.vjp(
        read, SRELU, c, prob, alpha, w1, w2, d_out, d_prob_onto, d_bias_onto, rows, mlp.Options.of(options)
    )  # fmt: skip


def twin(
    mp: Any, case: Case, c: Any, prob: Any, alpha: Any, w1: Any, w2: Any, tokens: Any, offsets: Any,
    x: Any, bias: Any = None, tanh_clamp_scale: float | None = None, generate_dbias: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The forward in scalar arithmetic; x and bias are increments of zero."""

    def act(row: list[Any]) -> list[Any]:
        kept = [z if z > 0 else 0 * z for z in row]
        if tanh_clamp_scale is None:
            return [z * z for z in kept]
        return [(tanh_clamp_scale * mp.tanh(z / tanh_clamp_scale)) ** 2 for z in kept]

    return mlp.twin(mp, act, c, prob, alpha, w1, w2, x, bias, tokens, offsets)


def scalars(case: Case) -> dict[str, Fact]:
    """tanh_clamp_scale where the Case clamps, and whether d_bias is wanted."""
    clamp = case.fact("clamp", 0.0)
    return {"generate_dbias": cases.biased(case)} | ({"tanh_clamp_scale": clamp} if clamp else {})


def wrong(case: Case) -> dict[str, tuple[Fact, ...]]:
    """A clamp that is no finite number above 0; no d_bias where a buffer for it comes along."""
    clamps = {"tanh_clamp_scale": (0.0, -1.0, math.nan, math.inf)}
    return clamps | ({"generate_dbias": (False,)} if cases.biased(case) else {})


def _named(name: str, seed: int, exact: Mapping[str, Any], **values: Any) -> Cancellation:
    """One row of two features and two hidden columns, with c, prob and alpha of 1."""
    case = Case.of(E=1, M=1, N=2, H=2, dtype="bf16", regime="cancelling", facts={"clamp": 0.0}, seed=seed)
    ones = {"c": [[1.0, 1.0]], "prob": [1.0], "alpha": [1.0], "d_prob_onto": [0.0], "d_bias_onto": [[0.0, 0.0]]}
    return Cancellation(name, case, values=ones | values, exact=exact)


def _in_the_sum(k: int) -> Cancellation:
    """d_prob = (1 + 2^-k) - 1: R of the first feature keeps a bit that an early rounding loses."""
    return _named(
        f"d_prob, 2^-{k}",
        k,
        {"d_prob": [2.0**-k]},
        w1=[[[1.0, 0.0], [1.0, 0.0]]],
        w2=[[[1.0, 1.0], [-1.0, 0.0]]],
        d_out=[[1.0, 2.0**-k]],
    )


def _in_the_gemms() -> Cancellation:
    """R = ((1 + 2^-7) - 1, 1) in the first GEMM, so d_c = (2^-6, 2); in the second d_x = 1 - (1 - 2^-8) = 2^-8."""
    return _named(
        "both GEMMs",
        0,
        {"d_c": [[2.0**-6, 2.0]], "d_bias": [[2.0**-6, 2.0]], "d_x": [[2.0**-8, 0.0]]},
        w1=[[[64.0, 0.0], [-(1.0 - 2.0**-8) / 2, 0.0]]],
        w2=[[[1.0, -1.0], [0.0, 1.0]]],
        d_out=[[1.0 + 2.0**-7, 1.0]],
    )


_WIDTHS = (8, 65, 513, 1100)
# The edges that reach the clamp's bend: padded rows in both dtypes, and values of its own size.
_CLAMPED = tuple(cases.edges(_WIDTHS, clamp=4.0)[k] for k in (5, 6, 13))
_SPACE = CaseSpace(
    sizes={"E": (1, 4), "M": (4, 300), "N": (1, 1024), "H": (1, 64)},
    facts={**cases.FACTS, "clamp": (0.0, 4.0)},
    grid={"E": (1, 2), "N": cases.WIDTHS, "H": (1, 16), **cases.GRID, "clamp": (0.0, 4.0)},
    regimes=cases.REGIMES,
    edges=(*cases.edges(_WIDTHS, clamp=0.0), *_CLAMPED),
    tiny=cases.tiny(3, clamp=2.0),
)

grouped_srelu = Oracle(
    name="grouped_srelu",
    inputs=(
        Input("c", ("M", "N"), fill=cases.preactivation, grad=False),
        cases.PROB,
        cases.ALPHA,
        Input("w1", ("E", "N", "H"), grad=False),
        Input("w2", ("E", "N", "H"), grad=False),
        cases.TOKENS,
        cases.OFFSETS,
    ),
    outputs=cases.outputs(1),
    gradients=cases.gradients(1),
    forward=forward,
    vjp=vjp,
    twin=twin,
    space=_SPACE,
    scalars=scalars,
    wrong=wrong,
    ignored=cases.ignored,
    policies=cases.policies("t"),
    cancellations=(*(_in_the_sum(k) for k in (8, 10, 12)), _in_the_gemms()),
    relations=(cases.turned_rows(), cases.turned_features(1, 1)),
    source="arXiv 2109.08668; cudnn-frontend 1.32.0 grouped GEMM dSReLU; derived in this file and in grouped_mlp",
)
