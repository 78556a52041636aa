"""mHC post kernels that are broken on purpose, each with the law that must catch it. Nothing of users imports this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.mhc_post import EAGER, SPECS, eager, fused, split
from kernels.mhc_post.arguments import sizes
from kernels.mhc_post.blocks import SPLITS, block_of, blocks_of
from kernels.mhc_post.faulty_kernels import mhc_post_backward_lost_updates, mhc_post_forward_narrow
from kernels.triton_probe import device_only
from numcheck import Fault, KernelSpec

_NAMED = {spec.name: spec for spec in SPECS}
FUSED = _NAMED["mhc_post.triton"]
SPLIT_ATOMIC = _NAMED["mhc_post.triton_split_atomic"]
SPLIT_ORDERED = _NAMED["mhc_post.triton_split_ordered"]

Tensors = dict[str, Tensor]


def transposed_comb(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """comb read as [output, source]."""
    return fused.forward(x, residual, post, comb.transpose(1, 2))


def bf16_coefficients(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """post and comb rounded to bf16, though the contract keeps them in FP32."""
    return fused.forward(x, residual, post.bfloat16().float(), comb.bfloat16().float())


def dropped_tail(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """D cut into whole blocks only: what is left over is never written."""
    return _forward(fused.mhc_post_forward, lambda D, block: D // block, x, residual, post, comb)


def narrow_addresses(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """Offsets in 32 bits, which overflow where a tensor spans 2^31 elements or more."""
    return _forward(mhc_post_forward_narrow, blocks_of, x, residual, post, comb)


def _forward(
    kernel: Any, blocks: Callable[[int, int], int], x: Tensor, residual: Tensor, post: Tensor, comb: Tensor
) -> Tensors:
    """As `fused.forward`, by another kernel or over another number of blocks of D."""
    n = sizes(x, residual, post, comb)
    out = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    if not n.empty:
        strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride())
        block = block_of(n.D)
        kernel[(n.S,)](x, residual, post, comb, out, n.D, *strides, H=n.H, BLOCK=block, BLOCKS=blocks(n.D, block))
    return {"out": out}


def unwritten_last_row(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """A grid that is one program short."""
    n = sizes(x, residual, post, comb)
    out = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    if not n.empty:
        rows = fused.forward(x[:-1], residual[:-1], post[:-1], comb[:-1])["out"] if n.S > 1 else out[:0]
        out[:-1].copy_(rows)
    return {"out": out}


def another_stream(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """Launched on a stream of its own, which waits for nothing and for which nobody waits."""
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        return fused.forward(x, residual, post, comb)


def strides_ignored(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """Every input walked as if it were contiguous."""
    return fused.forward(*(_dense(t) for t in (x, residual, post, comb)))


def aligned_loads(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """Every input taken to start on 16 bytes, as vector loads want it: the storage offset is rounded down."""
    return fused.forward(*(_aligned(t) for t in (x, residual, post, comb)))


def changes_x(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """`float()` copies bf16 data only; for FP32 data it is x itself, which the product in place then changes."""
    result = eager.forward(x, residual, post, comb)
    x.float().mul_(2.0)
    return result


def silent_fallback(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """The fast path raises; the error is swallowed and the slow path answers."""
    try:
        raise RuntimeError("the fused kernel is not available")
    except RuntimeError:
        return eager.forward(x, residual, post, comb)


def all_sources_at_once(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensors:
    """The broadcast form, with a temporary [S, H, H, D]."""
    sizes(x, residual, post, comb)
    mix = (comb[..., None] * residual.float()[:, :, None]).sum(1)
    return {"out": (post[:, :, None] * x.float()[:, None] + mix).to(residual.dtype)}


def lost_updates(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> Tensors:
    """d_post and d_comb by load, add and store, so that programs overwrite each other's sums."""
    n = sizes(x, residual, post, comb, d_out)
    gradients = fused.empty_gradients(x, residual, n)
    if not n.empty:
        gradients["d_post"].zero_()
        gradients["d_comb"].zero_()
        block = block_of(n.D, SPLITS)
        strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride(), *d_out.stride())
        mhc_post_backward_lost_updates[(n.S, blocks_of(n.D, block))](
            x, residual, post, comb, d_out, *gradients.values(), n.D, *strides, H=n.H, BLOCK=block
        )
    return gradients


def unzeroed_sums(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> Tensors:
    """Atomics onto memory that was never set to zero: right on fresh pages, wrong on used ones."""
    n = sizes(x, residual, post, comb, d_out)
    gradients = fused.empty_gradients(x, residual, n)
    if not n.empty:
        block = block_of(n.D, SPLITS)
        blocks = blocks_of(n.D, block)
        strides = (*x.stride(), *residual.stride(), *post.stride(), *comb.stride(), *d_out.stride())
        split.mhc_post_backward_split[(n.S, blocks)](
            x, residual, post, comb, d_out, *gradients.values(), n.D, *strides,
            H=n.H, BLOCK=block, BLOCKS=blocks, ATOMIC=True,
        )  # fmt: skip
    return gradients


_kept: dict[tuple[int, ...], Tensors] = {}


def stale_workspace(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> Tensors:
    """Sums kept from the first call of each shape: right once, and for every repeat of the same values."""
    gradients = split.vjp_ordered(x, residual, post, comb, d_out=d_out)
    first = _kept.setdefault(tuple(residual.shape), {name: t.clone() for name, t in gradients.items()})
    return gradients | {name: first[name].to(x.device).clone() for name in ("d_post", "d_comb")}


def deaf_to_determinism(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor, *, d_out: Tensor) -> Tensors:
    """Atomics whatever was requested: the flag is accepted and not passed on."""
    return split.atomic_gradients(x, residual, post, comb, d_out)


def _dense(tensor: Tensor) -> Tensor:
    strides = torch.empty(tensor.shape, device="meta").stride()
    return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())


def _aligned(tensor: Tensor) -> Tensor:
    lanes = 16 // tensor.element_size()
    return tensor.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() // lanes * lanes)


def _fault(name: str, law: str, source: str, honest: KernelSpec, **broken: object) -> Fault:
    (function,) = (f for part, f in broken.items() if part in ("forward", "vjp"))
    spec = honest.but(**{"name": f"mhc_post.fault.{name}", **broken})
    return Fault(spec, law, (function.__doc__ or "").strip(), source, honest)


def _false_claim() -> Fault:
    spec = SPLIT_ATOMIC.claiming(d_post="fixed", d_comb="fixed").but(name="mhc_post.fault.claims_fixed")
    doc = "Atomics that promise a fixed order of their sums."
    return Fault(spec, "bitwise", doc, "Dao-AILab/flash-attention issue 414: dq by atomics", SPLIT_ATOMIC)


# A bug that keeps the kernels of its honest spec from running would be caught by the evidence law before its own.
_LOOSE = FUSED.but(must_run=())
_THREAD = "xtuner pull request 2260"
_TAIL = "tile-ai/tilelang-ascend issue 890: the tail column"
_UNWRITTEN = "vllm-project/vllm-ascend pull request 12833: a row left unwritten"
_NARROW = "databricks/megablocks pull request 185; flash-linear-attention pull request 1082: int32 offsets"
_OVERWRITTEN = "linkedin/Liger-Kernel issues 272, 1251: inputs overwritten"
_STRIDES = "flash-linear-attention issues 1138, 1139; FlagGems 1082"
_ALIGNED = "tilelang issue 2526: contiguous taken for aligned"
_STALE = "ROCm/aiter issues 4494, 4916: state between calls"
_LOST = "flash-linear-attention issue 889: += without an atomic"
_UNZEROED = "triton-lang/triton issue 7181: memory that is set to zero on some calls alone"
_LOSING = (mhc_post_backward_lost_updates,)
_STREAM = "openvdb/fvdb-core issue 587; TransformerEngine issue 3089: kernels on another stream than the caller's"
_DEAF = "cudnn-frontend pull request 837: a flag accepted and not passed on"

FAULTS: tuple[Fault, ...] = (
    _fault("transposed_comb", "accuracy", f"{_THREAD}: comb's axes", FUSED, forward=transposed_comb),
    _fault("bf16_coefficients", "accuracy", f"{_THREAD}: FP32 coefficients", FUSED, forward=bf16_coefficients),
    _fault(
        "bf16_coefficients_cancel", "cancellation", f"{_THREAD}: 0.003 must survive", FUSED, forward=bf16_coefficients
    ),
    _fault("dropped_tail", "edges", _TAIL, FUSED, forward=dropped_tail),
    _fault("narrow_addresses", "edges", _NARROW, _LOOSE, forward=narrow_addresses),
    _fault("unwritten_last_row", "edges", _UNWRITTEN, _LOOSE, forward=unwritten_last_row),
    _fault("changes_x", "edges", _OVERWRITTEN, EAGER, forward=changes_x),
    _fault("strides_ignored", "invariance", _STRIDES, FUSED, forward=strides_ignored),
    _fault("aligned_loads", "invariance", _ALIGNED, FUSED, forward=aligned_loads),
    _fault("stale_workspace", "invariance", _STALE, SPLIT_ORDERED, vjp=stale_workspace),
    _fault(
        "lost_updates", "bitwise", _LOST, SPLIT_ATOMIC, vjp=lost_updates, must_run=(mhc_post_backward_lost_updates,)
    ),
    _fault(
        "another_stream", "bitwise", _STREAM, FUSED, forward=another_stream, capability=device_only(FUSED.capability)
    ),
    _false_claim(),
    _fault("unzeroed_sums", "edges", _UNZEROED, SPLIT_ATOMIC, vjp=unzeroed_sums),
    _fault("silent_fallback", "evidence", "xtuner pull request 2260, review", FUSED, forward=silent_fallback),
    _fault("deaf_to_determinism", "evidence", _DEAF, SPLIT_ATOMIC, vjp=deaf_to_determinism),
    _fault("all_sources_at_once", "memory", f"{_THREAD}: the broadcast form", EAGER, forward=all_sources_at_once),
)
