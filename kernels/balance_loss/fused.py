"""Both balance losses in Triton: two launches forward, one backward, whatever T, E and K are.

Forward: each part of the tokens leaves its column sums and counts in a slot; one program then folds the slots and makes
the loss. Backward: tiles of whole rows, one writer an address. Every sum is a balanced tree of neighbours, written
out two by two, so that no compiler, layout or device chooses an order, and no product is fused with an add.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.balance_loss.arguments import Sizes, backward_sizes, forward_sizes
from kernels.balance_loss.tiles import (
    ALIGNED,
    LANES,
    Tiles,
    backward_rows,
    backward_tiles,
    forward_tiles,
    power_of_two,
    warps,
)
from kernels.trees import column_sums, reversed_bits, reversed_column_sums, row_sums
from numcheck.oracles.balance_loss_cases import CLAMP, EPSILON

_CLAMP = tl.constexpr(CLAMP)
_EPSILON = tl.constexpr(EPSILON)
# What E, and addresses in bytes, are multiples of where a call is dense.
_LANES, _ALIGNED = tl.constexpr(LANES), tl.constexpr(ALIGNED)


@triton.jit
def _largest(s, inside, e, topk):
    """The topk largest scores of each row, of equal ones the first, as a map [R, C]."""
    left = tl.where(inside, s, float("-inf"))
    chosen = inside & False
    for _ in range(topk):
        here = e[None, :] == tl.argmax(left, axis=1, tie_break_left=True)[:, None]
        chosen = chosen | (here & inside)
        left = tl.where(here, float("-inf"), left)
    return chosen


@triton.jit
def _inside(t, e, T, E, padding, padding_t, PADDED: tl.constexpr):
    """Which elements of a tile are scores of live rows."""
    live = t < T
    if PADDED:
        live = live & (tl.load(padding + t * padding_t, mask=t < T, other=1) == 0)
    return live[:, None] & (e < E)[None, :]


@triton.jit
def _tile(start, from_row, row, column, t_stride, e_stride, DENSE: tl.constexpr):
    """Addresses [R, C] of rows from_row + row and columns; dense ones are known to be wide loads' addresses."""
    corner = start + from_row * t_stride
    if DENSE:
        corner = tl.multiple_of(corner, _ALIGNED)
    return corner + (row[:, None] * t_stride + column[None, :] * e_stride)


# One compiled kernel for all sizes, strides and addresses of a tile; a dense call says so by one constant.
@triton.jit(
    do_not_specialize=[
        "scores", "routing_map", "padding", "T", "E", "topk", "trips",
        "scores_t", "scores_e", "map_t", "map_e", "padding_t",
    ]
)  # fmt: skip
def balance_loss_parts(
    scores, routing_map, padding, mass_slots, count_slots, T, E, topk, trips,
    scores_t, scores_e, map_t, map_e, padding_t,
    GIVEN: tl.constexpr, PADDED: tl.constexpr, ATOMIC: tl.constexpr, DENSE: tl.constexpr,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    if DENSE:
        E = E // _LANES * _LANES
        scores_t, scores_e, map_t, map_e = E, 1, E, 1
    part = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, ROWS)
    e = tl.arange(0, EXPERTS)
    mass = tl.zeros([ROWS, EXPERTS], tl.float32)
    counts = tl.zeros([ROWS, EXPERTS], tl.int32)
    for trip in range(trips):
        first = (part * trips + trip) * ROWS
        inside = _inside(first + r, e, T, E, padding, padding_t, PADDED)
        s = tl.load(_tile(scores, first, r, e, scores_t, scores_e, DENSE), mask=inside, other=0.0).to(tl.float32)
        if GIVEN:
            den = tl.maximum(row_sums(tl.abs(s)), _CLAMP)
            chosen = tl.load(_tile(routing_map, first, r, e, map_t, map_e, DENSE), mask=inside, other=0) != 0
        else:
            den = row_sums(s) + _EPSILON
            chosen = _largest(s, inside, e, topk)
        q = tl.div_rn(s, tl.broadcast_to(den[:, None], [ROWS, EXPERTS]))
        mass += tl.where(inside, q, 0.0)
        counts += chosen.to(tl.int32)
    slot = part * E + e
    tl.store(count_slots + slot, tl.sum(counts, axis=0), mask=e < E)
    if ATOMIC:
        tl.atomic_add(mass_slots + e, column_sums(mass), mask=e < E)
    else:
        tl.store(mass_slots + slot, column_sums(mass), mask=e < E)


@triton.jit(do_not_specialize=["denominator", "parts", "E"])
def balance_loss_fold(
    mass_slots, count_slots, denominator, frequencies, mass, raw, loss, parts, E, coefficient,
    FOLDED: tl.constexpr, DENSE: tl.constexpr, PARTS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    if DENSE:
        E = E // _LANES * _LANES
    p = reversed_bits(PARTS)
    e = tl.arange(0, EXPERTS)
    inside = (p < parts)[:, None] & (e < E)[None, :]
    slots = p[:, None] * E + e[None, :]
    counts = tl.sum(tl.load(count_slots + slots, mask=inside, other=0), axis=0).to(tl.float32)
    total = tl.maximum(tl.sum(counts, axis=0), _CLAMP)
    share = tl.div_rn(counts, tl.broadcast_to(total, [EXPERTS]))
    weight = share * E
    if FOLDED:
        sums = reversed_column_sums(tl.load(mass_slots + slots, mask=inside, other=0.0))
        tl.store(mass + e, sums, mask=e < E)
    else:
        sums = tl.load(mass + e, mask=e < E, other=0.0)
    tl.store(frequencies + e, weight, mask=e < E)
    total_raw = row_sums(tl.reshape(weight * sums, [1, EXPERTS]))
    one = tl.arange(0, 1)
    below = tl.maximum(tl.load(denominator + one), 1.0)
    tl.store(raw + one, total_raw)
    tl.store(loss + one, tl.div_rn(total_raw * coefficient, below))


@triton.jit(
    do_not_specialize=[
        "scores", "padding", "denominator", "frequencies", "d_loss", "T", "E",
        "scores_t", "scores_e", "padding_t", "frequencies_e",
    ]
)  # fmt: skip
def balance_loss_backward(
    scores, padding, denominator, frequencies, d_loss, d_scores, T, E, coefficient,
    scores_t, scores_e, padding_t, frequencies_e,
    GIVEN: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr, ROWS: tl.constexpr, EXPERTS: tl.constexpr,
):  # fmt: skip
    if DENSE:
        E = E // _LANES * _LANES
        scores_t, scores_e = E, 1
    first = tl.program_id(0).to(tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    t = first + r
    e = tl.arange(0, EXPERTS)
    inside = _inside(t, e, T, E, padding, padding_t, PADDED)
    s = tl.load(_tile(scores, first, r, e, scores_t, scores_e, DENSE), mask=inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.load(d_loss) * coefficient, tl.maximum(tl.load(denominator), 1.0))
    weights = scale * tl.load(frequencies + e * frequencies_e, mask=e < E, other=0.0)
    if GIVEN:
        norm = row_sums(tl.abs(s))
        den = tl.maximum(norm, _CLAMP)
    else:
        den = row_sums(s) + _EPSILON
    # Divided twice, since the square of a small den is no FP32 number.
    pull = tl.div_rn(tl.div_rn(row_sums(weights[None, :] * s), den), den)
    push = tl.div_rn(tl.broadcast_to(weights[None, :], [ROWS, EXPERTS]), tl.broadcast_to(den[:, None], [ROWS, EXPERTS]))
    if GIVEN:
        pull = tl.where(norm > _CLAMP, pull, 0.0)
        slope = tl.where(s > 0, 1.0, tl.where(s < 0, -1.0, 0.0))
        gradient = push - slope * pull[:, None]
    else:
        gradient = push - pull[:, None]
    gradient = tl.where(inside, gradient, 0.0).to(d_scores.dtype.element_ty)
    tl.store(_tile(d_scores, first, r, e, E, 1, DENSE), gradient, mask=(t < T)[:, None] & (e < E)[None, :])


def forward_map(
    scores: Tensor, routing_map: Tensor, padding: Tensor | None, denominator: Tensor, *, coefficient: float
) -> dict[str, Tensor]:
    """frequencies [E], mass [E], raw [], loss [] of the map objective. Raises as `arguments.forward_sizes` does."""
    n = forward_sizes(scores, padding, denominator, coefficient, routing_map=routing_map)
    return launch_forward(n, scores, routing_map, padding, denominator, coefficient)


def forward_topk(
    scores: Tensor, padding: Tensor | None, denominator: Tensor, *, coefficient: float, topk: int
) -> dict[str, Tensor]:
    """frequencies [E], mass [E], raw [], loss [] of the top-k objective. Raises as `arguments.forward_sizes` does."""
    n = forward_sizes(scores, padding, denominator, coefficient, topk=topk)
    return launch_forward(n, scores, None, padding, denominator, coefficient, topk)


def vjp_map(
    scores: Tensor,
    routing_map: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    frequencies: Tensor,
    d_loss: Tensor,
    *,
    coefficient: float,
) -> dict[str, Tensor]:
    """d_scores [T, E] of the map objective; the map itself is not read. Raises as `arguments.backward_sizes` does."""
    n = backward_sizes(scores, padding, denominator, coefficient, frequencies, d_loss, routing_map=routing_map)
    return launch_backward(n, scores, padding, denominator, frequencies, d_loss, coefficient, given=True)


def vjp_topk(
    scores: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    frequencies: Tensor,
    d_loss: Tensor,
    *,
    coefficient: float,
    topk: int,
) -> dict[str, Tensor]:
    """d_scores [T, E] of the top-k objective. Raises as `arguments.backward_sizes` does."""
    n = backward_sizes(scores, padding, denominator, coefficient, frequencies, d_loss, topk=topk)
    return launch_backward(n, scores, padding, denominator, frequencies, d_loss, coefficient, given=False)


def launch_forward(
    n: Sizes,
    scores: Tensor,
    routing_map: Tensor | None,
    padding: Tensor | None,
    denominator: Tensor,
    coefficient: float,
    topk: int = 0,
    *,
    atomic: bool = False,
    tiles: Tiles | None = None,
) -> dict[str, Tensor]:
    """The forward of checked arguments; `atomic`: column sums by float atomics instead of slots; tiles: another cut."""
    outputs = empty_outputs(n, scores)
    if n.T == 0:
        return {name: t.zero_() for name, t in outputs.items()}
    cut = tiles or forward_tiles(n.T, n.E)
    count_slots = torch.empty((cut.parts, n.E), dtype=torch.int32, device=scores.device)
    if atomic:
        mass_slots = outputs["mass"].zero_()
    else:
        mass_slots = torch.empty((cut.parts, n.E), dtype=torch.float32, device=scores.device)
    add_parts(n, cut, scores, routing_map, padding, mass_slots, count_slots, topk, atomic=atomic)
    fold(n, cut, mass_slots, count_slots, denominator, outputs, coefficient, folded=not atomic)
    return outputs


def add_parts(
    n: Sizes,
    cut: Tiles,
    scores: Tensor,
    routing_map: Tensor | None,
    padding: Tensor | None,
    mass_slots: Tensor,
    count_slots: Tensor,
    topk: int,
    *,
    atomic: bool,
) -> None:
    """Counts into count_slots [parts, E]; column sums into mass_slots [parts, E], or added to mass_slots [E]."""
    given = routing_map is not None
    # What is not given is not read, but a kernel's pointer has to point somewhere.
    chosen = scores if routing_map is None else routing_map
    mask = scores if padding is None else padding
    balance_loss_parts[(cut.parts,)](
        scores, chosen, mask, mass_slots, count_slots, n.T, n.E, topk, cut.trips,
        *scores.stride(), *chosen.stride(), mask.stride(0),
        GIVEN=given, PADDED=padding is not None, ATOMIC=atomic, DENSE=dense(n, scores, chosen),
        ROWS=cut.rows, EXPERTS=cut.experts,
        num_warps=warps(cut.rows * cut.experts), enable_fp_fusion=False,
    )  # fmt: skip


def fold(
    n: Sizes,
    cut: Tiles,
    mass_slots: Tensor,
    count_slots: Tensor,
    denominator: Tensor,
    outputs: dict[str, Tensor],
    coefficient: float,
    *,
    folded: bool,
) -> None:
    """The outputs from the slots; `folded`: mass is folded from them too, and else is there already."""
    parts = power_of_two(cut.parts)
    balance_loss_fold[(1,)](
        mass_slots, count_slots, denominator, *outputs.values(), cut.parts, n.E, coefficient,
        FOLDED=folded, DENSE=dense(n), PARTS=parts, EXPERTS=cut.experts,
        num_warps=warps(parts * cut.experts), enable_fp_fusion=False,
    )  # fmt: skip


def launch_backward(
    n: Sizes,
    scores: Tensor,
    padding: Tensor | None,
    denominator: Tensor,
    frequencies: Tensor,
    d_loss: Tensor,
    coefficient: float,
    *,
    given: bool,
    kernel: Any = balance_loss_backward,
    tiles: int | None = None,
) -> dict[str, Tensor]:
    """The backward of checked arguments; kernel, tiles: another kernel or number of programs."""
    d_scores = torch.empty((n.T, n.E), dtype=scores.dtype, device=scores.device)
    if n.T:
        rows, experts = backward_rows(n.T, n.E), power_of_two(n.E)
        mask = scores if padding is None else padding
        kernel[(backward_tiles(n.T, n.E) if tiles is None else tiles,)](
            scores, mask, denominator, frequencies, d_loss, d_scores, n.T, n.E, coefficient,
            *scores.stride(), mask.stride(0), frequencies.stride(0),
            GIVEN=given, PADDED=padding is not None, DENSE=dense(n, scores), ROWS=rows, EXPERTS=experts,
            num_warps=warps(rows * experts), enable_fp_fusion=False,
        )  # fmt: skip
    return {"d_scores": d_scores}


def dense(n: Sizes, *tensors: Tensor) -> bool:
    """Whether rows of these inputs follow each other without gaps and start where wide loads can."""
    return n.E % LANES == 0 and all(t.is_contiguous() and t.data_ptr() % ALIGNED == 0 for t in tensors)


def empty_outputs(n: Sizes, scores: Tensor) -> dict[str, Tensor]:
    """Contiguous FP32 outputs to be written."""
    shapes: dict[str, tuple[int, ...]] = {"frequencies": (n.E,), "mass": (n.E,), "raw": (), "loss": ()}
    return {name: torch.empty(shape, dtype=torch.float32, device=scores.device) for name, shape in shapes.items()}
