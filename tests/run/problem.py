"""A small problem for the tests of runs: out = 2 x, d_x = 2 d_out, and a total that is saved."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from numcheck import Case, CaseSpace, Input, KernelSpec, Oracle, Output


def _forward(read, x):
    return {"out": read.at("out", 2 * x)}


def _vjp(read, x, d_out):
    return {"d_x": read.at("d_x", 2 * d_out)}


doubling = Oracle(
    "doubling",
    inputs=(Input("x", ("N",)),),
    outputs=(Output("out", ("N",)),),
    forward=_forward,
    vjp=_vjp,
    space=CaseSpace({"N": (0, 100)}),
)
saving = Oracle(
    "saving",
    inputs=(Input("x", ("N",)),),
    outputs=(Output("out", ("N",)), Output("lse", (1,), "fp32", saved=True, cotangent=False)),
    forward=_forward,
    vjp=_vjp,
    space=CaseSpace({"N": (0, 100)}),
)


@dataclass(frozen=True)
class Sample:
    """The four things that execute asks of a sample."""

    case: Case
    inputs: dict[str, Tensor] = field(default_factory=dict)
    cotangents: dict[str, Tensor] = field(default_factory=dict)
    scalars: dict[str, float] = field(default_factory=dict)


def sample(n=50, dtype="fp32", strided=False):
    """x and d_out of n elements, inside storages of their own with room around them."""
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    step = 2 if strided else 1
    tensors = []
    for seed in (1, 2):
        memory = torch.randn(4 + n * step + 4, generator=torch.Generator().manual_seed(seed)).to(kind)
        tensors.append(memory[4 : 4 + n * step : step])
    return Sample(Case.of(N=n, dtype=dtype), {"x": tensors[0]}, {"d_out": tensors[1]})


def spec(forward=None, vjp=None, **more):
    """A spec of the doubling problem."""
    return KernelSpec("under_test", more.pop("oracle", doubling), forward=forward, vjp=vjp, **more)
