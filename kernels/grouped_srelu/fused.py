"""The two ways to call the Triton backward: sums by float atomics, or by slots that are added in order."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from kernels.grouped_srelu import refusal
from kernels.grouped_srelu.arguments import Sizes
from kernels.grouped_srelu.backward import (
    grouped_srelu_backward,
    grouped_srelu_fold_bias,
    grouped_srelu_input_gradient,
)
from kernels.grouped_srelu.call import Call, Tensors
from kernels.grouped_srelu.tiles import (
    ALIGNED,
    DEEP,
    DEPTHS,
    EXPERTS,
    FEATURES,
    FEWER_WARPS,
    FOLDED,
    HIDDEN,
    LANES,
    STAGES,
    WARPS,
    cut,
    row_tiles,
    tile_rows,
)

# Elements that an offset in signed 32 bits does not reach.
REACH = 2**31


def vjp_atomic(
    c: Tensor, prob: Tensor | None, alpha: Tensor, w1: Tensor, w2: Tensor, tokens: Tensor, offsets: Tensor, *,
    d_out: Tensor, d_prob_onto: Tensor | None = None, d_bias_onto: Tensor | None = None,
    generate_dbias: bool = True, tanh_clamp_scale: float | None = None,
) -> Tensors:  # fmt: skip
    """The gradients, d_prob and d_bias added up by float atomics: their bits depend on the order of arrival.

    Raises NotDeterministic where determinism is requested and more than one program adds to an address of d_prob or
    d_bias; `vjp_slots` can be had instead.
    """
    call = Call.of(locals())
    refusal.require("grouped_srelu.triton_atomic", call.n, weighted=call.weighted, biased=generate_dbias)
    return atomic_gradients(call)


def atomic_gradients(call: Call) -> Tensors:
    """What `vjp_atomic` returns, without asking whether determinism is requested."""
    found = call.begun()
    if call.n.empty:
        return found
    run_backward(call, found["d_c"], found.get("d_prob"), found.get("d_bias"), atomic=True)
    run_input_gradient(call, found, None)
    return found


def vjp_slots(
    c: Tensor, prob: Tensor | None, alpha: Tensor, w1: Tensor, w2: Tensor, tokens: Tensor, offsets: Tensor, *,
    d_out: Tensor, d_prob_onto: Tensor | None = None, d_bias_onto: Tensor | None = None,
    generate_dbias: bool = True, tanh_clamp_scale: float | None = None,
) -> Tensors:  # fmt: skip
    """The gradients, d_prob and d_bias added up over slots in ascending order of N tiles and of row tiles."""
    call = Call.of(locals())
    return slot_gradients(call)


def slot_gradients(call: Call) -> Tensors:
    """What `vjp_slots` returns."""
    found, n = call.begun(), call.n
    if n.empty:
        return found
    device = call["c"].device
    slots = [(n.M, cut(n.N, FEATURES)), (row_tiles(n.M, n.E), n.N)]
    wanted = (call.weighted, call.generate_dbias)
    prob_slots, bias_slots = (
        torch.empty(shape, dtype=torch.float32, device=device) if want else None
        for shape, want in zip(slots, wanted, strict=True)
    )
    run_backward(call, found["d_c"], prob_slots, bias_slots, atomic=False)
    run_input_gradient(call, found, prob_slots)
    if bias_slots is not None:
        fold_bias(call, bias_slots, found["d_bias"])
    return found


def run_backward(
    call: Call, d_c: Tensor, d_prob: Tensor | None, d_bias: Tensor | None, *, atomic: bool, parts: int | None = None
) -> None:
    """Launch the fused kernel. d_prob, d_bias: sums (atomic), slots, or None. parts: N tiles, all unless given."""
    n, absent = call.n, d_c
    names = ("c", "alpha", "w2", "d_out", "tokens", "offsets")
    c, alpha, w2, d_out, tokens, offsets = (call[name] for name in names)
    prob = call.given["prob"]
    strides = (
        *c.stride(), *(prob.stride() if prob is not None else (0,)), *alpha.stride(), *w2.stride(), *d_out.stride(),
        *tokens.stride(), *offsets.stride(),
    )  # fmt: skip
    tiles = cut(n.N, FEATURES)
    grouped_srelu_backward[(row_tiles(n.M, n.E), tiles if parts is None else parts)](
        c, absent if prob is None else prob, alpha, w2, d_out, tokens, offsets,
        d_c, absent if d_prob is None else d_prob, absent if d_bias is None else d_bias,
        n.N, n.H, n.E, tiles, call.clamp or 1.0, *strides, **constants(n), FEATURES=FEATURES,
        DEPTH=DEPTHS[c.element_size()], DENSE=dense(n, c, w2, d_out), PROB=prob is not None,
        D_PROB=d_prob is not None, D_BIAS=d_bias is not None, CLAMP=call.clamp is not None, ATOMIC=atomic,
        FAR=far(n, c, d_out),
        num_warps=WARPS, num_stages=STAGES,
        # A product fused with an add where a thread has both, and not where two do, would be another order.
        enable_fp_fusion=False,
    )  # fmt: skip


def run_input_gradient(call: Call, found: Tensors, prob_slots: Tensor | None) -> None:
    """Launch the second GEMM, which adds up d_prob's slots on the way."""
    n, w1, tokens, offsets = call.n, call["w1"], call["tokens"], call["offsets"]
    d_c, d_x = found["d_c"], found["d_x"]
    slots = prob_slots is not None
    grouped_srelu_input_gradient[(row_tiles(n.M, n.E), cut(n.H, HIDDEN))](
        d_c, w1, tokens, offsets, d_x, prob_slots if slots else d_c, found["d_prob"] if slots else d_c, n.N, n.H,
        n.E, cut(n.N, FEATURES), *w1.stride(), *tokens.stride(), *offsets.stride(), **constants(n), HIDDEN=HIDDEN,
        DEPTH=DEEP, DENSE=dense(n, w1), SLOTS=slots, num_warps=FEWER_WARPS, num_stages=STAGES,
    )  # fmt: skip


def fold_bias(call: Call, slots: Tensor, d_bias: Tensor) -> None:
    """Launch the fold of each expert's slots onto what `d_bias` holds."""
    n, tokens = call.n, call["tokens"]
    grouped_srelu_fold_bias[(n.E, cut(n.N, FOLDED))](
        slots, d_bias, tokens, d_bias, n.N, n.E, *d_bias.stride(), *tokens.stride(), **constants(n), FOLDED=FOLDED,
    )  # fmt: skip


def dense(n: Sizes, *tensors: Tensor) -> bool:
    """Whether rows of these inputs follow each other without gaps and start where wide loads can."""
    return n.N % LANES == n.H % LANES == 0 and all(t.is_contiguous() and t.data_ptr() % ALIGNED == 0 for t in tensors)


def far(n: Sizes, *tensors: Tensor) -> bool:
    """Whether a tile's rows of one of these lie further apart than an offset in 32 bits reaches."""
    return max(t.stride(0) for t in tensors) * tile_rows(n.M) >= REACH


def constants(n: Sizes) -> dict[str, int]:
    """What every kernel here is compiled for: rows of a tile, and room for the experts. Sizes are arguments."""
    return {"EXPERTS": max(EXPERTS, triton.next_power_of_2(n.E)), "ROWS": tile_rows(n.M)}
