"""The installed SM90 kernel with another d_kv scatter: integers instead of floats, so that no order matters.

A subclass of `FlashAttentionDSABackwardSm90` that replaces `scatter_dkv_atomic`, and for the passes that only add to
d_kv also the two epilogues that write d_q. Everything else is the installed kernel's, unchanged. The arithmetic of the
scatter is derived in `cudnn_fixed_point`; its table of KV rows is `cudnn_tables`'s.

Where stock adds four floats by one instruction (a warp covers 4 rows x 128 bytes), this adds two integers by one 64-bit
instruction, since no vector addition of integers exists. What it costs is not the bytes but the requests: a warp that
covers 8 rows x 32 bytes takes 1.4 to 1.6 times stock's time, 4 rows x 64 bytes 1.1 to 1.2, 2 rows x 128 bytes about
stock's. So lanes first exchange words, in two steps, until 16 of them hold one 128-byte line.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cudnn.deepseek_sparse_attention.sparse_attention_backward import dsa_bwd_sm90
from cudnn.deepseek_sparse_attention.utils.sm90.primitives import make_acc_tensor_mn_view
from cutlass import Boolean, Float32, Int32, Int64, const_expr
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from kernels.sparse_mla import cudnn_fixed_ptx as ptx
from kernels.sparse_mla.cudnn_tables import COUNT, MASS, PEAK, SCALE

Stock: Any = dsa_bwd_sm90.FlashAttentionDSABackwardSm90
DTYPES = {torch.bfloat16: cutlass.BFloat16, torch.float16: cutlass.Float16}
TILE, THREADS = 64, 256
# A lane holds two rows of a 64-column chunk of d_kv, 16 columns of each. Four neighbours in `member` exchange.
ROWS, COLUMNS, MEMBERS = 2, 16, 4
WORD, LINE = 4, 128  # bytes
HALVES = ((0, 1), (2, 3))
# The argument of `mma_wg0` that is sLSE.
SHARED_WORDS = 17


class FixedPoint(Stock):  # type: ignore[misc]
    """Stock's backward with d_kv in integers; adds_only: d_q is left alone."""

    adds_only = False

    def mma_wg0(self, *arguments: Any) -> None:
        # 64 words of shared memory that the first warp group reads once, before the second one starts: from then on
        # they hold where each slot's row begins. With 576 columns no other word is free, and no register either.
        self._begins = arguments[SHARED_WORDS].iterator
        Stock.mma_wg0(self, *arguments)

    @cute.jit
    def scatter_dkv_atomic(
        self, acc, chunk_idx: cutlass.Constexpr[int], mTopkIdxs_cur, mdKVaccum_cur, n_block, topK, max_seqlen_kv,
        thr_mma, tidx,
    ):  # fmt: skip
        """Adds a 64-column chunk of 64 slots; at a block's last chunk also each row's sizes, which the proof needs."""
        assert not self.dKV_swapAB, "the lanes that exchange follow the layout of the (slots, columns) tile"
        tile = cute.make_identity_tensor((self.tile_n, self.hdim_chunk))
        slots = make_acc_tensor_mn_view(thr_mma.partition_C(tile))
        values = make_acc_tensor_mn_view(acc)
        lane, warp = tidx % 32, tidx % 128 // 32
        entries = (max_seqlen_kv + TILE - 1) // TILE * TILE
        tables = entries * self.tile_hdim
        if const_expr(chunk_idx == 0):
            # Kept while one block of slots is traced: its chunks follow one another in one piece of straight code.
            self._rows, self._scales, self._peaks = [], [], [Float32(0.0)] * ROWS
            all_live = Boolean(True)
            cute.arch.sync_warp()
            for r in cutlass.range_constexpr(ROWS):
                row = self._row(slots[r, 0][0], mTopkIdxs_cur, n_block, topK, max_seqlen_kv)
                self._rows.append(row)
                self._scales.append(self._scale(mdKVaccum_cur, tables + SCALE * entries, row))
                all_live = all_live and row >= 0
                # A dead slot's has its lowest bit set.
                begin = (row * (self.tile_hdim * WORD)) | ((row >> 31) & 1)
                ptx.store(Int32(self._begins.toint()) + (warp * 16 + r * 8 + lane // 4) * WORD, begin, lane % 4 == 0)
            self._all_live = cute.arch.vote_all_sync(all_live)
            cute.arch.sync_warp()
        for r in cutlass.range_constexpr(ROWS):
            held = self._held(values, r)
            self._peaks[r] = ptx.largest(self._peaks[r], held)
            words = ptx.integers(held, self._scales[r], self._peaks[r])
            begins = ptx.load_four(Int32(self._begins.toint()) + (warp * 16 + r * 8 + lane // 16 * 4) * WORD)
            self._add(words, begins, mdKVaccum_cur.iterator, chunk_idx, lane)
        if const_expr(chunk_idx == self.N_hdim_chunks - 1):
            for r in cutlass.range_constexpr(ROWS):
                self._add_sizes((mdKVaccum_cur.iterator + tables).toint(), entries.to(Int64), r, lane)

    @cute.jit
    def _row(self, slot, mTopkIdxs_cur, n_block, topK, max_seqlen_kv):
        """The KV row that a slot of this block lists, -1 where it is dead."""
        at = n_block * self.tile_n + slot
        row = Int32(-1)
        if at < topK:
            row = mTopkIdxs_cur[at]
        if row >= max_seqlen_kv or row < 0:
            row = Int32(-1)
        return row

    @cute.jit
    def _scale(self, words, scales, row):
        scale = Float32(0.0)
        if row >= 0:
            scale = words[scales + row]
        return scale

    def _held(self, values: Any, r: int) -> list[Any]:
        return [values[r, c] for c in range(COLUMNS)]

    @cute.jit
    def _add(self, words, begins, sums, chunk_idx: cutlass.Constexpr[int], lane):
        """Exchange words among four lanes, then add whole 128-byte lines.

        words: 8 pairs of this lane's own row; pair p belongs at bytes 32 p + 8 (lane % 4) of the row's chunk. In each
        step a lane keeps the first half of what it has, sends the second, and gets the second half of its partner's
        row: what it then writes of either row is the half that the partner does not.
        """
        member = lane // 4 % MEMBERS
        first_of_two, first_of_one = member // 2 == 0, member % 2 == 0
        at = member * 32 + lane % 4 * 8
        twos = self._swap(words, ((0, 2), (1, 3), (4, 6), (5, 7)), 8, first_of_two)
        fours = [*self._swap(twos[0], HALVES, 4, first_of_one), *self._swap(twos[1], HALVES, 4, first_of_one)]
        targets = [begins[i] + (at ^ (i * 32)) for i in range(MEMBERS)]
        ptx.add_pairs(fours, sums, targets, self._all_live, chunk_idx * self.hdim_chunk * WORD, LINE)

    def _swap(self, words: list[Any], pairs: tuple[tuple[int, int], ...], offset: int, is_first: Any) -> list[Any]:
        """Of each two pairs keep the first, swap the second with the lane `offset` away: what to add to either row."""
        rows: list[list[Any]] = [[], []]
        for kept, sent in pairs:
            for word in (0, 1):
                mine, theirs = self._pick(words[2 * kept + word], words[2 * sent + word], offset, is_first)
                rows[0].append(mine)
                rows[1].append(theirs)
        return rows

    @cute.jit
    def _pick(self, kept, sent, offset: cutlass.Constexpr[int], is_first):
        other = cute.arch.shuffle_sync_bfly(sent, offset=offset)
        return (kept if is_first else other), (other if is_first else kept)

    @cute.jit
    def _add_sizes(self, tables, entries, r: cutlass.Constexpr[int], lane):
        """Of one row: the size of what was added, in 64ths of its unit, how often, and the largest so far."""
        peak = self._peaks[r]
        peak = ptx.larger(peak, cute.arch.shuffle_sync_bfly(peak, offset=1))
        peak = ptx.larger(peak, cute.arch.shuffle_sync_bfly(peak, offset=2))
        row = self._rows[r].to(Int64)
        ptx.add_sizes(
            tables + WORD * (MASS * entries + 2 * row),
            tables + WORD * (COUNT * entries + row),
            tables + WORD * (PEAK * entries + row),
            self._rows[r] >= 0 and lane % 4 == 0,
            self._scales[r],
            peak,
        )

    def epilogue_dQ(self, *arguments: Any) -> None:
        if not self.adds_only:
            Stock.epilogue_dQ(self, *arguments)

    def epilogue_dQ_wg1(self, *arguments: Any) -> None:
        if not self.adds_only:
            Stock.epilogue_dQ_wg1(self, *arguments)


class FixedPointAddsOnly(FixedPoint):
    """As FixedPoint, for the sample and for the second pass: d_q has been written, or will be."""

    adds_only = True


@cache
def main_kernel(dtype: torch.dtype, D: int, D_v: int, H: int, topk: int, has_length: bool, adds_only: bool) -> Any:
    """The compiled kernel, for any S_q and S_k; takes what stock's `__call__` takes, with a batch of one."""
    data = DTYPES[dtype]
    kernel = (FixedPointAddsOnly if adds_only else FixedPoint)(
        data, D, D_v, H,
        tile_m=TILE, tile_n=TILE, num_threads=THREADS, have_topk_length=has_length, max_topk=topk,
    )  # fmt: skip
    return cute.compile(
        kernel,
        *(_fake(data, 4) for _ in ("q", "kv", "d_out")),
        *(_fake(Float32, 3) for _ in ("lse_log2", "D")),
        _fake(data, 4),
        _fake(Float32, 3),
        _fake(Int32, 3),
        _fake(Int32, 2) if has_length else None,
        Float32(1.0),
        make_fake_stream(),
        options="--enable-tvm-ffi",
    )


@cache
def preprocess(dtype: torch.dtype, D_v: int) -> Any:
    """Stock's preprocess, compiled without d_sink: D and the base-2 logarithm of the row sum, sink included."""
    data = DTYPES[dtype]
    kernel = dsa_bwd_sm90._FlashAttentionDSABackwardPreprocessSm90(data, D_v, 90, TILE, num_threads=THREADS)
    return cute.compile(
        kernel,
        _fake(data, 4),
        _fake(data, 4),
        *(_fake(Float32, 3) for _ in ("D", "lse", "lse_log2")),
        _fake(Float32, 1),
        *[None] * 4,
        make_fake_stream(),
        options="--enable-tvm-ffi",
    )


def _fake(dtype: Any, rank: int) -> Any:
    """A tensor of any sizes and row strides; 16-bit rows start at multiples of 16 bytes."""
    divisible = 8 if dtype.width == 16 else 1
    strides = [cute.sym_int64(divisibility=divisible) for _ in range(rank - 1)]
    sizes = tuple(cute.sym_int() for _ in range(rank))
    return make_fake_tensor(dtype, sizes, (*strides, 1), assumed_align=16)
