"""What the backward of every grouped MLP shares: GEMM, activation's epilogue, its three sums and the second GEMM.

For a token m of expert e, with pre-activation z (the FC1 output c, scaled by beta_e where the activation takes one):

    out[m, h]  = A_e sum_n prob_m act(z[m])[n] w2[e, n, h]             A_e = alpha_e, or alpha_e^2 for the GLUs
    z[m, j]    = beta_e c[m, j] + bias[e, j] + sum_h x[m, h] w1[e, j, h]

bias and x stand for what has gone into c already: both enter as increments of zero, and their gradients are what a
backward returns. For the loss L with d_out = dL/dout and R[m, n] = A_e sum_h d_out[m, h] w2[e, n, h]:

    dL/d(prob_m act[n]) = R[m, n]
    d_prob_m    = sum_n act(z[m])[n] R[m, n]
    d_c[m, j]   = dL/dz[m, j] = prob_m sum_n R[m, n] d act[n] / d z[j]
    d_bias[e,j] = sum over the tokens m of e of d_c[m, j]
    d_x[m, h]   = sum_j d_c[m, j] w1[e, j, h]

d_c is the gradient of z, as the reference kernels define it, so beta does not enter it a second time. Without prob
the factor is 1 and there is no d_prob. d_prob and d_bias are added onto what the caller's buffers hold already, the
gradient that other uses of prob and bias have left there: the identity outputs prob_onto and bias_onto, whose
cotangents are these buffers, say so. Padding rows of d_c and d_x are zero; those of d_prob keep what the buffer holds.

Points: prob, act, dot (R before its scale), R, g (the gradient in the epilogue), d_c (as stored; it enters d_x),
d_prob, d_bias, d_x. Totals: dot, d_prob, d_bias, d_x (and mlp in the forward).

Source: the chain rule, as above; conventions (alpha squared, gradient of beta*c, sums onto the caller's buffers) are
those of the grouped GEMM dSReLU and dGLU backwards of cudnn-frontend 1.32.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numcheck.oracle import Reading
from numcheck.oracles.grouped_rows import owners

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Activation:
    """An activation of width W -> N and how it is scaled.

    value(read, z, **options): act (M, N) of z (M, W). gradient(read, z, r, **options): dL/dz (M, W) of
    r = dL/d act (M, N). squared: whether alpha enters squared.
    """

    value: Callable[..., Any]
    gradient: Callable[..., Any]
    squared: bool = False

    def scale(self, alpha: Any) -> Any:
        """The factor A_e of R, from alpha_e."""
        return alpha * alpha if self.squared else alpha


@dataclass(frozen=True)
class Options:
    """Arguments that are no tensors: those of the activation, and whether d_bias is wanted."""

    generate_dbias: bool = True
    activation: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, scalars: Mapping[str, Any]) -> Options:
        """Those of a call's scalars."""
        rest = {name: value for name, value in scalars.items() if name != "generate_dbias"}
        return cls(bool(scalars.get("generate_dbias", True)), rest)


@dataclass(frozen=True, eq=False)
class Rows:
    """Which rows are tokens, and of which expert (padding: 0, to be selected away)."""

    owner: Tensor
    expert: Tensor
    real: Tensor

    @classmethod
    def of(cls, tokens: Tensor, offsets: Tensor, count: int) -> Rows:
        owner = owners(tokens, offsets, count)
        return cls(owner, owner.clamp(min=0), owner[:, None] >= 0)

    def only(self, values: Any) -> Any:
        """`values` (M, ...) of tokens; zero in padding rows, whatever is there."""
        import torch

        return torch.where(self.real.reshape(-1, *(1 for _ in values.shape[1:])), values, 0.0)


def forward(
    read: Reading, activation: Activation, c: Any, prob: Any, alpha: Any, w2: Any, rows: Rows, options: Options
) -> dict[str, Any]:
    """{"out": (M, H)} from z = c (M, W), and prob_onto, bias_onto: tokens' prob and the zeros that stand for bias."""
    act = read.at("act", activation.value(read, rows.only(c), **options.activation))
    if prob is not None:
        act = act * read.at("prob", rows.only(prob))[:, None]
    sums = _multiplied(read, "mlp", act, rows.only(w2[rows.expert]))
    out = rows.only(activation.scale(alpha)[rows.expert][:, None] * sums)
    bias = rows.real.new_zeros((len(w2), c.shape[1]), dtype=c.dtype) if options.generate_dbias else None
    used = None if prob is None else rows.only(prob)
    return {"out": read.at("out", out), "prob_onto": used, "bias_onto": bias}


def vjp(
    read: Reading,
    activation: Activation,
    c: Any,
    prob: Any,
    alpha: Any,
    w1: Any,
    w2: Any,
    d_out: Any,
    d_prob_onto: Any,
    d_bias_onto: Any,
    rows: Rows,
    options: Options,
) -> dict[str, Any]:
    """d_c (M, W), d_x (M, H) from z = c (M, W) and d_out (M, H); d_prob (M,) and d_bias (E, W) with their buffers."""
    z = rows.only(c)
    dot = read.at("dot", _multiplied(read, "dot", rows.only(d_out), rows.only(w2[rows.expert]).mT))
    scaled = read.at("R", rows.only(activation.scale(alpha)[rows.expert][:, None] * dot))
    weighted = scaled if prob is None else scaled * read.at("prob", rows.only(prob))[:, None]
    g = read.at("g", activation.gradient(read, z, weighted, **options.activation))
    d_c = read.at("d_c", g)
    found = {"d_c": d_c}
    if d_prob_onto is not None:
        act = read.at("act", activation.value(read, z, **options.activation))
        found["d_prob"] = read.at("d_prob", read.total("d_prob", act * scaled, -1, onto=d_prob_onto))
    if d_bias_onto is not None:
        total = read.scatter("d_bias", g, rows.owner, d_bias_onto.shape[0], onto=d_bias_onto)
        found["d_bias"] = read.at("d_bias", total)
    found["d_x"] = read.at("d_x", _multiplied(read, "d_x", d_c, rows.only(w1[rows.expert])))
    return found


def _multiplied(read: Reading, name: str, left: Any, right: Any) -> Any:
    """Each row of (M, K) by its own matrix of (M, K, J): (M, J)."""
    return read.matmul(name, left[:, None, :], right)[:, 0]


def twin(
    mp: Any, act: Callable[[list[Any]], list[Any]], z: Any, prob: Any, scale: Any, w1: Any, w2: Any, x: Any, bias: Any,
    tokens: list[int], offsets: list[int],
) -> dict[str, Any]:  # fmt: skip
    """The forward in scalar arithmetic: nested lists in, nested lists out. act: a row of z -> a row of activations."""
    hidden = range(len(w2[0][0]))
    out = [[mp.mpf(0) for _ in hidden] for _ in z]
    # Padding rows: zero in value, whatever prob holds there, and the identity in slope, so that the buffer stays.
    used = None if prob is None else [p - plain(p) for p in prob]
    start = 0
    for e, (count, stop) in enumerate(zip(tokens, offsets, strict=True)):
        for m in range(start, start + count):
            row = [
                value + (bias[e][j] if bias else 0) + mp.fsum(x[m][h] * w1[e][j][h] for h in hidden)
                for j, value in enumerate(z[m])
            ]
            values = act(row)
            if used is not None:
                used[m] = prob[m]
            for h in hidden:
                total = mp.fsum(value * w2[e][n][h] for n, value in enumerate(values))
                out[m][h] = scale[e] * (total if prob is None else prob[m] * total)
        start = stop
    return {"out": out, "prob_onto": used, "bias_onto": bias}


def plain(x: Any) -> Any:
    """The value of a number that may be differentiated."""
    return getattr(x, "value", x)
