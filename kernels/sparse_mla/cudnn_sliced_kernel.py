"""The installed SM90 kernel with slices of d_kv: each CTA of a launch adds to FP32 sums of its own.

A subclass of `FlashAttentionDSABackwardSm90` that changes only where `scatter_dkv_atomic` adds, by calling the
installed one with other arguments. Slots of one CTA that list the same row share its sums, and two lanes' additions to
one address come in any order. Within a block of 64 slots, which all lanes scatter together, such slots are combined
first: they have the same keys, hence the same P and dS, hence the same contribution to the bit, so that the first of m
adds m times its own and the others add nothing. From one block to the next barriers of the whole CTA lie between.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
import torch
from cudnn.deepseek_sparse_attention.sparse_attention_backward import dsa_bwd_sm90
from cudnn.deepseek_sparse_attention.utils.sm90.primitives import make_acc_tensor_mn_view
from cutlass import Float32, Int32, Int64, const_expr
from cutlass.cute.runtime import make_fake_stream

from kernels.sparse_mla import cudnn_fixed_ptx as ptx
from kernels.sparse_mla.cudnn_fixed_kernel import COLUMNS, DTYPES, ROWS, SHARED_WORDS, THREADS, TILE, WORD, Stock, _fake

# Lanes that hold the same rows of a 64-column chunk; they share the comparison of a row with the block's others.
SHARERS = 4
# What stands for the row of a slot that adds nothing.
NOTHING = -1


class Sliced(Stock):  # type: ignore[misc]
    """Stock's backward with each CTA's additions to d_kv in a slice of its own; adds_only: d_q is left alone."""

    adds_only = False

    def mma_wg0(self, *arguments: Any) -> None:
        # 64 words of shared memory that are free from here on; see `cudnn_fixed_kernel`.
        self._adding = arguments[SHARED_WORDS].iterator
        Stock.mma_wg0(self, *arguments)

    @cute.jit
    def scatter_dkv_atomic(
        self, acc, chunk_idx: cutlass.Constexpr[int], mTopkIdxs_cur, mdKVaccum_cur, n_block, topK, max_seqlen_kv,
        thr_mma, tidx,
    ):  # fmt: skip
        """Adds a 64-column chunk of 64 slots to this CTA's slice, each row once."""
        assert not self.dKV_swapAB, "a lane's rows follow the layout of the (slots, columns) tile"
        slots = make_acc_tensor_mn_view(thr_mma.partition_C(cute.make_identity_tensor((self.tile_n, self.hdim_chunk))))
        values = make_acc_tensor_mn_view(acc)
        lane, warp = tidx % 32, tidx % 128 // 32
        if const_expr(chunk_idx == 0):
            # Kept while one block of slots is traced: its chunks follow one another in one piece of straight code.
            self._times = []
            cute.arch.sync_warp()
            for r in cutlass.range_constexpr(ROWS):
                slot = slots[r, 0][0]
                row = self._row(slot, mTopkIdxs_cur, n_block, topK, max_seqlen_kv)
                alike, before = self._alike(slot, row, mTopkIdxs_cur, n_block, topK, lane)
                self._times.append(alike.to(Float32))
                adding = row if before == 0 else Int32(NOTHING)
                ptx.store(Int32(self._adding.toint()) + (warp * 16 + r * 8 + lane // 4) * WORD, adding, lane % 4 == 0)
            cute.arch.sync_warp()
        for r in cutlass.range_constexpr(ROWS):
            for c in cutlass.range_constexpr(COLUMNS):
                values[r, c] = values[r, c] * self._times[r]
        words = cute.recast_ptr(self._adding, dtype=Int32)
        rows = cute.make_tensor(words, cute.make_layout((self.tile_n,)))
        Stock.scatter_dkv_atomic(
            self, acc, chunk_idx, rows, self._slice(mdKVaccum_cur), Int32(0), Int32(self.tile_n), max_seqlen_kv,
            thr_mma, tidx,
        )  # fmt: skip

    @cute.jit
    def _slice(self, sums):
        """The sums of this CTA: as many in the grid, so many slices."""
        x, y, z = cute.arch.block_idx()
        width, height, depth = cute.arch.grid_dim()
        own = (x + width * (y + height * z)).to(Int64)
        stride = cute.size(sums).to(Int64) // (width * height * depth).to(Int64)
        return cute.make_tensor(sums.iterator + own * stride, sums.layout)

    @cute.jit
    def _row(self, slot, mTopkIdxs_cur, n_block, topK, max_seqlen_kv):
        """The KV row that a slot of this block lists, NOTHING where it is dead."""
        at = n_block * self.tile_n + slot
        row = Int32(NOTHING)
        if at < topK:
            row = mTopkIdxs_cur[at]
        if row >= max_seqlen_kv or row < 0:
            row = Int32(NOTHING)
        return row

    @cute.jit
    def _alike(self, slot, row, mTopkIdxs_cur, n_block, topK, lane):
        """How many slots of the block list this row, and how many before this one; each of four lanes asks a part."""
        alike, before = Int32(0), Int32(0)
        for k in cutlass.range(TILE // SHARERS, unroll_full=True):
            other = k * SHARERS + lane % SHARERS
            at = n_block * self.tile_n + other
            listed = Int32(NOTHING - 1)
            if at < topK:
                listed = mTopkIdxs_cur[at]
            if listed == row:
                alike += 1
                if other < slot:
                    before += 1
        for offset in cutlass.range_constexpr(1, SHARERS, 1):
            if const_expr(offset in (1, 2)):
                alike += cute.arch.shuffle_sync_bfly(alike, offset=offset)
                before += cute.arch.shuffle_sync_bfly(before, offset=offset)
        return alike, before

    def epilogue_dQ(self, *arguments: Any) -> None:
        if not self.adds_only:
            Stock.epilogue_dQ(self, *arguments)

    def epilogue_dQ_wg1(self, *arguments: Any) -> None:
        if not self.adds_only:
            Stock.epilogue_dQ_wg1(self, *arguments)


class SlicedAddsOnly(Sliced):
    """As Sliced, for a tile of the KV rows: d_q is written by another pass."""

    adds_only = True


class QueriesOnly(Stock):  # type: ignore[misc]
    """Stock's backward without d_kv."""

    def scatter_dkv_atomic(self, *arguments: Any) -> None:
        return None


KINDS: dict[str, Any] = {"both": Sliced, "adds": SlicedAddsOnly, "queries": QueriesOnly}


@cache
def main_kernel(dtype: torch.dtype, D: int, D_v: int, H: int, topk: int, has_length: bool, kind: str) -> Any:
    """The compiled kernel, for any S_q and S_k; takes what stock's `__call__` takes, with a batch of one."""
    data = DTYPES[dtype]
    kernel = KINDS[kind](
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
def postprocess(dtype: torch.dtype, D: int) -> Any:
    """Stock's postprocess: FP32 sums, whose columns lie as its scatter puts them, to d_kv."""
    chunk = TILE if D == 576 else 128
    kernel = dsa_bwd_sm90._FlashAttentionDSABackwardPostprocessSm90(
        DTYPES[dtype], hdim_chunk=chunk, tile_n=TILE, head_dim=D, num_threads=chunk, N_hdim_chunks=D // chunk
    )
    return cute.compile(
        kernel, _fake(Float32, 3), _fake(DTYPES[dtype], 4), Int32(1), make_fake_stream(), options="--enable-tvm-ffi"
    )
