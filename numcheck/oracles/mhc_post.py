"""mHC post mixing: hyper-connections write a block's output back into H residual streams.

    out[o, d] = post[o] * x[d] + sum_s comb[s, o] * residual[s, d]          for each token

comb is indexed [source, output] and is not symmetric. The product post * x comes first, then the sources in
ascending order, then one cast (the policy of xtuner PR 2260, which is LMDeploy's). For the loss L, with
g[o, d] = dL/dout[o, d], the map is linear in each input, so its VJP reads off the coefficients:

    d_x[d]           = sum_o post[o] * g[o, d]
    d_residual[s, d] = sum_o comb[s, o] * g[o, d]
    d_post[o]        = sum_d x[d] * g[o, d]
    d_comb[s, o]     = sum_d residual[s, d] * g[o, d]

Source: the definition of hyper-connections (Zhu et al., arXiv 2409.19606; manifold-constrained: arXiv 2512.24880)
and the kernel of that pull request. No value is saved between forward and VJP.

Shapes: x (S, D), residual (S, H, D), out (S, H, D) in the data's dtype; post (S, H), comb (S, H, H) in FP32,
their gradients too. S tokens, H streams, D features.

Points: post, comb (the coefficients, in forward and VJP), px (post * x), mix (the sum over the sources by itself),
out, d_x, d_residual, d_post, d_comb. Totals: out (with mix apart), d_x, d_residual, d_post, d_comb.
"""

from __future__ import annotations

from typing import Any

from numcheck.case import Case
from numcheck.contract import Rounding, Rounds
from numcheck.oracle import Cancellation, CaseSpace, Input, Oracle, Output, Reading, Relation

COEFFICIENT = "fp32"


def forward(read: Reading, x: Any, residual: Any, post: Any, comb: Any) -> dict[str, Any]:
    """{"out": (S, H, D)} from x (S, D), residual (S, H, D), post (S, H), comb (S, source, output)."""
    post, comb = read.at("post", post), read.at("comb", comb)
    px = read.at("px", post[:, :, None] * x[:, None, :])
    sources = comb[:, :, :, None] * residual[:, :, None, :]
    return {"out": read.at("out", read.total("out", sources, 1, onto=px, apart="mix"))}


def vjp(read: Reading, x: Any, residual: Any, post: Any, comb: Any, d_out: Any) -> dict[str, Any]:
    """The gradients, each of its input's shape, from the cotangent d_out (S, H, D)."""
    post, comb = read.at("post", post), read.at("comb", comb)
    d_x = read.total("d_x", post[:, :, None] * d_out, 1)
    d_residual = read.total("d_residual", comb[:, :, :, None] * d_out[:, None, :, :], 2)
    d_post = read.total("d_post", x[:, None, :] * d_out, -1)
    d_comb = read.total("d_comb", residual[:, :, None, :] * d_out[:, None, :, :], -1)
    return {
        "d_x": read.at("d_x", d_x),
        "d_residual": read.at("d_residual", d_residual),
        "d_post": read.at("d_post", d_post),
        "d_comb": read.at("d_comb", d_comb),
    }


def twin(mp: Any, case: Case, x: Any, residual: Any, post: Any, comb: Any) -> dict[str, Any]:
    """The forward in scalar arithmetic, written from the formula: nested lists in, nested lists out."""
    streams, features = range(case["H"]), range(case["D"])

    def element(t: int, o: int, d: int) -> Any:
        value = post[t][o] * x[t][d]
        for s in streams:
            value = value + comb[t][s][o] * residual[t][s][d]
        return value

    return {"out": [[[element(t, o, d) for d in features] for o in streams] for t in range(case["S"])]}


def _candidates() -> dict[str, Rounds]:
    """Alternative roundings for the policy fingerprint, the usual one first.

    "bf16 rounding" is the policy before the pull request, called bit-faithful to its model's reference code:
    coefficients, mix and post * x round to bf16, and so do d_post and d_comb as autograd returns them.
    """
    cast: dict[str, str | Rounding] = {"out": "data", "d_x": "data", "d_residual": "data"}
    cut: dict[str, str | Rounding] = {name: Rounding("data", "truncate") for name in cast}
    bf16 = {
        "bf16 rounding": ("post", "comb", "px", "mix", "d_post", "d_comb"),
        "coefficients": ("post", "comb"),
        "post": ("post",),
        "comb": ("comb",),
        "px": ("px",),
        "mix": ("mix",),
        "px and mix": ("px", "mix"),
        "coefficient gradients": ("d_post", "d_comb"),
        "coefficients both ways": ("post", "comb", "d_post", "d_comb"),
        "bf16 rounding, FP32 coefficients": ("px", "mix", "d_post", "d_comb"),
        "bf16 rounding, FP32 gradients": ("post", "comb", "px", "mix"),
        "bf16 products": ("px", "mix", "d_x.terms", "d_post.terms"),
    }
    named: dict[str, Rounds] = {name: {**cast, **dict.fromkeys(points, "bf16")} for name, points in bf16.items()}
    return {"fp32": cast, **named, "truncated outputs": cut}


def _cancels(name: str, post: float, exact: float, seed: int = 0) -> Cancellation:
    """post * 1 - 1/2 - 1/2 for the first stream: `exact` left of terms that add up to 2; the second leaves 0."""
    return Cancellation(
        name,
        Case.of(S=1, H=2, D=1, dtype="bf16", regime="cancelling", seed=seed),
        values={
            "x": [[1.0]],
            "residual": [[[-1.0], [-1.0]]],
            "post": [[post, 1.0]],
            "comb": [[[0.5, 0.5], [0.5, 0.5]]],
        },
        exact={"out": [[[exact], [0.0]]]},
    )


# 1.003 in FP32 is 1 + 25166 * 2^-23, so what is left is that multiple of 2^-23, and its bf16 cast 0.0030059814453125.
_REPORTED = 25166 * 2.0**-23

# Which axis of each tensor counts the streams that are read from, those that are written to, and the features.
_AXES = {
    "sources": {"residual": 1, "comb": 1, "d_residual": 1, "d_comb": 1},
    "streams": {"post": 1, "comb": 2, "d_out": 1, "out": 1, "d_post": 1, "d_comb": 2},
    "features": {"x": 1, "residual": 2, "d_out": 2, "out": 2, "d_x": 1, "d_residual": 2},
}


def _turned(what: str, size: str) -> Relation:
    """The `what` in another order give the same results in that order, up to the order of sums over them."""
    axes = _AXES[what]

    def turn(tensors: dict[str, Any], by: int) -> dict[str, Any]:
        return {name: t.roll(by, axes[name]) if name in axes else t for name, t in tensors.items()}

    def transform(case: Case, tensors: dict[str, Any]) -> dict[str, Any] | None:
        return turn(tensors, 1) if case[size] > 1 else None

    return Relation(f"{what} in another order", transform, lambda case, outputs: turn(outputs, -1), exact=False)


_SPACE = CaseSpace(
    sizes={"S": (1, 4), "H": (1, 8), "D": (1, 4096)},
    choices={"H": (1, 2, 4, 8)},
    dtypes=("fp32", "bf16"),
    grid={
        "S": (1, 2),
        "H": (1, 2, 4, 8),
        "D": (31, 257, 2053, 4096),
        "dtype": ("fp32", "bf16"),
        "layout": ("contiguous", "strided"),
        "offset": (0, 1, 2, 3),
    },
    edges=(
        Case.of(S=0, H=4, D=31),
        Case.of(S=0, H=4, D=31, dtype="bf16", layout="strided", offset=1),
        Case.of(S=2, H=4, D=0),
        Case.of(S=1, H=1, D=1),
        Case.of(S=1, H=8, D=1, dtype="bf16"),
        Case.of(S=3, H=1, D=31, dtype="bf16", layout="strided", offset=3),
        Case.of(S=1, H=2, D=2048, dtype="bf16"),
        Case.of(S=1, H=2, D=2049, dtype="bf16"),
        Case.of(S=2, H=2, D=5129, dtype="bf16", offset=1),
        Case.of(S=2, H=4, D=31, regime="zeros"),
        Case.of(S=2, H=4, D=31, dtype="bf16", regime="ones"),
    ),
    tiny=(
        Case.of(S=1, H=1, D=1),
        Case.of(S=1, H=2, D=3),
        Case.of(S=2, H=2, D=3, regime="normal", seed=1),
        Case.of(S=1, H=4, D=5, dtype="bf16", regime="mean4", seed=2),
        Case.of(S=1, H=2, D=8, regime="cancelling", seed=3),
        Case.of(S=1, H=2, D=3, regime="integers", seed=4),
    ),
)

mhc_post = Oracle(
    name="mhc_post",
    inputs=(
        Input("x", ("S", "D")),
        Input("residual", ("S", "H", "D")),
        Input("post", ("S", "H"), dtype=COEFFICIENT, fill="gain"),
        Input("comb", ("S", "H", "H"), dtype=COEFFICIENT, fill="unit"),
    ),
    outputs=(Output("out", ("S", "H", "D")),),
    forward=forward,
    vjp=vjp,
    twin=twin,
    space=_SPACE,
    policies=_candidates(),
    batch="S",
    cancellations=(
        _cancels("reported", 1.003, _REPORTED),
        *(_cancels(f"2^-{k}", 1.0 + 2.0**-k, 2.0**-k, seed=k) for k in (6, 8, 10, 12)),
    ),
    relations=(_turned("sources", "H"), _turned("streams", "H"), _turned("features", "D")),
    source="arXiv 2409.19606 and 2512.24880; rounding policy of xtuner pull request 2260; VJP derived in this file",
)
