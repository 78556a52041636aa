"""cuDNN's SM90 backward of sparse MLA with slices of d_kv: no two CTAs that run together add to the same sums.

A launch has as many CTAs as run at once, each a query's tile of heads, and the CTA's whole number names its slice. The
next launch begins where this one has ended, so that a slice's additions come one launch after the other, always of the
same queries; and within a CTA in one order too (`cudnn_sliced_kernel`). At last the slices are added in order. Where
all slices of all KV rows would take more than SLICED_BYTES, the rows are cut into tiles: a pass over all queries each,
with the slots that list a row of the tile, and one pass before them for d_q.

The number of slices follows the device's multiprocessors, and the bits with it: the same on devices of one kind.
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
from kernels.sparse_mla.cudnn_workspace import Slicing, multiprocessors, sliced_bytes, sliced_scratch, slicing
from kernels.sparse_mla.workspace import check

NAME = "sparse_mla.cudnn_sliced"

capability = cudnn_probe.probe(cudnn_probe.SLICED, also=("triton",))


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
    budget: bytes of workspace allowed; None: what the device has free. Raises WorkspaceExceeded where the workspace is
    beyond the budget, and as `cudnn_arguments.sizes` does.
    """
    n = sizes(
        q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
        softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype,
    )  # fmt: skip
    if n.empty:
        return nothing(q, kv, sink)
    with torch.cuda.device(q.device):
        check(NAME, n, sliced_bytes(n, sink is not None), budget, q.device)
        gradients = {"d_q": torch.empty_like(q), "d_kv": torch.empty_like(kv)}
        own_sink = torch.full((n.H,), -math.inf, device=q.device) if sink is None else sink
        if sink is not None:
            gradients["d_sink"] = torch.empty_like(sink)
        cut = slicing(n, multiprocessors())
        scratch = Scratch.of(n, cut, q.device)
        _Call(n, cut, q, kv, topk_idxs, topk_length, own_sink, out, lse, d_out, softmax_scale, scratch).run(gradients)
    return gradients


@dataclass(frozen=True, eq=False)
class Scratch:
    """D and lse_log2 FP32 [1, S_q rounded up, H]; words FP32 [slices, rows D]; of one tile and launch the slots int32
    [queries, topk] and lengths int32 [queries], both empty where there is one tile."""

    D: Tensor
    lse_log2: Tensor
    words: Tensor
    slots: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, n: Sizes, cut: Slicing, device: torch.device) -> Scratch:
        """Cut from one allocation."""
        whole = torch.empty(sliced_scratch(n, cut) // 4, dtype=torch.float32, device=device)
        queries, stride = -(-n.S_q // 64) * 64, cut.rows * n.D
        statistic, words = queries * n.H, cut.slices * stride
        rest = whole[2 * statistic + words :].view(torch.int32)
        several = cut.queries if cut.tiles > 1 else 0
        lengths, slots = rest[: several * 4], rest[several * 4 :]
        return cls(
            whole[:statistic].view(1, queries, n.H),
            whole[statistic : 2 * statistic].view(1, queries, n.H),
            whole[2 * statistic : 2 * statistic + words].view(cut.slices, stride),
            slots[: several * n.topk].view(several, n.topk),
            lengths[:several],
        )


@dataclass(frozen=True, eq=False)
class _Call:
    n: Sizes
    cut: Slicing
    q: Tensor
    kv: Tensor
    topk_idxs: Tensor
    topk_length: Tensor | None
    sink: Tensor
    out: Tensor
    lse: Tensor
    d_out: Tensor
    softmax_scale: float
    scratch: Scratch

    def run(self, gradients: dict[str, Tensor]) -> None:
        from kernels.sparse_mla import cudnn_fixed_kernel, cudnn_fixed_sums

        n, s = self.n, self.scratch
        cudnn_fixed_kernel.preprocess(self.q.dtype, n.D_v)(
            self.out[None], self.d_out[None], s.D, self.lse[None], s.lse_log2, self.sink, *[None] * 4, _stream()
        )
        if self.cut.tiles > 1:
            self._main("queries", slice(0, n.S_q), self.kv, self.topk_idxs, self.topk_length, gradients["d_q"])
        for first in range(0, n.S_k, self.cut.rows):
            self._tile(first, gradients)
        if "d_sink" in gradients:
            cudnn_fixed_sums.sparse_mla_sink_gradient[(n.H,)](
                s.D, self.lse, self.sink, gradients["d_sink"], n.S_q, n.H, BLOCK=1024, BLOCKS=-(-n.S_q // 1024)
            )

    def _tile(self, first: int, gradients: dict[str, Tensor]) -> None:
        """d_kv of the rows from `first` on, and of a single tile d_q too."""
        from kernels.sparse_mla import cudnn_sliced_kernel as kernel
        from kernels.sparse_mla import cudnn_sliced_sums as k

        n, cut, words = self.n, self.cut, self.scratch.words
        kv, d_kv = self.kv[first : first + cut.rows], gradients["d_kv"][first : first + cut.rows]
        words.zero_()
        for start in range(0, n.S_q, cut.queries):
            some = slice(start, min(n.S_q, start + cut.queries))
            index, length = self.topk_idxs[some], None if self.topk_length is None else self.topk_length[some]
            if cut.tiles == 1:
                self._main("both", some, kv, index, length, gradients["d_q"])
                continue
            slots, lengths = self.scratch.slots[: len(index)], self.scratch.lengths[: len(index)]
            given = lengths if length is None else length
            k.sparse_mla_tile_slots[(len(index),)](
                index, given, slots, lengths, first, cut.rows, n.S_k, n.topk, HAS_LENGTH=length is not None
            )
            self._main("adds", some, kv, slots, lengths, gradients["d_q"])
        stride = words.shape[1]
        k.sparse_mla_add_slices[(-(-stride // k.WORDS.value),)](words, stride, cut.slices)
        kernel.postprocess(self.q.dtype, n.D)(words[None, :1], d_kv[None, :, None], len(d_kv), _stream())

    def _main(self, kind: str, some: slice, kv: Tensor, index: Tensor, length: Tensor | None, d_q: Tensor) -> None:
        """One launch over the queries `some`, of which index and length are."""
        from kernels.sparse_mla import cudnn_sliced_kernel as kernel

        n, s = self.n, self.scratch
        # As many slices as this launch has CTAs, so that all of them are as long.
        words = s.words[: len(index) * self.cut.slices // self.cut.queries] if kind != "queries" else s.words[:1]
        run = kernel.main_kernel(self.q.dtype, n.D, n.D_v, n.H, n.topk, length is not None, kind)
        run(
            self.q[None, some],
            kv[None, :, None],
            self.d_out[None, some],
            s.lse_log2[:, some],
            s.D[:, some],
            d_q[None, some],
            words.view(1, 1, -1),
            index[None],
            None if length is None else length[None],
            self.softmax_scale,
            _stream(),
        )


def _stream() -> Any:
    from cuda.bindings import driver

    return driver.CUstream(torch.cuda.current_stream().cuda_stream)
