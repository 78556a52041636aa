"""cuDNN's SM90 backward of sparse MLA with d_kv added up in integers: no order of arrival can change a bit.

The kernel is the installed one but for its scatter (`cudnn_fixed_kernel`). Integer addition is associative, so d_kv is
the same in any order; d_sink is summed again in one order; d_q has one writer an element as it is.

**What is added.** A contribution c to KV row i is added as rint(c s_i), s_i a power of two of the row's own, with a
bias that its count takes away again. Two 32-bit integers go into one 64-bit addition: the biases keep every word
positive, so that the low half's carries are known once its sum is.

**The scale.** A bound that holds before any product is known (P <= 1, Cauchy-Schwarz for dP) is loose by 2^13 and more,
which leaves 32 bits too coarse. So the scale is a guess, and a proof decides. A sample of the queries runs first (one
wave of CTAs; everything where S_q is small, so that nothing is guessed there). Of each row it gives the sum A of the
sizes b = max over columns |c|. The guess puts s A in the middle of what the proof accepts.

**The proof.** With every addition the kernel also adds to the row ceil(64 s b) + 32, which bounds 64 |rint(c s)| for
all of its columns, counts it, and keeps the largest b. Then sum |rint(c s)| < 2^31 for every column if this mass is
below 2^37, in whatever order: nothing can have wrapped. And each c s is off by at most 1/2: the proof asks that s A is
at least 2^12 N for N additions (2^16 to 2^28), so that the N roundings together (sqrt(N / 12) units, where
a sum of random signs has about s A / (3.5 sqrt(N))) stay some 2^12 below the result, against the 2^9 of P, dS and the
result itself. In fp16, whose roundings are 2^12 below, it is 2^17 N. Where either fails for a row, mass, count and peak
give the scale with which it cannot fail, and a second pass adds everything again. The decision stays on the device:
that pass is always launched, with no slots where the proof held, and takes 0.07 ms then. A row with a contribution that
is not finite, or that FP32's powers of two cannot scale, comes back as NaN.

All sums in this are of integers, so the scales are order-free too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.sparse_mla import cudnn_probe
from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.cudnn_arguments import nothing, sizes
from kernels.sparse_mla.cudnn_tables import COUNT, MASS, PEAK, SCALE, WORDS
from kernels.sparse_mla.cudnn_workspace import (
    FLAGS,
    fixed_point_bytes,
    fixed_point_scratch,
    head_tiles,
    padded_rows,
    sample_of,
)  # fmt: skip
from kernels.sparse_mla.workspace import check

NAME = "sparse_mla.cudnn_fixed_point"
# Additions to one KV row at most: sizes of up to 2^37 64ths each then stay within 64 bits, and halves within 2^31.
MOST_ADDENDS = 2**26
# The kernel holds where a row begins in 32 bits of bytes.
MOST_BYTES = 2**32

capability = cudnn_probe.probe(cudnn_probe.SUBCLASSED, also=("triton",))


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
    budget: int | None = None,
) -> dict[str, Tensor]:
    """d_q [S_q, H, D] and d_kv [S_k, D] in q's dtype, d_sink [H] in FP32 where there is a sink.

    A request for determinism is honoured. The first call of a shape compiles for some seconds, and cannot be captured
    in a graph; later ones wait for nothing on the device.
    budget: bytes of workspace allowed; None: what the device has free. Raises ValueError beyond MOST_ADDENDS or
    MOST_BYTES, WorkspaceExceeded where the workspace is beyond the budget, and as `cudnn_arguments.sizes` does.
    """
    n = sizes(
        q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
        softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype,
    )  # fmt: skip
    _within_reach(n)
    if n.empty:
        return nothing(q, kv, sink)
    check(NAME, n, fixed_point_bytes(n, sink is not None), budget, q.device)
    gradients = {"d_q": torch.empty_like(q), "d_kv": torch.empty_like(kv)}
    own_sink = torch.full((n.H,), -math.inf, device=q.device) if sink is None else sink
    if sink is not None:
        gradients["d_sink"] = torch.empty_like(sink)
    with torch.cuda.device(q.device):
        call = _Call(
            n, q, kv, topk_idxs, topk_length, own_sink, out, lse, d_out, softmax_scale, _Scratch.of(n, q.device)
        )
        call.run(gradients)
    return gradients


def _within_reach(n: Sizes) -> None:
    if n.S_q * n.topk * head_tiles(n) > MOST_ADDENDS:
        raise ValueError(
            f"S_q={n.S_q}, topk={n.topk} and H={n.H} make up to {n.S_q * n.topk * head_tiles(n)} additions to a KV "
            f"row, but sums are proven for {MOST_ADDENDS}; call this for fewer queries at a time"
        )
    if padded_rows(n) * n.D * 4 > MOST_BYTES:
        raise ValueError(f"S_k={n.S_k} rows of D={n.D} are beyond the {MOST_BYTES} bytes that the kernel's sums reach")


@dataclass(frozen=True, eq=False)
class _Scratch:
    """D and lse_log2 FP32 [1, S_q rounded up, H]; words int32: the sums and tables; lengths int32 [S_q]; flags."""

    D: Tensor
    lse_log2: Tensor
    words: Tensor
    lengths: Tensor
    flags: Tensor
    rows: int
    sums: int

    @classmethod
    def of(cls, n: Sizes, device: torch.device) -> _Scratch:
        whole = torch.empty(fixed_point_scratch(n) // 4, dtype=torch.int32, device=device)
        queries, rows = -(-n.S_q // 64) * 64, padded_rows(n)
        statistic, sums = queries * n.H, rows * n.D
        shape, tabled = (1, queries, n.H), sums + WORDS * rows
        ends = (statistic, 2 * statistic, 2 * statistic + tabled, whole.numel() - FLAGS)
        return cls(
            whole[: ends[0]].view(torch.float32).view(shape),
            whole[ends[0] : ends[1]].view(torch.float32).view(shape),
            whole[ends[1] : ends[2]],
            whole[ends[2] : ends[3]],
            whole[ends[3] :],
            rows,
            sums,
        )

    def table(self, first: int, words: int, dtype: torch.dtype) -> Tensor:
        start = self.sums + first * self.rows
        return self.words[start : start + words * self.rows].view(dtype)

    @property
    def tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """mass, count, peak, scale."""
        return (
            self.table(MASS, 2, torch.int64),
            self.table(COUNT, 1, torch.int32),
            self.table(PEAK, 1, torch.int32),
            self.table(SCALE, 1, torch.float32),
        )

    @property
    def started(self) -> Tensor:
        """What a pass starts from zero: all but the scales."""
        return self.words[: self.sums + SCALE * self.rows]


@dataclass(frozen=True, eq=False)
class _Call:
    n: Sizes
    q: Tensor
    kv: Tensor
    topk_idxs: Tensor
    topk_length: Tensor | None
    sink: Tensor
    out: Tensor
    lse: Tensor
    d_out: Tensor
    softmax_scale: float
    scratch: _Scratch

    def run(self, gradients: dict[str, Tensor]) -> None:
        from kernels.sparse_mla import cudnn_fixed_kernel as kernel
        from kernels.sparse_mla import cudnn_fixed_sums as k

        n, s = self.n, self.scratch
        mass, count, peak, scale = s.tables
        totals, retry, largest = s.flags[:4].view(torch.int64), s.flags[4:5], s.flags[5:6]
        s.started.zero_()
        s.flags.zero_()
        kernel.preprocess(self.q.dtype, n.D_v)(
            self.out[None], self.d_out[None], s.D, self.lse[None], s.lse_log2, self.sink, *[None] * 4, self._stream()
        )
        step = sample_of(n)
        sampled, block = -(-n.S_q // step), 4096
        size, grid = n.H * n.D_v, (-(-s.rows // k.ROWS.value),)
        given = self.topk_length if self.topk_length is not None else s.lengths
        has_length = self.topk_length is not None
        fine = k.FINE_FP16 if self.q.dtype == torch.float16 else k.FINE
        k.sparse_mla_sample_peak[(sampled, -(-size // block))](self.d_out, largest, step * size, size, BLOCK=block)
        k.sparse_mla_sample_scales[(-(-max(s.rows, sampled) // k.ROWS.value),)](
            largest, scale, s.lengths, given, step, sampled, s.rows, n.topk, HAS_LENGTH=has_length
        )
        self._main(gradients["d_q"], s.lengths[:sampled], step, adds_only=True)
        k.sparse_mla_sample_totals[grid](mass, count, totals, s.rows)
        k.sparse_mla_set_scales[grid](
            mass, count, peak, scale, totals, float(step), s.rows, EXACT=step == 1, FINE_BITS=fine
        )
        s.started.zero_()
        self._main(gradients["d_q"], self.topk_length, 1, adds_only=False)
        k.sparse_mla_prove_sums[grid](mass, count, peak, scale, retry, s.rows, FINE_BITS=fine)
        words = s.started.numel()
        k.sparse_mla_start_again[(-(-max(words, n.S_q) // (16 * k.ROWS.value)),)](
            retry, s.words, words, s.lengths, given, n.S_q, n.topk, HAS_LENGTH=has_length
        )
        self._main(gradients["d_q"], s.lengths[: n.S_q], 1, adds_only=True)
        sums = s.words[: s.sums].view(torch.int64)
        k.sparse_mla_scale_back[(-(-n.S_k // 16), -(-n.D // 128))](
            sums, *s.tables, gradients["d_kv"], n.S_k, n.D, ROWS=16, WORDS=64
        )
        if "d_sink" in gradients:
            k.sparse_mla_sink_gradient[(n.H,)](
                s.D, self.lse, self.sink, gradients["d_sink"], n.S_q, n.H, BLOCK=1024, BLOCKS=-(-n.S_q // 1024)
            )

    def _main(self, d_q: Tensor, lengths: Tensor | None, step: int, *, adds_only: bool) -> None:
        """One pass over every step-th query; adds_only: with `lengths`, and d_q left alone."""
        from kernels.sparse_mla import cudnn_fixed_kernel as kernel

        n, s = self.n, self.scratch
        run = kernel.main_kernel(self.q.dtype, n.D, n.D_v, n.H, n.topk, lengths is not None, adds_only)
        run(
            self.q[None, ::step],
            self.kv[None, :, None],
            self.d_out[None, ::step],
            s.lse_log2[:, : n.S_q : step],
            s.D[:, : n.S_q : step],
            d_q[None, ::step],
            s.words.view(torch.float32)[None, None],
            self.topk_idxs[None, ::step],
            None if lengths is None else lengths[None],
            self.softmax_scale,
            self._stream(),
        )

    def _stream(self) -> Any:
        from cuda.bindings import driver

        return driver.CUstream(torch.cuda.current_stream().cuda_stream)
