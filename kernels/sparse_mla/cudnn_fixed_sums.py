"""The small Triton kernels around `cudnn_fixed_kernel`: scales, the proof, and the way back from integers.

None depends on an order: they add integers and take maxima, or one program does all of an element's work.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.sparse_mla.common import exponent_above

# KV rows, or words, that a program of the simple kernels takes.
ROWS = tl.constexpr(256)
INFINITY_BITS = tl.constexpr(0x7F800000)
BIAS = tl.constexpr(0x4B400000)
# A size of one unit, and half of one, in the tables.
UNIT, HALF = tl.constexpr(64), tl.constexpr(32)
# Sums of sizes stay below 2^30 by the choice of a scale, and are proven below 2^31.
CHOSEN, PROVEN = tl.constexpr(30), tl.constexpr(2.0**31)
# A single contribution may be converted up to here; see `cudnn_fixed_ptx.integers`.
CONVERTED = tl.constexpr(2.0**30)
# What the proof asks of a row that N additions made: sizes that sum to 2^FINE N units, at least 2^16, at most 2^28.
# bf16's roundings hide what is 2^12 below a result; fp16's are 2^-3 of those, and two bits more keep its flips few.
FINE, FINE_FP16 = 12, 17
FEWEST, MOST = tl.constexpr(16), tl.constexpr(28)
# FP32's normal powers of two.
LOWEST, HIGHEST = tl.constexpr(-126), tl.constexpr(126)
# Bits above the largest |d_out| of the sample at which the sample's own unit lies.
SAMPLE_BITS = tl.constexpr(4)


@triton.jit
def power_of_two(e):
    """2^e in FP32, e held to its normal numbers."""
    held = tl.minimum(tl.maximum(e, LOWEST), HIGHEST)
    return ((held + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def bound_of(mass, count, peak, scale):
    """An upper bound, in FP64, of the sum of a row's sizes: the summed ones, or count peak where one saturated."""
    size = peak.to(tl.float32, bitcast=True).to(tl.float64)
    loose = count.to(tl.float64) * size
    summed = (mass - HALF * count.to(tl.int64)).to(tl.float64) / UNIT / scale.to(tl.float64)
    return tl.where(size * scale.to(tl.float64) < CONVERTED, tl.minimum(summed, loose), loose)


@triton.jit
def least_units(count, fine: tl.constexpr):
    """The exponent of the fewest units that a row of `count` additions has to be worth."""
    return tl.minimum(tl.maximum(exponent_above(count.to(tl.float64)) + fine, FEWEST), MOST)


@triton.jit
def sparse_mla_sample_peak(d_out, peak, query, size, BLOCK: tl.constexpr):
    """peak: the bits of the largest |d_out| of the sampled queries. query: elements from one to the next."""
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(d_out + tl.program_id(0).to(tl.int64) * query + at, mask=at < size, other=0.0).to(tl.float32)
    values = tl.where(tl.abs(values) < float("inf"), tl.abs(values), 0.0)
    tl.atomic_max(peak, tl.max(values, axis=0).to(tl.int32, bitcast=True), sem="relaxed")


@triton.jit
def sparse_mla_sample_scales(peak, scale, lengths, given, step, sampled, entries, topk, HAS_LENGTH: tl.constexpr):
    """Before the sample: one scale for all rows, and how many slots each sampled query has."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    largest = tl.load(peak).to(tl.float32, bitcast=True).to(tl.float64)
    unit = power_of_two(tl.where(largest > 0.0, SAMPLE_BITS - exponent_above(largest), 0))
    tl.store(scale + r, tl.zeros([ROWS], tl.float32) + unit, mask=r < entries)
    query = r < sampled
    length = tl.zeros([ROWS], tl.int32) + topk
    if HAS_LENGTH:
        length = tl.load(given + r.to(tl.int64) * step, mask=query, other=0)
    tl.store(lengths + r, length, mask=query)


@triton.jit
def sparse_mla_sample_totals(mass, count, totals, entries):
    """totals: sizes in 64ths of the sample's unit, and additions, over all rows."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    counts = tl.load(count + r, mask=r < entries, other=0).to(tl.int64)
    sizes = tl.load(mass + r, mask=r < entries, other=0) - HALF * counts
    # Beyond this nothing is learnt from a sum, and it must not wrap round.
    sizes = tl.minimum(tl.maximum(sizes, 0), 1 << 40)
    tl.atomic_add(totals, tl.sum(sizes, axis=0), sem="relaxed")
    tl.atomic_add(totals + 1, tl.sum(counts, axis=0), sem="relaxed")


@triton.jit
def sparse_mla_set_scales(
    mass, count, peak, scale, totals, rate, entries, EXACT: tl.constexpr, FINE_BITS: tl.constexpr
):
    """From the sample: each row's scale. EXACT: the sample was everything, so that nothing is guessed."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = r < entries
    masses = tl.load(mass + r, mask=row, other=0)
    counts = tl.load(count + r, mask=row, other=0)
    old = tl.load(scale + r, mask=row, other=1.0)
    bound = bound_of(masses, counts, tl.load(peak + r, mask=row, other=0), old)
    if EXACT:
        target = tl.zeros([ROWS], tl.int32) + CHOSEN
    else:
        # A row's own mean, drawn towards that of all rows as if by four more additions; one addition more than seen.
        everywhere = tl.load(totals).to(tl.float64) / tl.maximum(tl.load(totals + 1), 1).to(tl.float64)
        everywhere = everywhere / UNIT / old.to(tl.float64)
        additions = (counts.to(tl.float64) + 1.0) * rate
        bound = (bound + 4.0 * everywhere) / (counts.to(tl.float64) + 4.0) * additions
        target = (least_units(additions, FINE_BITS) + CHOSEN + 2) // 2
    exponent = tl.where(bound > 0.0, target - exponent_above(bound), HIGHEST)
    tl.store(scale + r, power_of_two(exponent), mask=row)


@triton.jit
def sparse_mla_prove_sums(mass, count, peak, scale, retry, entries, FINE_BITS: tl.constexpr):
    """retry: 1 where a row's sum could have left the range, or was too coarse; such a row gets a scale that serves."""
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row = r < entries
    masses = tl.load(mass + r, mask=row, other=0)
    counts = tl.load(count + r, mask=row, other=0)
    peaks = tl.load(peak + r, mask=row, other=0)
    old = tl.load(scale + r, mask=row, other=1.0)
    bound = bound_of(masses, counts, peaks, old)
    size = peaks.to(tl.float32, bitcast=True).to(tl.float64) * old.to(tl.float64)
    held = (masses.to(tl.float64) < PROVEN * UNIT) & (size < CONVERTED)
    fine = exponent_above(bound * old.to(tl.float64)) > least_units(counts.to(tl.float64), FINE_BITS)
    exponent = CHOSEN - exponent_above(bound)
    finite = peaks < INFINITY_BITS
    # A row already at the finest scale that FP32 has gains nothing from another pass.
    again = row & finite & (peaks > 0) & ((held == 0) | ((fine == 0) & (power_of_two(exponent) > old)))
    tl.store(scale + r, tl.where(again, power_of_two(exponent), old), mask=row)
    if tl.max(again.to(tl.int32), axis=0) > 0:
        tl.atomic_or(retry, 1, sem="relaxed")


@triton.jit
def sparse_mla_start_again(retry, words, size, lengths, given, queries, topk, HAS_LENGTH: tl.constexpr):
    """The second pass: all sums and tables zero and every query has its slots where retry is 1; else no query any."""
    again = tl.load(retry) != 0
    at = tl.program_id(0).to(tl.int64) * (16 * ROWS) + tl.arange(0, 16 * ROWS)
    query = at < queries
    length = tl.zeros([16 * ROWS], tl.int32) + topk
    if HAS_LENGTH:
        length = tl.load(given + at, mask=query, other=0)
    tl.store(lengths + at, tl.where(again, length, 0), mask=query)
    if again:
        tl.store(words + at, tl.zeros([16 * ROWS], tl.int32), mask=at < size)


@triton.jit
def sparse_mla_scale_back(sums, mass, count, peak, scale, d_kv, S_k, D, ROWS: tl.constexpr, WORDS: tl.constexpr):
    """d_kv [S_k, D] from sums [., D / 2]: two integers a word, each with the bias of every addition."""
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    w = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    row, word = r < S_k, w < D // 2
    counts = tl.load(count + r, mask=row, other=0).to(tl.int64)
    peaks = tl.load(peak + r, mask=row, other=0)
    scales = tl.load(scale + r, mask=row, other=1.0)
    masses = tl.load(mass + r, mask=row, other=0)
    size = peaks.to(tl.float32, bitcast=True).to(tl.float64) * scales.to(tl.float64)
    proven = (peaks < INFINITY_BITS) & (masses.to(tl.float64) < PROVEN * UNIT) & (size < CONVERTED)
    here = row[:, None] & word[None, :]
    both = tl.load(sums + r[:, None] * (D // 2) + w[None, :], mask=here, other=0)
    biases = (counts * BIAS)[:, None]
    low = (both - biases).to(tl.int32)
    # What the low halves added up to, exactly: taken away, their carries are gone from the high one.
    high = (((both - biases - low.to(tl.int64)) >> 32) - biases).to(tl.int32)
    back = 1.0 / tl.where(proven, scales, 1.0)[:, None]
    value = tl.reshape(tl.join(low, high), [ROWS, 2 * WORDS]).to(tl.float32) * back
    value = tl.where(proven[:, None], value, float("nan"))
    d = tl.program_id(1) * (2 * WORDS) + tl.arange(0, 2 * WORDS)
    tl.store(d_kv + r[:, None] * D + d[None, :], value.to(d_kv.dtype.element_ty), mask=row[:, None] & (d < D)[None, :])


@triton.jit
def sparse_mla_sink_gradient(D, lse, sink, d_sink, queries, H, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """d_sink [H]: -sum over queries of p_sink D, one program a head, blocks in order; p_sink as in the preprocess."""
    h = tl.program_id(0)
    own = tl.load(sink + h)
    total = tl.zeros([BLOCK], tl.float32)
    for block in range(BLOCKS):
        t = block * BLOCK + tl.arange(0, BLOCK)
        at = t.to(tl.int64) * H + h
        row = tl.load(lse + at, mask=t < queries, other=float("inf"))
        share = 1.0 / (1.0 + tl.exp2((row - own) * 1.4426950408889634))
        share = tl.where(row == own, 0.5, tl.where(row == float("inf"), 0.0, share))
        total -= share * tl.load(D + at, mask=t < queries, other=0.0)
    tl.store(d_sink + h, tl.sum(total, axis=0))
