"""Copies of kernels with one bug each, for `kernels.balance_loss.faults`."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.balance_loss.fused import _CLAMP, _EPSILON, _inside
from kernels.trees import row_sums

# The smallest normal FP32 number, below which a kernel built with flush-to-zero has zeros.
_NORMAL = tl.constexpr(2.0**-126)


@triton.jit
def balance_loss_backward_faulty(
    scores, padding, denominator, frequencies, d_loss, d_scores, T, E, coefficient,
    scores_t, scores_e, padding_t, frequencies_e,
    GIVEN: tl.constexpr, PADDED: tl.constexpr, DENSE: tl.constexpr, ROWS: tl.constexpr, EXPERTS: tl.constexpr,
    BUG: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    e = tl.arange(0, EXPERTS)
    row = (t < T)[:, None] & (e < E)[None, :]
    inside = _inside(t, e, T, E, padding, padding_t, PADDED)
    read = row if BUG == "multiplied mask" else inside
    s = tl.load(scores + t[:, None] * scores_t + e[None, :] * scores_e, mask=read, other=0.0).to(tl.float32)
    scale = tl.div_rn(tl.load(d_loss) * coefficient, tl.maximum(tl.load(denominator), 1.0))
    weights = scale * tl.load(frequencies + e * frequencies_e, mask=e < E, other=0.0)
    norm = row_sums(tl.abs(s))
    if GIVEN:
        den = tl.maximum(norm, _CLAMP)
    elif BUG == "sizes summed":
        den = norm + _EPSILON
    else:
        den = row_sums(s) + _EPSILON
    dot = row_sums(weights[None, :] * s)
    if BUG == "squared":
        square = den * den
        pull = tl.div_rn(dot, tl.where(square < _NORMAL, 0.0, square))
    else:
        pull = tl.div_rn(tl.div_rn(dot, den), den)
    if GIVEN:
        moves = norm >= _CLAMP if BUG == "closed clamp" else norm > _CLAMP
        slope = tl.where(s > 0, 1.0, tl.where(s < 0, -1.0, 0.0))
        pulls = slope * tl.where(moves, pull, 0.0)[:, None]
    else:
        pulls = tl.broadcast_to(pull[:, None], [ROWS, EXPERTS])
    push = tl.div_rn(tl.broadcast_to(weights[None, :], [ROWS, EXPERTS]), tl.broadcast_to(den[:, None], [ROWS, EXPERTS]))
    gradient = push - pulls
    if BUG == "multiplied mask":
        gradient = gradient * inside.to(tl.float32)
    elif BUG != "padding pushed":
        gradient = tl.where(inside, gradient, 0.0)
    tl.store(d_scores + t[:, None] * E + e[None, :], gradient.to(d_scores.dtype.element_ty), mask=row)
