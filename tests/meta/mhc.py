"""mHC post in torch operators, right or broken in one named way, all under the same FP32 Contract."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from numcheck import Case, Contract, KernelSpec, Sum
from numcheck.oracles import mhc_post
from numcheck.ulp import round_to

CASTS = {"out": "data", "d_x": "data", "d_residual": "data"}
STREAMS = Sum("fp32", tree="sequential")
SUMS = {"out": STREAMS, "d_x": STREAMS, "d_residual": STREAMS, "d_post": Sum("fp32"), "d_comb": Sum("fp32")}
FP32 = Contract(rounds=lambda case: CASTS if case.dtype == "bf16" else {}, accumulate=SUMS, dtypes=("bf16", "fp32"))
# What the policy before FP32 coefficients rounds; as its autograd gives them, d_post and d_comb too.
OLD_POINTS = ("post", "comb", "px", "mix", "d_post", "d_comb")
OLD = Contract(rounds={**CASTS, **dict.fromkeys(OLD_POINTS, "bf16")}, accumulate=SUMS, dtypes=("bf16",))

Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def mhc(
    name: str = "right",
    *,
    rounds: tuple[str, ...] = (),
    truncate: bool = False,
    change: Change | None = None,
    **fields: Any,
) -> KernelSpec:
    """mHC post that rounds the points `rounds` to bf16 besides its output cast, or truncates that cast, or whose
    outputs go through `change`."""

    def at(point: str, value: Tensor) -> Tensor:
        return value.to(torch.bfloat16).float() if point in rounds else value

    def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
        if truncate and dtype == torch.bfloat16:
            return round_to(value.double(), "bf16", "truncate").to(dtype)
        return value.to(dtype)

    def finish(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
        return outputs if change is None else change(outputs)

    def forward(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> dict[str, Tensor]:
        post, comb, dtype = at("post", post), at("comb", comb), residual.dtype
        px = at("px", post[:, :, None] * x[:, None].float())
        products = [comb[:, s, :, None] * residual[:, s, None].float() for s in range(residual.shape[1])]
        if "mix" in rounds:
            return finish({"out": cast(px + at("mix", added(products)), dtype)})
        return finish({"out": cast(added([px, *products]), dtype)})

    def vjp(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> dict[str, Tensor]:
        post, comb, g = at("post", post), at("comb", comb), d_out.float()
        streams = range(residual.shape[1])
        d_x = added([post[:, o, None] * g[:, o] for o in streams])
        d_residual = added([comb[:, :, o, None] * g[:, None, o] for o in streams])
        return finish(
            {
                "d_x": cast(d_x, x.dtype),
                "d_residual": cast(d_residual, residual.dtype),
                "d_post": at("d_post", (x[:, None].float() * g).sum(-1)),
                "d_comb": at("d_comb", (residual[:, :, None].float() * g[:, None]).sum(-1)),
            }
        )

    return KernelSpec(name, mhc_post, **{"forward": forward, "vjp": vjp, "contract": FP32, **fields})


def added(terms: list[Tensor]) -> Tensor:
    """The sum in FP32, in the order of the terms."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def hundred(seed: int = 0, **fields: Any) -> Case:
    """A Case of normal bf16 data with 100 elements in out and d_residual."""
    return Case.of(S=1, H=4, D=25, seed=seed, **{"dtype": "bf16", "regime": "normal", **fields})
