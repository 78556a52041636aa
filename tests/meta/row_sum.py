"""A tiny problem for the judge's own tests, out[s] = sum over d of x[s, d], and Triton kernels right and wrong."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from numcheck import Case, CaseSpace, Contract, Input, KernelSpec, Oracle, Output, Sum

BLOCK = 16
# One row, three blocks, values spread over powers of two: the smallest Case on which order shows. Half of all seeds
# add up exactly in every order; this one does not, and the proof knows it.
THREE_BLOCKS = Case.of(S=1, D=2 * BLOCK + 1, seed=2)
TWO_BLOCKS = THREE_BLOCKS.but(D=2 * BLOCK)


def _forward(read: Any, x: Any) -> dict[str, Any]:
    return {"out": read.at("out", read.total("out", x, dim=1))}


def _vjp(read: Any, x: Any, d_out: Any) -> dict[str, Any]:
    return {"d_x": read.at("d_x", d_out[:, None] + 0.0 * x)}


row_sum = Oracle(
    "row_sum",
    inputs=(Input("x", ("S", "D")),),
    outputs=(Output("out", ("S",), dtype="fp32"),),
    forward=_forward,
    vjp=_vjp,
    space=CaseSpace(sizes={"S": (1, 4), "D": (1, 200)}, grid={"S": (1, 3), "D": (1, 16, 33, 100)}),
)


@triton.jit
def add_atomically(x, out, D, BLOCK: tl.constexpr):
    s = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + s * D + d, mask=d < D, other=0.0).to(tl.float32), axis=0)
    tl.atomic_add(out + s, part)


@triton.jit
def add_and_lose(x, out, D, BLOCK: tl.constexpr):
    s = tl.program_id(0)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + s * D + d, mask=d < D, other=0.0).to(tl.float32), axis=0)
    tl.store(out + s, tl.load(out + s) + part)


@triton.jit
def store_slots(x, slots, D, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    s = tl.program_id(0)
    block = tl.program_id(1)
    d = block * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + s * D + d, mask=d < D, other=0.0).to(tl.float32), axis=0)
    tl.store(slots + s * BLOCKS + block, part)


@triton.jit
def add_slots(slots, out, BLOCKS: tl.constexpr):
    s = tl.program_id(0)
    total = tl.load(slots + s * BLOCKS)
    for block in range(1, BLOCKS):
        total += tl.load(slots + s * BLOCKS + block)
    tl.store(out + s, total)


@triton.jit
def scatter_lanes(x, out, D, BLOCK: tl.constexpr):
    """One program a row, each lane of which adds its own element to the row's one address."""
    s = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    part = tl.load(x + s * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.atomic_add(out + s + d * 0, part, mask=d < D)


def _blocks(x: Tensor) -> int:
    return -(-x.shape[1] // BLOCK)


def atomic(x: Tensor) -> dict[str, Tensor]:
    out = torch.zeros(x.shape[0], device=x.device)
    x = x.contiguous()
    add_atomically[(x.shape[0], _blocks(x))](x, out, x.shape[1], BLOCK=BLOCK)
    return {"out": out}


def racy(x: Tensor) -> dict[str, Tensor]:
    out = torch.zeros(x.shape[0], device=x.device)
    x = x.contiguous()
    add_and_lose[(x.shape[0], _blocks(x))](x, out, x.shape[1], BLOCK=BLOCK)
    return {"out": out}


def ordered(x: Tensor) -> dict[str, Tensor]:
    out = torch.empty(x.shape[0], device=x.device)
    slots = torch.empty((x.shape[0], _blocks(x)), device=x.device)
    x = x.contiguous()
    store_slots[(x.shape[0], _blocks(x))](x, slots, x.shape[1], BLOCK=BLOCK, BLOCKS=_blocks(x))
    add_slots[(x.shape[0],)](slots, out, BLOCKS=_blocks(x))
    return {"out": out}


def stale(x: Tensor) -> dict[str, Tensor]:
    """Right but for the zeroing: atomics onto whatever the allocator handed out."""
    out = torch.empty(x.shape[0], device=x.device)
    x = x.contiguous()
    add_atomically[(x.shape[0], _blocks(x))](x, out, x.shape[1], BLOCK=BLOCK)
    return {"out": out}


def _through_a_workspace(x: Tensor, kernel: Any) -> dict[str, Tensor]:
    sums = torch.zeros(x.shape[0], device=x.device)
    out = torch.empty(x.shape[0], device=x.device)
    x = x.contiguous()
    kernel[(x.shape[0], _blocks(x))](x, sums, x.shape[1], BLOCK=BLOCK)
    add_slots[(x.shape[0],)](sums, out, BLOCKS=1)
    return {"out": out}


def hidden_atomic(x: Tensor) -> dict[str, Tensor]:
    """Atomics into a workspace, which one program a row then copies: one writer, and yet no fixed order."""
    return _through_a_workspace(x, add_atomically)


def hidden_race(x: Tensor) -> dict[str, Tensor]:
    return _through_a_workspace(x, add_and_lose)


def one_program(x: Tensor) -> dict[str, Tensor]:
    """One program a row, whose block holds the whole row."""
    out = torch.empty(x.shape[0], device=x.device)
    slots = x.to(torch.float32).contiguous()
    add_slots[(x.shape[0],)](slots, out, BLOCKS=x.shape[1])
    return {"out": out}


def lanes(x: Tensor) -> dict[str, Tensor]:
    out = torch.zeros(x.shape[0], device=x.device)
    x = x.contiguous()
    scatter_lanes[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return {"out": out}


def torch_sum(x: Tensor) -> dict[str, Tensor]:
    return {"out": x.to(torch.float32).sum(1)}


def _contract(promise: str) -> Contract:
    return Contract(
        accumulate={"out": Sum("fp32", tree="any", block=BLOCK)},
        order={"out": promise},  # type: ignore[dict-item]
        dtypes=("fp32", "bf16"),
    )


def spec(name: str, forward: Any, promise: str = "fixed", must_run: tuple[object, ...] = ()) -> KernelSpec:
    """A spec of `row_sum` under this order promise."""
    return KernelSpec(name, row_sum, forward=forward, contract=_contract(promise), must_run=must_run)


ATOMIC = spec("atomic", atomic, "any", (add_atomically,))
RACY = spec("racy", racy, "any", (add_and_lose,))
ORDERED = spec("ordered", ordered, "fixed", (store_slots, add_slots))
STALE = spec("stale", stale, "any", (add_atomically,))
ONE_PROGRAM = spec("one_program", one_program, "single", (add_slots,))
HIDDEN_ATOMIC = spec("hidden_atomic", hidden_atomic, "single", (add_atomically, add_slots))
HIDDEN_RACE = spec("hidden_race", hidden_race, "any", (add_and_lose, add_slots))
LANES = spec("lanes", lanes, "any", (scatter_lanes,))
TORCH = spec("torch", torch_sum)
ALL = (ATOMIC, RACY, ORDERED, STALE, ONE_PROGRAM, HIDDEN_ATOMIC, HIDDEN_RACE, LANES, TORCH)
