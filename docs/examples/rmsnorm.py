"""A problem that numcheck does not ship, with an oracle of its own: RMSNorm, forward and backward.

$ numcheck certify --specs rmsnorm.py
$ pytest --numcheck-specs rmsnorm.py

    out[s, d]      = x[s, d] * rstd[s] * weight[d],   rstd[s] = 1 / sqrt(mean_d x[s, d]^2 + EPS)
    n[s, d]        = x[s, d] * rstd[s],   u[s, d] = weight[d] * d_out[s, d]
    d_x[s, d]      = rstd[s] * (u[s, d] - n[s, d] * mean_d(u[s, d] * n[s, d]))
    d_weight[d]    = sum_s d_out[s, d] * n[s, d]

x, out and d_x are bf16; weight, d_weight and the saved rstd are FP32. The kernels compute in FP32.
"""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from numcheck import Case, CaseSpace, Contract, Input, KernelSpec, Oracle, Output

# A power of two, so that oracle and kernel add the very same number.
EPS = 2.0**-20


# The oracle: FP64 arithmetic that names each value which a kernel may round (`at`) and each sum (`total`).


def exact_forward(read, x, weight):
    square = read.total("square", x * x, -1) / x.shape[-1]
    rstd = read.at("rstd", 1.0 / torch.sqrt(square + EPS))
    n = read.at("n", x * rstd[:, None])
    return {"rstd": rstd, "out": read.at("out", read.at("scaled", n * weight))}


def exact_vjp(read, x, weight, rstd, d_out):
    n = read.at("n", x * rstd[:, None])
    u = read.at("u", weight * d_out)
    mean = read.at("mean", read.total("dot", u * n, -1) / x.shape[-1])
    inner = read.at("inner", u - read.at("pull", n * mean[:, None]))
    d_x = read.at("d_x", read.at("d_x_fp32", rstd[:, None] * inner))
    return {"d_x": d_x, "d_weight": read.at("d_weight", read.total("d_weight", d_out * n, 0))}


SPACE = CaseSpace(
    sizes={"S": (1, 6), "D": (1, 300)},
    dtypes=("bf16",),
    grid={"S": (1, 5), "D": (1, 31, 257), "layout": ("contiguous", "strided"), "offset": (0, 1, 3)},
    edges=(
        Case.of(S=0, D=31, dtype="bf16"),
        Case.of(S=1, D=1, dtype="bf16"),
        Case.of(S=4, D=64, dtype="bf16", layout="strided", offset=3),
        Case.of(S=3, D=33, dtype="bf16", regime="zeros"),
    ),
    tiny=(
        Case.of(S=1, D=1, dtype="bf16"),
        Case.of(S=2, D=3, dtype="bf16", seed=1),
        Case.of(S=3, D=4, dtype="bf16", regime="mean4", seed=2),
    ),
)

draft_oracle = Oracle(
    "rmsnorm",
    inputs=(Input("x", ("S", "D")), Input("weight", ("D",), dtype="fp32", fill="gain")),
    outputs=(Output("rstd", ("S",), dtype="fp32", saved=True, cotangent=False), Output("out", ("S", "D"))),
    forward=exact_forward,
    vjp=exact_vjp,
    space=SPACE,
    batch="S",
    source="Zhang and Sennrich, arXiv 1910.07467; the VJP by the quotient rule",
)


# The certificate: the forward once more in mpmath scalars. numcheck differentiates it, so no VJP is typed twice.


def twin(mp, case, x, weight):
    rows = []
    for row in x:
        mean = mp.fsum(value * value for value in row) / len(row)
        rows.append((1 / mp.sqrt(mean + EPS), row))
    out = [[value * rstd * w for value, w in zip(row, weight, strict=True)] for rstd, row in rows]
    return {"rstd": [rstd for rstd, _ in rows], "out": out}


rmsnorm = replace(draft_oracle, twin=twin)


# The kernels: one program a row; d_weight is added up from one row of products for each token.


@triton.jit
def _rmsnorm_fwd(x, weight, rstd, out, D, x_s, x_d, weight_d, EPS: tl.constexpr, BLOCK: tl.constexpr):
    s, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = d < D
    row = tl.load(x + s * x_s + d * x_d, mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(row * row, axis=0), tl.cast(D, tl.float32)) + EPS))
    tl.store(rstd + s, scale)
    scaled = row * scale * tl.load(weight + d * weight_d, mask=inside, other=0.0)
    tl.store(out + s * D + d, scaled.to(tl.bfloat16), mask=inside)


@triton.jit
def _rmsnorm_bwd(
    x, weight, rstd, g, d_x, products, D, x_s, x_d, weight_d, rstd_s, g_s, g_d, BLOCK: tl.constexpr
):  # fmt: skip
    s, d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = d < D
    scale = tl.load(rstd + s * rstd_s)
    n = tl.load(x + s * x_s + d * x_d, mask=inside, other=0.0).to(tl.float32) * scale
    go = tl.load(g + s * g_s + d * g_d, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(weight + d * weight_d, mask=inside, other=0.0) * go
    mean = tl.div_rn(tl.sum(u * n, axis=0), tl.cast(D, tl.float32))
    tl.store(d_x + s * D + d, (scale * (u - n * mean)).to(tl.bfloat16), mask=inside)
    tl.store(products + s * D + d, go * n, mask=inside)


def forward(x, weight):
    _check(x, weight)
    rows, columns = x.shape
    rstd = torch.empty(rows, dtype=torch.float32, device=x.device)
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    if x.numel():
        block = triton.next_power_of_2(columns)
        _rmsnorm_fwd[(rows,)](x, weight, rstd, out, columns, *x.stride(), *weight.stride(), EPS=EPS, BLOCK=block)
    return {"rstd": rstd, "out": out}


def vjp(x, weight, rstd, *, d_out):
    _check(x, weight, rstd=(rstd, x.shape[:1], torch.float32), d_out=(d_out, x.shape, torch.bfloat16))
    rows, columns = x.shape
    d_x = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    products = torch.empty((rows, columns), dtype=torch.float32, device=x.device)
    if x.numel():
        strides = (*x.stride(), *weight.stride(), *rstd.stride(), *d_out.stride())
        block = triton.next_power_of_2(columns)
        _rmsnorm_bwd[(rows,)](x, weight, rstd, d_out, d_x, products, columns, *strides, BLOCK=block)
    return {"d_x": d_x, "d_weight": products.sum(0)}


def _check(x, weight, **others):
    wanted = {"x": (x, x.shape, torch.bfloat16), "weight": (weight, x.shape[1:], torch.float32), **others}
    for name, (tensor, shape, dtype) in wanted.items():
        if tensor.shape != shape or tensor.dtype != dtype or tensor.device != x.device:
            what = f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}"
            raise ValueError(f"{name} is {what}, but it must be {dtype} {list(shape)} on {x.device}")


# The claims: the same kernel, first under the draft of the oracle (its report says UNCERTIFIED), then certified.

FP32_VALUES = ("rstd", "n", "scaled", "u", "mean", "pull", "inner", "d_x_fp32")
spec = KernelSpec(
    "rmsnorm",
    rmsnorm,
    forward=forward,
    vjp=vjp,
    must_run=(_rmsnorm_fwd, _rmsnorm_bwd),
    contract=Contract(
        rounds={**dict.fromkeys(FP32_VALUES, "fp32"), "out": "bf16", "d_x": "bf16"},
        accumulate="fp32",
        order={"rstd": "single", "out": "single", "d_x": "single"},
        workspace=lambda case: 4 * case["S"] * case["D"],
    ),
)
draft = spec.but(name="rmsnorm_draft", oracle=draft_oracle)
