"""Balance losses that are broken on purpose, each with the law that must catch it. Nothing of users imports this."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from kernels.balance_loss import SPECS, TOPK_EAGER, eager, fused
from kernels.balance_loss.arguments import backward_sizes, forward_sizes
from kernels.balance_loss.faulty_kernels import balance_loss_backward_faulty
from kernels.balance_loss.tiles import Tiles, backward_tiles, forward_tiles
from kernels.triton_probe import device_only
from numcheck import Fault, KernelSpec

Tensors = dict[str, Tensor]

_NAMED = {spec.name: spec for spec in SPECS}
MAP = _NAMED["balance_loss_map.triton"]
TOPK = _NAMED["balance_loss_topk.triton"]
MAP_ATOMIC = _NAMED["balance_loss_map.triton_atomic"]
TOPK_ATOMIC = _NAMED["balance_loss_topk.triton_atomic"]


def _backward(bug: str, given: dict[str, Any]) -> Tensors:
    """The backward of either objective with `bug` in its kernel."""
    n = backward_sizes(**given)
    tensors = (given[name] for name in ("scores", "padding", "denominator", "frequencies", "d_loss", "coefficient"))
    return fused.launch_backward(n, *tensors, given="routing_map" in given, kernel=_Bugged(bug))


class _Bugged:
    """The faulty backward held to one bug, launched as any kernel is."""

    def __init__(self, bug: str) -> None:
        self._bug = bug

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return functools.partial(balance_loss_backward_faulty[grid], BUG=self._bug)


def abs_sum_backward(**given: Any) -> Tensors:
    """The unbiased backward divides by the sum of |scores|, its forward by the plain sum: equal for sigmoid scores."""
    return _backward("sizes summed", given)


def nan_from_padding(**given: Any) -> Tensors:
    """Padding rows are loaded and multiplied by 0, and 0 times NaN is NaN."""
    return _backward("multiplied mask", given)


def closed_clamp(**given: Any) -> Tensors:
    """The clamp passes the gradient of a row whose norm equals its limit, as torch did up to 2.13."""
    return _backward("closed clamp", given)


def padding_pushed(**given: Any) -> Tensors:
    """Padding rows keep their part of the gradient, c / den."""
    return _backward("padding pushed", given)


def squared_denominator(**given: Any) -> Tensors:
    """dot / den^2: for a row of zeros den^2 is 1e-40, which flushes to zero, and 0 / 0 is NaN."""
    return _backward("squared", given)


def coefficient_as_switch(**given: Any) -> Tensors:
    """The coefficient switches the loss on, and does not scale its gradient."""
    return fused.vjp_map(**{**given, "coefficient": float(bool(given["coefficient"]))})


def denominator_unclamped(**given: Any) -> Tensors:
    """Divides by the token count as it is: by 0 on a rank without tokens."""
    outputs = fused.forward_map(**given)
    return outputs | {"loss": outputs["raw"] * given["coefficient"] / given["denominator"]}


def dropped_last_tile(**given: Any) -> Tensors:
    """Tokens are cut into whole tiles only: those left over are in no count and no sum."""
    n = forward_sizes(**given)
    cut = forward_tiles(n.T, n.E)
    whole = n.T // cut.rows
    tiles = cut._replace(parts=max(1, whole // cut.trips))
    return _forward(given, tiles)


class _ReadOnTheHost:
    """The upstream gradient is read on the host; in a graph, where that cannot be, it is what the last call had."""

    __name__ = "upstream_frozen_in_a_graph"

    def __init__(self) -> None:
        self._upstream = 0.0

    def __call__(self, **given: Any) -> Tensors:
        d_loss = given["d_loss"]
        if not torch.cuda.is_current_stream_capturing():
            self._upstream = d_loss.item()
        return fused.vjp_map(**given | {"d_loss": torch.full_like(d_loss, self._upstream)})


def gradient_tail_unwritten(**given: Any) -> Tensors:
    """The backward's grid leaves out the tile with the last tokens, whose gradient is never written."""
    n = backward_sizes(**given)
    tensors = (given[name] for name in ("scores", "padding", "denominator", "frequencies", "d_loss", "coefficient"))
    tiles = backward_tiles(n.T, n.E)
    return fused.launch_backward(n, *tensors, given="routing_map" in given, tiles=max(1, tiles - 1))


def padding_counted(**given: Any) -> Tensors:
    """The map of padding rows is counted too."""
    outputs = fused.forward_map(**given)
    counts = given["routing_map"].sum(0).float()
    frequencies = counts / counts.sum().clamp(min=1.0) * counts.numel()
    return _loss(given, outputs | {"frequencies": frequencies})


def counts_over_k_tokens(**given: Any) -> Tensors:
    """Counts are divided by K T, as if each token took K experts: the map's own sum is not asked."""
    outputs = fused.forward_map(**given)
    chosen = eager.live(given["routing_map"], given["padding"])
    most = int(chosen.sum(1).max()) if chosen.numel() else 0
    frequencies = chosen.sum(0).float() / max(1, most * chosen.shape[0]) * chosen.shape[1]
    return _loss(given, outputs | {"frequencies": frequencies})


def ties_all_chosen(**given: Any) -> Tensors:
    """Whatever is at least the K-th largest score counts as chosen: more than K of equal ones."""
    outputs = fused.forward_topk(**given)
    s = eager.live(given["scores"].float(), given["padding"])
    least = s.topk(given["topk"], dim=-1).values[:, -1:] if s.numel() else s[:, :1]
    counts = eager.live(s >= least, given["padding"]).sum(0).float()
    frequencies = counts / counts.sum().clamp(min=1.0) * counts.numel()
    return _loss(given, outputs | {"frequencies": frequencies})


def largest_by_size(**given: Any) -> Tensors:
    """The K experts of largest |score| are chosen: the same for scores that are not negative."""
    sizes = fused.forward_topk(**{**given, "scores": given["scores"].abs()})
    outputs = fused.forward_topk(**given)
    return _loss(given, outputs | {"frequencies": sizes["frequencies"]})


def rounded_shares(**given: Any) -> Tensors:
    """Normalised scores rounded to bf16 before their sum, though the contract keeps FP32."""
    outputs = fused.forward_map(**given)
    s = eager.live(given["scores"].float(), given["padding"])
    shares = (s / eager.clamped(s.abs().sum(-1))[:, None]).bfloat16().float()
    return _loss(given, outputs | {"mass": shares.sum(0)})


def cancelled_shares(**given: Any) -> Tensors:
    """The same rounding, under the law of sums that cancel."""
    return rounded_shares(**given)


def aligned_loads(**given: Any) -> Tensors:
    """Scores taken to start on 16 bytes, as vector loads want it: the storage offset is rounded down."""
    scores = given["scores"]
    lanes = 16 // scores.element_size()
    aligned = scores.as_strided(scores.shape, scores.stride(), scores.storage_offset() // lanes * lanes)
    return fused.forward_map(**{**given, "scores": aligned})


def strides_ignored(**given: Any) -> Tensors:
    """The routing map walked as if it were contiguous."""
    routing = given["routing_map"]
    dense = routing.as_strided(routing.shape, (routing.shape[1], 1), routing.storage_offset())
    return fused.forward_map(**{**given, "routing_map": dense})


def sums_not_zeroed(**given: Any) -> Tensors:
    """Atomics onto memory that was never set to zero: right on fresh pages, wrong on used ones."""
    n, parts = forward_sizes(**given), _split(given)
    outputs = fused.empty_outputs(n, given["scores"])
    if n.T == 0:
        return {name: t.zero_() for name, t in outputs.items()}
    cut = forward_tiles(n.T, n.E)
    counts = torch.empty((cut.parts, n.E), dtype=torch.int32, device=given["scores"].device)
    tensors = (parts["scores"], parts["routing_map"], parts["padding"], outputs["mass"], counts, parts["topk"])
    fused.add_parts(n, cut, *tensors, atomic=True)
    fused.fold(n, cut, counts, counts, given["denominator"], outputs, given["coefficient"], folded=False)
    return outputs


def deaf_to_determinism(**given: Any) -> Tensors:
    """Atomics whatever was requested."""
    return fused.launch_forward(forward_sizes(**given), **_split(given), atomic=True)


def silent_fallback(**given: Any) -> Tensors:
    """A shape that the fused kernel does not like goes to torch operators, and nobody is told."""
    return eager.forward_topk(**given)


def one_hot_of_all_choices(**given: Any) -> Tensors:
    """The map by a one-hot temporary [T, K, E]."""
    s = eager.live(given["scores"].float(), given["padding"])
    chosen = torch.sort(s, dim=-1, descending=True, stable=True).indices[:, : given["topk"]]
    torch.nn.functional.one_hot(chosen, s.shape[1])
    return eager.forward_topk(**given)


def _split(given: dict[str, Any]) -> dict[str, Any]:
    return {"routing_map": None, "topk": 0} | given


def _forward(given: dict[str, Any], tiles: Tiles) -> Tensors:
    return fused.launch_forward(forward_sizes(**given), **_split(given), tiles=tiles)


def _loss(given: dict[str, Any], outputs: Tensors) -> Tensors:
    """The outputs with raw and loss as their frequencies and mass make them."""
    raw = (outputs["frequencies"] * outputs["mass"]).sum()
    return outputs | {"raw": raw, "loss": raw * given["coefficient"] / given["denominator"].clamp(min=1.0)}


def _fault(function: Any, law: str, honest: KernelSpec, source: str, part: str, **changes: Any) -> Fault:
    """The honest spec with `function` as its `part`."""
    name = f"{honest.oracle.name}.fault.{function.__name__}"
    spec = honest.but(name=name, **{part: function}, **changes)
    return Fault(spec, law, (function.__doc__ or "").strip(), source, honest)


def _false_claim(honest: KernelSpec) -> Fault:
    spec = honest.claiming(mass="fixed").but(name=f"{honest.oracle.name}.fault.claims_fixed")
    doc = "Atomics that promise a fixed order of their sums."
    return Fault(spec, "bitwise", doc, "NVIDIA/Megatron-LM issue 6967: a fused auxiliary loss of other bits", honest)


_PR = "torchtitan pull request 5552"
_FORWARD = (fused.balance_loss_parts, fused.balance_loss_fold)
_BUGGED = (*_FORWARD, balance_loss_backward_faulty)
_CLAMPS = "pytorch pull request 191142, TransformerEngine pull request 3424"
_CHOICE = "xtuner noaux_router: selection scores in place of routing scores"
_FROZEN = "NVIDIA/cudnn-frontend issue 356: .item() of the upstream scalar"
_WIDE = "tilelang issue 2526: contiguous taken for aligned"

FAULTS: tuple[Fault, ...] = (
    _fault(abs_sum_backward, "accuracy", TOPK, f"{_PR}, review", "vjp", must_run=_BUGGED),
    _fault(dropped_last_tile, "accuracy", MAP, f"{_PR}: tails", "forward"),
    _fault(nan_from_padding, "edges", MAP, f"{_PR}: padding", "vjp", must_run=_BUGGED),
    _fault(closed_clamp, "accuracy", MAP, _CLAMPS, "vjp", must_run=_BUGGED),
    _fault(padding_pushed, "accuracy", TOPK, f"{_PR}: padding", "vjp", must_run=_BUGGED),
    _fault(squared_denominator, "accuracy", TOPK, "1e-40 under flush-to-zero", "vjp", must_run=_BUGGED),
    _fault(coefficient_as_switch, "accuracy", MAP, "NVIDIA-NeMo/Automodel issue 1408", "vjp"),
    _fault(denominator_unclamped, "accuracy", MAP, f"{_PR}: token normalisation", "forward"),
    _fault(gradient_tail_unwritten, "edges", MAP, f"{_PR}: tails", "vjp"),
    _fault(padding_counted, "accuracy", MAP, f"{_PR}: padding", "forward"),
    _fault(counts_over_k_tokens, "accuracy", MAP, "huggingface/transformers issue 43775", "forward"),
    _fault(ties_all_chosen, "accuracy", TOPK, f"{_PR}: ties", "forward"),
    _fault(largest_by_size, "accuracy", TOPK, _CHOICE, "forward"),
    _fault(rounded_shares, "accuracy", MAP, "a router in the data's dtype", "forward"),
    _fault(cancelled_shares, "cancellation", MAP, "a router in the data's dtype", "forward"),
    _fault(aligned_loads, "invariance", MAP, _WIDE, "forward"),
    _fault(strides_ignored, "invariance", MAP, _WIDE, "forward"),
    _fault(sums_not_zeroed, "edges", MAP_ATOMIC, "a workspace that is taken to be zero", "forward"),
    _fault(silent_fallback, "evidence", TOPK, f"{_PR}: no fallback to torch operators", "forward"),
    _fault(deaf_to_determinism, "evidence", TOPK_ATOMIC, "a flag that is read and not passed on", "forward"),
    _fault(one_hot_of_all_choices, "memory", TOPK_EAGER, "a one-hot map of every choice", "forward"),
    _fault(_ReadOnTheHost(), "bitwise", MAP, _FROZEN, "vjp", capability=device_only(MAP.capability)),
    _false_claim(MAP_ATOMIC),
    _false_claim(TOPK_ATOMIC),
)
