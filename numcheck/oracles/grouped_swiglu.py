"""Grouped dSwiGLU: the backward of a mixture-of-experts MLP with a gated SiLU, its routing weight's gradient and sums.

z (M, 2 N) holds gate and up in blocks of 32 columns by turns: 32 of gate, their 32 of up, the next 32 of gate. With
s = sigmoid(gate):

    act       = up gate s
    d act / d up   = gate s
    d act / d gate = up s (1 + gate (1 - s))

The rest is `numcheck.oracles.grouped_mlp`. The reference scales the pre-activation, z = beta c, and its backward
returns the gradient of z (no beta beyond the one inside z) with alpha entering squared; both conventions are copied
here, so d_c is not the gradient of c where beta is not 1.

Source: SwiGLU of Shazeer (arXiv 2002.05202); conventions of the grouped dGLU of cudnn-frontend 1.32.0; derived above.

Shapes: c, d_c (M, 2N), d_out, d_x (M, H), w1 (E, 2N, H), w2 (E, N, H) in the data's dtype; prob, d_prob, d_prob_onto
(M,), alpha, beta (E,), d_bias, d_bias_onto (E, 2N) in FP32; tokens, offsets (E,) int32. N is a multiple of 32.
Facts: as grouped_srelu's, without the clamp. Scalars: generate_dbias.
Points beside grouped_mlp's: z, s.
"""

from __future__ import annotations

from typing import Any

from numcheck.case import Case, Fact
from numcheck.oracle import Cancellation, CaseSpace, Input, Oracle, Reading
from numcheck.oracles import grouped_case as cases
from numcheck.oracles import grouped_mlp as mlp

BLOCK = 32
WIDTH = 2
# With beta below 2, gate stays within 60: further out sigmoid underflows in FP32 (at -88), and what it is multiplied by
# may be large enough for the exact product to matter, which no kernel in FP32 can return.
LARGEST = 30.0


def halves(z: Any) -> tuple[Any, Any]:
    """gate and up (M, N) of z (M, 2 N)."""
    blocks = z.reshape(z.shape[0], z.shape[1] // (WIDTH * BLOCK), WIDTH, BLOCK)
    flat = (z.shape[0], z.shape[1] // WIDTH)
    return blocks[:, :, 0].reshape(flat), blocks[:, :, 1].reshape(flat)


def joined(gate: Any, up: Any) -> Any:
    """(M, 2 N) with blocks of gate and up by turns: the inverse of `halves`."""
    import torch

    rows, width = gate.shape
    blocks = [half.reshape(rows, width // BLOCK, BLOCK) for half in (gate, up)]
    return torch.stack(blocks, 2).reshape(rows, WIDTH * width)


def activation(read: Reading, z: Any) -> Any:
    """act (M, N) of z (M, 2 N)."""
    gate, up = halves(z)
    return up * gate * _sigmoid(read, gate)


def gradient(read: Reading, z: Any, r: Any) -> Any:
    """dL/dz (M, 2 N) of r = dL/d act (M, N)."""
    gate, up = halves(z)
    s = _sigmoid(read, gate)
    return joined(r * up * s * (1.0 + gate * (1.0 - s)), r * gate * s)


def _sigmoid(read: Reading, gate: Any) -> Any:
    import torch

    return read.at("s", torch.sigmoid(gate))


SWIGLU = mlp.Activation(activation, gradient, squared=True)


def _scaled(read: Reading, c: Any, beta: Any, rows: mlp.Rows) -> Any:
    return read.at("z", rows.only(beta[rows.expert][:, None] * c))


def forward(
    read: Reading, c: Any, prob: Any, alpha: Any, beta: Any, w1: Any, w2: Any, tokens: Any, offsets: Any,
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """out (M, H) of the MLP from its FC1 output c, with prob and bias as they are used elsewhere."""
    rows = mlp.Rows.of(tokens, offsets, c.shape[0])
    z = _scaled(read, c, beta, rows)
    return mlp.forward(read, SWIGLU, z, prob, alpha, w2, rows, mlp.Options.of(options))


def vjp(
    read: Reading, c: Any, prob: Any, alpha: Any, beta: Any, w1: Any, w2: Any, tokens: Any, offsets: Any,
    d_out: Any, d_prob_onto: Any = None, d_bias_onto: Any = None, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """d_c (the gradient of beta c), d_x, and with their buffers d_prob and d_bias."""
    rows = mlp.Rows.of(tokens, offsets, c.shape[0])
    z = _scaled(read, c, beta, rows)
    return mlp.vjp(
        read, SWIGLU, z, prob, alpha, w1, w2, d_out, d_prob_onto, d_bias_onto, rows, mlp.Options.of(options)
    )  # fmt: skip


def twin(
    mp: Any, case: Case, c: Any, prob: Any, alpha: Any, beta: Any, w1: Any, w2: Any, tokens: Any, offsets: Any,
    x: Any, bias: Any = None, generate_dbias: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """The forward in scalar arithmetic; x and bias are increments of zero."""

    def scaled(value: Any, factor: Any) -> Any:
        # beta c in value and c in slope: what is differentiated is the scaled pre-activation.
        return value + (mlp.plain(factor) - 1) * mlp.plain(value)

    def act(row: list[Any]) -> list[Any]:
        found = []
        for n in range(len(row) // WIDTH):
            at = n // BLOCK * WIDTH * BLOCK + n % BLOCK
            gate, up = row[at], row[at + BLOCK]
            found.append(up * gate / (1 + mp.exp(-gate)))
        return found

    owners = [e for e, stop in enumerate(offsets) for _ in range(stop - (offsets[e - 1] if e else 0))]
    z = [[scaled(value, beta[e]) for value in row] for e, row in zip(owners, c, strict=True)]
    return mlp.twin(mp, act, z, prob, [a * a for a in alpha], w1, w2, x, bias, tokens, offsets)


def scalars(case: Case) -> dict[str, Fact]:
    """Whether d_bias is wanted."""
    return {"generate_dbias": cases.biased(case)}


def wrong(case: Case) -> dict[str, tuple[Fact, ...]]:
    """No d_bias where a buffer for it comes along."""
    return {"generate_dbias": (False,)} if cases.biased(case) else {}


def _fill(case: Case, name: str) -> Any:
    return cases.with_zeros(case, name, (case["M"], WIDTH * case["N"])).clamp(-LARGEST, LARGEST)


def _in_the_gemms() -> Cancellation:
    """gate 0 and up 2 in two features: s = 1/2, d_gate = R = ((1 + 2^-7) - 1, 1), d_x = 1 - (1 - 2^-8) = 2^-8.

    All is exact. d_prob is a sum of zeros, as act is 0 where gate is.
    """
    case = Case.of(E=1, M=1, N=BLOCK, H=2, dtype="bf16", regime="cancelling")
    none = [0.0] * (2 * BLOCK)
    gates = [2.0**-7, 1.0, *none[2:]]
    values = {
        "c": [[*none[:BLOCK], 2.0, 2.0, *none[BLOCK + 2 :]]],
        "prob": [1.0],
        "alpha": [1.0],
        "beta": [1.0],
        "w1": [[[128.0, 0.0], [-(1.0 - 2.0**-8), 0.0], *([0.0, 0.0] for _ in none[2:])]],
        "w2": [[[1.0, -1.0], [0.0, 1.0], *([0.0, 0.0] for _ in none[2:BLOCK])]],
        "d_out": [[1.0 + 2.0**-7, 1.0]],
        "d_prob_onto": [0.0],
        "d_bias_onto": [none],
    }
    exact = {"d_c": [gates], "d_bias": [gates], "d_x": [[2.0**-8, 0.0]]}
    return Cancellation("both GEMMs", case, values=values, exact=exact)


_SPACE = CaseSpace(
    sizes={"E": (1, 4), "M": (4, 300), "N": (BLOCK, 1024), "H": (1, 64)},
    choices={"N": (32, 64, 256, 288, 384, 544, 768, 1024)},
    facts=cases.FACTS,
    grid={"E": (1, 2), "N": (256, 288, 384, 1024), "H": (1, 16), **cases.GRID},
    regimes=cases.REGIMES,
    edges=cases.edges((BLOCK, 2 * BLOCK, 17 * BLOCK, 34 * BLOCK)),
    tiny=cases.tiny(BLOCK),
)

grouped_swiglu = Oracle(
    name="grouped_swiglu",
    inputs=(
        Input("c", cases.dims("M", WIDTH), fill=_fill, grad=False),
        cases.PROB,
        cases.ALPHA,
        Input("beta", ("E",), "fp32", fill="gain", grad=False),
        Input("w1", cases.dims("E", WIDTH, "H"), grad=False),
        Input("w2", ("E", "N", "H"), grad=False),
        cases.TOKENS,
        cases.OFFSETS,
    ),
    outputs=cases.outputs(WIDTH),
    gradients=cases.gradients(WIDTH),
    forward=forward,
    vjp=vjp,
    twin=twin,
    space=_SPACE,
    scalars=scalars,
    wrong=wrong,
    ignored=cases.ignored,
    policies=cases.policies("s", "z"),
    cancellations=(_in_the_gemms(),),
    relations=(cases.turned_rows(), cases.turned_features(WIDTH, BLOCK)),
    source="arXiv 2002.05202; cudnn-frontend 1.32.0 grouped GEMM dGLU; derived in this file and in grouped_mlp",
)
