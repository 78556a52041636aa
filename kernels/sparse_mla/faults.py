"""Sparse-MLA kernels broken on purpose, each with the law that must catch it. Nothing of users imports this."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from kernels.sparse_mla import EAGER, SPECS, atomic, eager
from kernels.sparse_mla.arguments import vjp_sizes
from kernels.sparse_mla.cudnn_sliced_sums import WORDS, sparse_mla_add_slices
from kernels.sparse_mla.faulty_kernels import sparse_mla_lost_updates, sparse_mla_scatter_slices
from kernels.sparse_mla.halves import Backward
from kernels.sparse_mla.tiles import padded
from numcheck import Fault, KernelSpec

_NAMED = {spec.name: spec for spec in SPECS}
FORWARD = _NAMED["sparse_mla.triton_forward"]
ATOMIC = _NAMED["sparse_mla.triton_atomic"]

Tensors = dict[str, Tensor]
LOG2E = math.log2(math.e)
# CTAs of a launch of the sliced twin; the deployed kernel's number is that of multiprocessors.
CTAS = 4


def duplicates_counted_once(topk_idxs: Tensor, **given: Any) -> Tensors:
    """A mask of KV rows in place of a list of slots: a row that is listed twice counts once."""
    before = topk_idxs[:, :, None] == topk_idxs[:, None, :]
    repeated = before.tril(-1).any(-1)
    return eager.forward(topk_idxs=topk_idxs.masked_fill(repeated, -1), **given)


def base_2_lse(**given: Any) -> Tensors:
    """lse in base 2, as the kernel has it, handed to a backward that takes it as natural."""
    results = eager.forward(**given)
    return results | {"lse": results["lse"] * LOG2E}


def sink_in_lse(sink: Tensor | None, **given: Any) -> Tensors:
    """The sink folded into lse, which is of the KV alone."""
    results = eager.forward(sink=sink, **given)
    return results if sink is None else results | {"lse": torch.logaddexp(results["lse"], sink)}


def holes_read_the_last_row(kv: Tensor, topk_idxs: Tensor, **given: Any) -> Tensors:
    """-1 as Python indexes: the last row."""
    return eager.forward(kv=kv, topk_idxs=torch.where(topk_idxs == -1, len(kv) - 1, topk_idxs), **given)


def length_counts_what_is_live(topk_idxs: Tensor, topk_length: Tensor | None, **given: Any) -> Tensors:
    """topk_length taken as the number of slots that are not -1, which cuts off the tail behind a hole."""
    if topk_length is None:
        topk_length = (topk_idxs != -1).sum(1).int()
    return eager.forward(topk_idxs=topk_idxs, topk_length=topk_length, **given)


def scale_of_the_value(softmax_scale: float, value_dim: int, **given: Any) -> Tensors:
    """1 / sqrt(D_v) in place of the scale that was given."""
    return eager.forward(softmax_scale=value_dim**-0.5, value_dim=value_dim, **given)


def nan_on_dead_rows(**given: Any) -> Tensors:
    """A softmax over nothing but -inf."""
    results = eager.forward(**given)
    dead = torch.isinf(results["lse"])[..., None]
    return results | {"out": results["out"].masked_fill(dead, math.nan)}


def masked_by_a_product(kv: Tensor, topk_idxs: Tensor, **given: Any) -> Tensors:
    """Dead slots multiplied by zero, so that NaN in the row which they read instead is not masked: 0 * NaN."""
    results = eager.forward(kv=kv, topk_idxs=topk_idxs, **given)
    if 0 in (*topk_idxs.shape, len(kv)):
        return results
    read = kv[topk_idxs.clamp(0, len(kv) - 1).long()][..., : given["value_dim"]].sum(1, keepdim=True)
    return results | {"out": results["out"] + 0 * read}


def dead_rows_unwritten(**given: Any) -> Tensors:
    """A kernel that returns early where no slot is live, and leaves what was in the memory."""
    results = eager.forward(**given)
    out = torch.empty(results["out"].shape, dtype=results["out"].dtype, device=results["out"].device)
    alive = ~torch.isinf(results["lse"])
    out[alive] = results["out"][alive]
    return results | {"out": out}


def indices_clamped_in_place(topk_idxs: Tensor, **given: Any) -> Tensors:
    """The caller's indices are clamped for the gather, in place."""
    results = eager.forward(topk_idxs=topk_idxs, **given)
    topk_idxs.clamp_(min=0)
    return results


def strides_ignored(kv: Tensor, **given: Any) -> Tensors:
    """kv walked as if it were contiguous."""
    dense = torch.empty(kv.shape, device="meta").stride()
    return eager.forward(kv=kv.as_strided(kv.shape, dense, kv.storage_offset()), **given)


def silent_fallback(**given: Any) -> Tensors:
    """A shape that the kernel does not like goes to torch operators, and nobody is told."""
    return eager.forward(**given)


def value_as_wide_as_a_key(out: Tensor, d_out: Tensor, q: Tensor, value_dim: int, **given: Any) -> Tensors:
    """V read D wide, and the columns behind D_v of d_kv given a share of d_out: wrong at 576 alone."""
    behind = q.shape[2] - value_dim
    wider = [torch.cat([t, t[..., :behind]], -1) for t in (out, d_out)]
    if behind > value_dim:
        return eager.vjp(q=q, out=out, d_out=d_out, value_dim=value_dim, **given)
    return eager.vjp(q=q, out=wider[0], d_out=wider[1], value_dim=q.shape[2], **given)


def sink_gradient_dropped(**given: Any) -> Tensors:
    """The kernel computes d_sink, the wrapper returns none: zeros."""
    gradients = eager.vjp(**given)
    return gradients | ({"d_sink": torch.zeros_like(gradients["d_sink"])} if "d_sink" in gradients else {})


def sink_share_in_base_2(sink: Tensor | None, lse: Tensor, out: Tensor, d_out: Tensor, **given: Any) -> Tensors:
    """exp2(log2(e) sink - L): for sinks of +inf, and of 2.4e38, which overflow after the factor, inf - inf."""
    gradients = eager.vjp(sink=sink, lse=lse, out=out, d_out=d_out, **given)
    if sink is None:
        return gradients
    L = torch.logaddexp(lse * math.log2(math.e), sink * LOG2E)
    D = (d_out.float() * out.float()).sum(-1)
    return gradients | {"d_sink": -torch.where(torch.isinf(lse), 0.0, torch.exp2(sink * LOG2E - L) * D).sum(0)}


def shares_staged_in_bf16(**given: Any) -> Tensors:
    """Each slot's share of d_kv staged in bf16 before it is added."""

    def add(sums: Tensor, shares: Tensor, rows: Tensor) -> None:
        eager.add_by_row(sums, shares.bfloat16().float(), rows)

    return eager.vjp(add=add, **given)


def sums_in_bf16(**given: Any) -> Tensors:
    """d_kv added up in bf16."""

    def add(sums: Tensor, shares: Tensor, rows: Tensor) -> None:
        more = torch.zeros((len(sums) + 1, sums.shape[1]), dtype=torch.bfloat16, device=sums.device)
        sums += more.index_add_(0, rows, shares.bfloat16())[:-1]

    return eager.vjp(add=add, **given)


def one_hot_product(**given: Any) -> Tensors:
    """d_kv as a product with the slots' one-hot rows, [slots, S_k]."""

    def add(sums: Tensor, shares: Tensor, rows: Tensor) -> None:
        chosen = torch.nn.functional.one_hot(rows, len(sums) + 1)[:, :-1].float()
        sums += chosen.T @ shares

    return eager.vjp(add=add, **given)


def lost_updates(**given: Any) -> Tensors:
    """d_kv by load, add and store, so that slots overwrite each other's sums."""

    def add(sums: Tensor, shares: Tensor, rows: Tensor) -> None:
        if shares.numel():
            width = padded(sums.shape[1])
            sparse_mla_lost_updates[(len(shares),)](shares, rows, sums, len(sums), sums.shape[1], WIDTH=width)

    return eager.vjp(add=add, **given)


def deaf_to_determinism(value_dim: int, d_kv_dtype: str = "data", **given: Any) -> Tensors:
    """Atomics whatever was requested: the flag is accepted and not passed on."""
    vjp_sizes(value_dim=value_dim, d_kv_dtype=d_kv_dtype, **given)
    return atomic.added_by_atomics(Backward.of(value_dim=value_dim, d_kv_dtype=d_kv_dtype, **given))


def whole_cta(cta: int, tiles: int) -> int:
    """`cudnn_sliced`'s own map: no two CTAs of a launch share a slice."""
    return cta


def _kept(kept: list[tuple[Tensor, Tensor]], sums: Tensor, shares: Tensor, rows: Tensor) -> None:
    kept.append((shares.clone(), rows.clone()))


def sliced(
    q: Tensor, kv: Tensor, out: Tensor, lse: Tensor, d_out: Tensor, sink: Tensor | None = None,
    *, owner: Callable[[int, int], int] = whole_cta, **given: Any,
) -> Tensors:  # fmt: skip
    """`cudnn_sliced` on any device, by torch and a Triton scatter, a tile of heads being one head.

    owner(CTA of a launch, tiles of a query) -> the slice that it adds to.
    """
    gradients = eager.vjp(q=q, kv=kv, out=out, lse=lse, d_out=d_out, sink=sink, **given)
    n_q, tiles, D = q.shape
    topk, n_k = given["topk_idxs"].shape[1], len(kv)
    if 0 in (n_q, tiles, topk, n_k):
        return gradients
    shares = torch.empty((n_q, tiles, topk, D), dtype=torch.float32, device=q.device)
    rows = torch.empty((n_q, topk), dtype=torch.int64, device=q.device)
    for h in range(tiles):
        kept: list[tuple[Tensor, Tensor]] = []
        some: dict[str, Any] = {"q": q, "out": out, "lse": lse, "d_out": d_out}
        some = {name: t[:, h : h + 1] for name, t in some.items()} | {"sink": None if sink is None else sink[h : h + 1]}
        eager.vjp(kv=kv, add=partial(_kept, kept), **some, **given)
        shares[:, h] = torch.cat([s for s, _ in kept]).view(n_q, topk, D)
        rows[:] = torch.cat([r for _, r in kept]).view(n_q, topk)
    queries = max(1, CTAS // tiles)
    slices = queries * tiles
    owners = torch.tensor([owner(cta, tiles) for cta in range(slices)], dtype=torch.int32, device=q.device)
    words = torch.zeros((slices, n_k, D), dtype=torch.float32, device=q.device)
    for first in range(0, n_q, queries):
        ctas = min(queries, n_q - first) * tiles
        sparse_mla_scatter_slices[(ctas,)](
            shares, rows, owners, words, first, tiles, topk, n_k, D, SLOTS=16, WIDTH=padded(D)
        )
    sparse_mla_add_slices[(-(-n_k * D // WORDS.value),)](words, n_k * D, slices)
    return gradients | {"d_kv": words[0].to(gradients["d_kv"].dtype)}


def slices_shared_by_head_tiles(**given: Any) -> Tensors:
    """A slice for each query in flight: with two tiles of heads (128 heads on Hopper) two CTAs add to one."""
    return sliced(owner=lambda cta, tiles: cta // tiles, **given)


def _fault(function: Any, law: str, source: str, honest: KernelSpec = EAGER, **changes: Any) -> Fault:
    """The honest spec with `function` as its forward, or as its vjp where it returns gradients."""
    name = f"sparse_mla.fault.{function.__name__}"
    part = "vjp" if function in _BACKWARDS else "forward"
    spec = honest.but(name=name, **{part: function}, **changes)
    return Fault(spec, law, (function.__doc__ or "").strip(), source, honest)


_BACKWARDS = (
    value_as_wide_as_a_key,
    sink_gradient_dropped,
    sink_share_in_base_2,
    shares_staged_in_bf16,
    sums_in_bf16,
    one_hot_product,
    lost_updates,
    deaf_to_determinism,
    slices_shared_by_head_tiles,
)
_THREAD = "xtuner pull request on deterministic DSA backward"
_CLAIM = Fault(
    ATOMIC.claiming(d_kv="fixed").but(name="sparse_mla.fault.claims_fixed"),
    "bitwise",
    "Float atomics that promise a fixed order of d_kv.",
    _THREAD,
    ATOMIC,
)

SLICED = EAGER.but(
    name="sparse_mla.sliced_twin",
    vjp=sliced,
    must_run=(sparse_mla_scatter_slices, sparse_mla_add_slices),
    capability=ATOMIC.capability,
)

FAULTS: tuple[Fault, ...] = (
    _fault(duplicates_counted_once, "accuracy", "a test helper of cudnn-frontend; many torch references"),
    _fault(base_2_lse, "accuracy", "sglang 33064, 35045, 40903, vllm 47079, flashinfer 2113"),
    _fault(sink_in_lse, "accuracy", "FlashMLA and cudnn-frontend DSA: a sink folded into lse"),
    _fault(holes_read_the_last_row, "accuracy", "xtuner adapter: a -1 row read behind a cut length"),
    _fault(length_counts_what_is_live, "accuracy", "xtuner adapter: topk_length = count(idx != -1)"),
    _fault(scale_of_the_value, "accuracy", "FlashMLA and cudnn-frontend DSA: the scale is that of the QK width"),
    _fault(value_as_wide_as_a_key, "accuracy", "XunhaoLai/native-sparse-attention-triton 27"),
    _fault(sink_gradient_dropped, "accuracy", "ISEEKYAN/Megatron-LM 205"),
    _fault(shares_staged_in_bf16, "accuracy", f"{_THREAD}: contributions staged in bf16"),
    _fault(sums_in_bf16, "cancellation", "linkedin/Liger-Kernel 512, 830, 1391"),
    _fault(nan_on_dead_rows, "edges", "NVIDIA-NeMo/Automodel 2826; xtuner's torch reference"),
    _fault(masked_by_a_product, "edges", "faults, pattern 3: 0 * NaN"),
    _fault(dead_rows_unwritten, "edges", "FlashMLA and cudnn-frontend DSA: the all-invalid row"),
    _fault(indices_clamped_in_place, "edges", "cudnn-frontend 571, 572: inputs overwritten"),
    _fault(sink_share_in_base_2, "edges", "cudnn-frontend 940, 1048, 926"),
    _fault(strides_ignored, "invariance", "FlagGems 1082"),
    _fault(lost_updates, "bitwise", "load, add, store for an atomic", ATOMIC, must_run=(sparse_mla_lost_updates,)),
    _fault(slices_shared_by_head_tiles, "bitwise", f"{_THREAD}: slices by query, shared at 128 heads", SLICED),
    _CLAIM,
    _fault(silent_fallback, "evidence", f"{_THREAD}: a slower implementation instead of an error", FORWARD),
    _fault(deaf_to_determinism, "evidence", f"{_THREAD}: the stock kernel under XTUNER_DETERMINISTIC", ATOMIC),
    _fault(one_hot_product, "memory", "a workspace that grows with S_k"),
)
