"""Sparse MLA's backward in Triton with d_kv added up in integers: no order of arrival can change a bit.

1. The half that makes d_q also sums, for each KV row, a bound on the size of its contributions:
   sum over heads of |dS| max|q| + |P| max|d_out|, over the slots that list the row.
2. Each row's scale is the power of two that puts this bound below a quarter of the integer's range.
3. The other half scales each contribution, rounds it to an integer and adds that. It also sums the sizes max|row|.
4. The proof: these sums, scaled, are below half of the range, so no sum can have left it, in whatever order. A row for
   which it fails is set to zero and gets the scale that the sums of sizes give.
5. Such rows are added again. The decision stays on the device: this pass is always launched, and ends at once where
   every proof held.
6. The sums are scaled back, those of a row that nothing proved as NaN.

All sums of sizes are sums of integers too (`common.add_sizes`), so the scales do not depend on order either. A row with
a contribution that is not finite becomes NaN as a whole: an integer cannot hold it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sparse_mla.backward_kv import NO_SCALE, WIDE
from kernels.sparse_mla.common import BUCKETS, exponent_above, for_any, power_of_two, summed_sizes
from kernels.sparse_mla.halves import Backward, Scales
from kernels.sparse_mla.workspace import check, fixed_point_bytes

NAME = "sparse_mla.triton_fixed_point"
# Additions to one KV row at most: so many sizes of at most 2^34 units stay below the bucket's mark.
MOST_ADDENDS = 2**27
# What the flag of a KV row holds until its sums are proven (0) or found to be in need of another pass (1).
UNPROVEN = tl.constexpr(-1)
# Bits of the integers that d_kv is added in. Each contribution to a KV row rounds by at most half a unit, which is at
# most 2^-61 of the row's bound: nothing beside FP32, even for a row's smallest features.
BITS = tl.constexpr(64)
# KV rows of a program that sets scales or proves them, and words of a tile that it sets to zero or scales back.
ROWS, WORDS = 64, 64


@triton.jit
def scale_for(total):
    """The exponent of the largest power of two with total * 2^exponent < 2^(BITS - 2), held within FP64's range."""
    exponent = tl.where(total == 0.0, 0, BITS - 2 - exponent_above(total))
    return tl.minimum(tl.maximum(exponent, -126), 900)


@for_any
def sparse_mla_set_scales(buckets, exponents, S_k, finer, ROWS: tl.constexpr):
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row = r < S_k
    total, finite = summed_sizes(buckets, r, row)
    exponent = tl.minimum(scale_for(total) + finer, 900)
    tl.store(exponents + r, tl.where(finite, exponent, NO_SCALE), mask=row)
    bucket = tl.arange(0, BUCKETS)
    tl.store(buckets + r[:, None] * BUCKETS + bucket[None, :], tl.zeros([ROWS, BUCKETS], tl.int64), mask=row[:, None])


@for_any
def sparse_mla_prove_sums(buckets, exponents, retries, sums, S_k, words, ROWS: tl.constexpr, WORDS: tl.constexpr):
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    row = r < S_k
    total, finite = summed_sizes(buckets, r, row)
    exponent = tl.load(exponents + r, mask=row, other=NO_SCALE)
    scaled = exponent < NO_SCALE
    half = power_of_two(tl.full([ROWS], BITS - 2, tl.int32))
    proven = total * power_of_two(tl.where(scaled, exponent, 0)) <= half
    again = row & scaled & finite & (proven == 0)
    tl.store(retries + r, again.to(tl.int32), mask=row)
    exponent = tl.where(again, scale_for(total), tl.where(finite, exponent, NO_SCALE))
    tl.store(exponents + r, exponent, mask=row)
    if tl.max(again.to(tl.int32), axis=0) > 0:
        tl.atomic_max(retries + S_k, 1, sem="relaxed")
        for start in range(0, words, WORDS):
            w = start + tl.arange(0, WORDS)
            at = sums + r[:, None] * words + w[None, :]
            tl.store(at, tl.zeros([ROWS, WORDS], tl.int64), mask=again[:, None] & (w < words)[None, :])


@for_any
def sparse_mla_scale_back(sums, exponents, retries, d_kv, S_k, D, ROWS: tl.constexpr, WORDS: tl.constexpr):
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    w = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    row = r < S_k
    exponent = tl.load(exponents + r, mask=row, other=0)
    scaled = (exponent < NO_SCALE) & (tl.load(retries + r, mask=row, other=UNPROVEN) != UNPROVEN)
    back = power_of_two(tl.where(scaled, -exponent, 0))[:, None]
    word = tl.load(sums + r[:, None] * D + w[None, :], mask=row[:, None] & (w < D)[None, :], other=0)
    value = (word.to(tl.float64) * back).to(tl.float32)
    value = tl.where(scaled[:, None], value, float("nan"))
    tl.store(d_kv + r[:, None] * D + w[None, :], value.to(d_kv.dtype.element_ty), mask=row[:, None] & (w < D)[None, :])


def vjp(
    q: Tensor,
    kv: Tensor,
    topk_idxs: Tensor,
    topk_length: Tensor | None = None,
    sink: Tensor | None = None,
    *,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    softmax_scale: float,
    value_dim: int,
    d_kv_dtype: str = "data",
    finer: int = 0,
    budget: int | None = None,
) -> dict[str, Tensor]:
    """d_q [S_q, H, D], d_kv [S_k, D] and, with a sink, d_sink [H].

    finer: bits by which the first pass's scale is finer than the bound allows, a bet on its being loose that the proof
    decides. budget: bytes of workspace allowed; None: what the device has free.
    Raises ValueError for more than MOST_ADDENDS contributions, WorkspaceExceeded where the workspace is beyond the
    budget, and as `arguments.vjp_sizes` does.
    """
    call = Backward.of(q, kv, topk_idxs, topk_length, sink, out, lse, d_out, softmax_scale, value_dim, d_kv_dtype)
    n = call.n
    if n.S_q * n.topk * call.blocks > MOST_ADDENDS:
        raise ValueError(
            f"S_q={n.S_q}, topk={n.topk} and H={n.H} make up to {n.S_q * n.topk * call.blocks} contributions to a KV "
            f"row, but sums are proven for {MOST_ADDENDS}; call this for fewer queries at a time"
        )
    if n.empty:
        return call.nothing()
    check(NAME, n, fixed_point_bytes(n), budget, q.device)
    return _added_as_integers(call, finer)


def _added_as_integers(call: Backward, finer: int) -> dict[str, Tensor]:
    n, device = call.n, call.q.device
    buckets = torch.zeros((n.S_k, BUCKETS.value), dtype=torch.int64, device=device)
    gradients, delta = call.query_half(buckets)
    sums = torch.zeros((n.S_k, n.D), dtype=torch.int64, device=device)
    exponents = torch.empty((n.S_k,), dtype=torch.int32, device=device)
    retries = torch.full((n.S_k + 1,), UNPROVEN.value, dtype=torch.int32, device=device)
    grid = (triton.cdiv(n.S_k, ROWS),)
    sparse_mla_set_scales[grid](buckets, exponents, n.S_k, finer, ROWS=ROWS)
    call.kv_half(WIDE.value, delta, sums, scales=Scales(buckets, exponents, retries))
    sparse_mla_prove_sums[grid](buckets, exponents, retries, sums, n.S_k, n.D, ROWS=ROWS, WORDS=WORDS)
    call.kv_half(WIDE.value, delta, sums, scales=Scales(buckets, exponents, retries), again=True)
    gradients["d_kv"] = call.empty_d_kv()
    sparse_mla_scale_back[(*grid, triton.cdiv(n.D, WORDS))](
        sums, exponents, retries, gradients["d_kv"], n.S_k, n.D, ROWS=ROWS, WORDS=WORDS
    )
    return gradients
