"""Launches of the two halves of the backward, which every way of adding up d_kv shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from kernels.sparse_mla.arguments import Sizes, d_kv_torch_dtype, optional, vjp_sizes
from kernels.sparse_mla.backward import sparse_mla_backward_q, sparse_mla_fold_sink
from kernels.sparse_mla.backward_kv import sparse_mla_backward_kv
from kernels.sparse_mla.tiles import Tiles, blocks_of, tiles_of

# Heads and queries of the tile in which d_sink is folded: 16 KiB of FP32, wide enough to hide a load's latency.
FOLD_HEADS, FOLD_QUERIES = 32, 128


class Scales(NamedTuple):
    """What integer sums need: sums of sizes [S_k, 8] int64, scales [S_k] int32, rows to try again [S_k + 1] int32."""

    buckets: Tensor | None
    exponents: Tensor | None
    retries: Tensor | None


NO_SCALES = Scales(None, None, None)


@dataclass(frozen=True)
class Backward:
    """One checked call: its tensors, sizes and tiles."""

    q: Tensor
    kv: Tensor
    topk_idxs: Tensor
    topk_length: Tensor | None
    sink: Tensor | None
    out: Tensor
    lse: Tensor
    d_out: Tensor
    softmax_scale: float
    d_kv_dtype: torch.dtype
    n: Sizes
    cut: Tiles

    @classmethod
    def of(
        cls,
        q: Tensor,
        kv: Tensor,
        topk_idxs: Tensor,
        topk_length: Tensor | None,
        sink: Tensor | None,
        out: Tensor,
        lse: Tensor,
        d_out: Tensor,
        softmax_scale: float,
        value_dim: int,
        d_kv_dtype: str,
    ) -> Backward:
        """The call, checked; raises as `arguments.vjp_sizes` and `tiles.tiles_of` do."""
        n = vjp_sizes(
            q, kv, topk_idxs, topk_length, sink, out, lse, d_out,
            softmax_scale=softmax_scale, value_dim=value_dim, d_kv_dtype=d_kv_dtype,
        )  # fmt: skip
        cut = tiles_of(n, q.element_size())
        dtype = d_kv_torch_dtype(q, d_kv_dtype)
        return cls(q, kv, topk_idxs, topk_length, sink, out, lse, d_out, float(softmax_scale), dtype, n, cut)

    @property
    def blocks(self) -> int:
        """Blocks of heads: programs that share a query."""
        return blocks_of(self.n, self.q.element_size())

    def empty_d_kv(self) -> Tensor:
        """d_kv, to be written."""
        return torch.empty((self.n.S_k, self.n.D), dtype=self.d_kv_dtype, device=self.q.device)

    def nothing(self) -> dict[str, Tensor]:
        """The gradients where no slot is live."""
        gradients = {"d_q": torch.zeros(self.q.shape, dtype=self.q.dtype, device=self.q.device)}
        gradients["d_kv"] = self.empty_d_kv().zero_()
        if self.sink is not None:
            gradients["d_sink"] = torch.zeros((self.n.H,), dtype=torch.float32, device=self.q.device)
        return gradients

    def query_half(self, buckets: Tensor | None = None) -> tuple[dict[str, Tensor], Tensor]:
        """d_q and, where there is a sink, d_sink; and D [S_q, H] in FP32 for `kv_half`.

        buckets: int64 [S_k, 8] of zeros, into which sizes of the contributions to each KV row are summed.
        """
        n, cut = self.n, self.cut
        d_q = torch.empty((n.S_q, n.H, n.D), dtype=self.q.dtype, device=self.q.device)
        delta = torch.empty((n.S_q, n.H), dtype=torch.float32, device=self.q.device)
        sparse_mla_backward_q[(n.S_q * self.blocks,)](
            *self._listed(), self.out, self.lse, self.d_out, d_q, delta, buckets,
            n.S_k, n.H, n.D, n.D_v, n.topk, *self.optional, self.softmax_scale,
            *self._strides(), *self.out.stride(), *self.lse.stride(), *self.d_out.stride(),
            HEADS=cut.heads, SLOTS=cut.slots, VALUE=cut.value, TAIL=cut.tail,
            BOUND=buckets is not None,
            num_warps=cut.warps, num_stages=cut.stages,
        )  # fmt: skip
        gradients = {"d_q": d_q}
        if self.sink is not None:
            gradients["d_sink"] = torch.empty((n.H,), dtype=torch.float32, device=self.q.device)
            sparse_mla_fold_sink[(triton.cdiv(n.H, FOLD_HEADS),)](
                self.lse, self.sink, delta, gradients["d_sink"], n.S_q, n.H,
                *self.lse.stride(), self.sink.stride(0), QUERIES=FOLD_QUERIES, HEADS=FOLD_HEADS,
            )  # fmt: skip
        return gradients, delta

    def kv_half(
        self,
        mode: int,
        delta: Tensor,
        sums: Tensor,
        *,
        first: int = 0,
        queries: int | None = None,
        scales: Scales = NO_SCALES,
        again: bool = False,
    ) -> None:
        """Send the rows of d_kv of `queries` queries from `first` on into `sums`, as `backward_kv`'s modes say.

        scales: for integer sums. again: add those of the KV rows alone that are to be tried again.
        """
        n, cut = self.n, self.cut
        sparse_mla_backward_kv[((n.S_q if queries is None else queries) * self.blocks,)](
            *self._listed(), self.lse, self.d_out, delta, sums, *scales,
            first, n.S_k, n.H, n.D, n.D_v, n.topk, *self.optional, self.softmax_scale,
            *self._strides(), *self.lse.stride(), *self.d_out.stride(),
            HEADS=cut.heads, SLOTS=cut.slots, WIDTH=cut.width, CHUNKS=triton.cdiv(n.D, cut.width),
            VALUES=triton.cdiv(n.D_v, cut.width),
            MODE=mode, AGAIN=again,
            num_warps=cut.warps, num_stages=cut.stages,
        )  # fmt: skip

    @property
    def optional(self) -> tuple[int, int]:
        """Queries with a length and heads with a sink."""
        return optional(self.n, self.topk_length, self.sink)

    def _listed(self) -> tuple[Tensor, ...]:
        """q, kv, indices, lengths and sinks; in place of what is not given, a tensor of its dtype that nobody reads."""
        length = self.topk_idxs if self.topk_length is None else self.topk_length
        return self.q, self.kv, self.topk_idxs, length, self.lse if self.sink is None else self.sink

    def _strides(self) -> tuple[int, ...]:
        length = 0 if self.topk_length is None else self.topk_length.stride(0)
        sink = 0 if self.sink is None else self.sink.stride(0)
        return (*self.q.stride(), *self.kv.stride(), *self.topk_idxs.stride(), length, sink)
