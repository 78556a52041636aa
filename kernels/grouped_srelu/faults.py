"""Grouped backwards that are broken on purpose, each with the law that must catch it. Nothing of users imports this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.grouped_srelu import SPECS, eager, eager_swiglu, fused
from kernels.grouped_srelu.call import Call, Tensors
from kernels.grouped_srelu.faulty_kernels import grouped_srelu_add_tiles
from kernels.grouped_srelu.tiles import FEATURES, cut, row_tiles
from kernels.triton_probe import device_only
from numcheck import Fault, KernelSpec

_NAMED = {spec.name: spec for spec in SPECS}
EAGER, SWIGLU = _NAMED["grouped_srelu.eager"], _NAMED["grouped_swiglu.eager"]
ATOMIC, SLOTS = _NAMED["grouped_srelu.triton_atomic"], _NAMED["grouped_srelu.triton_slots"]

# A backward by the oracle's names; every fault here is an edit of one.
Backward = Callable[..., Tensors]


def alpha_squared(**given: Any) -> Tensors:
    """alpha applied twice, as the GLU backwards do."""
    return fused.vjp_slots(**given | {"alpha": given["alpha"] * given["alpha"]})


def alpha_once(**given: Any) -> Tensors:
    """alpha applied once where the reference squares it."""
    return eager_swiglu.vjp(**given | {"alpha": given["alpha"].abs().sqrt()})


def beta_twice(**given: Any) -> Tensors:
    """The gradient of c, with beta once more, in place of that of the scaled pre-activation."""
    found = eager_swiglu.vjp(**given)
    owner = eager.owners(given["tokens"], given["offsets"], len(found["d_c"])).clamp(min=0)
    return found | {"d_c": (found["d_c"].float() * given["beta"][owner][:, None]).to(found["d_c"].dtype)}


def gate_and_up_as_halves(**given: Any) -> Tensors:
    """gate taken from the first half of the columns and up from the second, where blocks of 32 alternate."""
    rows, width = given["c"].shape
    pairs = width // (2 * eager_swiglu.BLOCK)

    def regrouped(t: Tensor) -> Tensor:
        return t.reshape(rows, 2, pairs, eager_swiglu.BLOCK).transpose(1, 2).flatten(1, 3)

    def back(t: Tensor) -> Tensor:
        return t.reshape(rows, pairs, 2, eager_swiglu.BLOCK).transpose(1, 2).flatten(1, 3)

    found = eager_swiglu.vjp(**given | {"c": regrouped(given["c"])})
    return found | {"d_c": back(found["d_c"])}


def last_tile_dropped(**given: Any) -> Tensors:
    """The launch covers whole N tiles only: the features left over add nothing to d_prob and d_bias."""
    call = Call.of(given)
    found = call.begun()
    if not call.n.empty:
        parts = max(1, call.n.N // FEATURES)
        fused.run_backward(call, found["d_c"], found.get("d_prob"), found.get("d_bias"), atomic=True, parts=parts)
        fused.run_input_gradient(call, found, None)
    return found


def last_slot_dropped(**given: Any) -> Tensors:
    """Every slot is written, and the sum leaves out the last one where there are several."""
    call = Call.of(given)
    found = fused.slot_gradients(call)
    if call.n.N > FEATURES and "d_prob" in found:
        kept = call.n.N // FEATURES * FEATURES
        kept -= FEATURES if kept == call.n.N else 0
        cut_off = {"c": call["c"][:, :kept], "w1": call["w1"][:, :kept], "w2": call["w2"][:, :kept]}
        found["d_prob"] = fused.vjp_slots(**given | cut_off | _NO_BIAS)["d_prob"]
    return found


def gemm_stored_in_bf16(**given: Any) -> Tensors:
    """The first GEMM's result goes through bf16 on its way to the epilogue, as it does where the two are not fused."""
    call = Call.of(given)
    owner = eager.owners(given["tokens"], given["offsets"], call.n.M)
    r = eager.routed(call, torch.ones_like(given["alpha"]), owner).bfloat16().float()
    scaled = torch.where(owner >= 0, given["alpha"][owner.clamp(min=0)], 0.0)[:, None] * r
    pair = eager.srelu(given.get("tanh_clamp_scale"))
    return eager.gradients(call, pair, eager.of_tokens(given["c"], owner), scaled, owner)


def padding_multiplied_away(**given: Any) -> Tensors:
    """Padding rows multiplied by a mask of zeros: 0 * NaN is NaN."""
    owner = eager.owners(given["tokens"], given["offsets"], len(given["c"]))
    mask = (owner >= 0).to(given["c"].dtype)[:, None]
    found = eager.vjp(**given)
    if "d_bias" in found:
        leak = (given["c"] * mask).float() * 0.0
        found["d_bias"] = found["d_bias"] + leak.sum(0)
    return found


def padding_counted(**given: Any) -> Tensors:
    """An expert's rows taken to be all tokens, padding included."""
    starts = torch.cat([given["offsets"].new_zeros(1), given["offsets"][:-1]])
    return fused.vjp_slots(**given | {"tokens": given["offsets"] - starts})


def fold_mixes_experts(**given: Any) -> Tensors:
    """d_bias's slots folded by a product with ones and zeros: what is not finite in one slot reaches every expert."""
    call = Call.of(given)
    found = fused.slot_gradients(call)
    if call.n.empty or not call.generate_dbias:
        return found
    slots = _bias_slots(call, found)
    tile = torch.arange(len(slots), device=slots.device)
    stops = ((given["tokens"].long() + 127) // 128).cumsum(0)
    starts = torch.cat([stops.new_zeros(1), stops[:-1]])
    ones = ((tile >= starts[:, None]) & (tile < stops[:, None])).float()
    return found | {"d_bias": call.start("d_bias_onto", (call.n.E, call.n.N)) + ones @ slots}


def fold_by_differences(**given: Any) -> Tensors:
    """Each expert's d_bias as the difference of two running sums over all tokens: small experts drown in large ones."""
    found = fused.vjp_slots(**given)
    if "d_bias" in found:
        call = Call.of(given)
        sums = torch.cat([found["d_c"].new_zeros(1, call.n.N).float(), _unrounded(call).cumsum(0)])
        starts = torch.cat([call["offsets"].new_zeros(1), call["offsets"][:-1]]).long()
        onto = call.start("d_bias_onto", (call.n.E, call.n.N))
        found["d_bias"] = onto + (sums[starts + call["tokens"].long()] - sums[starts])
    return found


def bias_rounded_at_every_tile(**given: Any) -> Tensors:
    """d_bias held in bf16: rounded at every row tile, though the contract sums it in FP32."""
    call = Call.of(given)
    found = fused.slot_gradients(call)
    if call.generate_dbias and not call.n.empty:
        slots = _bias_slots(call, found).bfloat16()
        total = torch.zeros((call.n.E, call.n.N), dtype=torch.bfloat16, device=slots.device)
        tile = 0
        for expert, count in enumerate(given["tokens"].tolist()):
            for _ in range(cut(count, 128)):
                total[expert] += slots[tile]
                tile += 1
        found["d_bias"] = call.start("d_bias_onto", (call.n.E, call.n.N)) + total.float()
    return found


def unzeroed_sums(**given: Any) -> Tensors:
    """Atomics onto memory that was never set to what the caller's buffers hold."""
    call = Call.of(given)
    found = call.begun()
    for name in ("d_prob", "d_bias"):
        if name in found:
            found[name] = torch.empty_like(found[name])
    if not call.n.empty:
        fused.run_backward(call, found["d_c"], found.get("d_prob"), found.get("d_bias"), atomic=True)
        fused.run_input_gradient(call, found, None)
    return found


def buffers_overwritten(**given: Any) -> Tensors:
    """The caller's buffers taken to be zero: what other micro-batches have left there is lost."""
    return fused.vjp_slots(**given | {"d_prob_onto": None, "d_bias_onto": None})


def added_in_place(**given: Any) -> Tensors:
    """The sum written into the caller's buffer as well as returned."""
    found = eager.vjp(**given)
    for name in ("d_prob", "d_bias"):
        if name in found:
            given[f"{name}_onto"].copy_(found[name])
    return found


def empty_expert_unwritten(**given: Any) -> Tensors:
    """Experts without tokens are skipped, and their rows of a fresh d_bias returned as they are."""
    found = fused.vjp_slots(**given)
    if "d_bias" in found:
        kept = torch.empty_like(found["d_bias"])
        for expert, count in enumerate(given["tokens"].tolist()):
            if count:
                kept[expert] = found["d_bias"][expert]
        found["d_bias"] = kept
    return found


def clamp_slope_forgotten(**given: Any) -> Tensors:
    """The clamp in the value and not in the gradient: 2 s t in place of 2 s (t - t^3)."""
    s = given.get("tanh_clamp_scale")
    if s is None:
        return eager.vjp(**given)
    call = Call.of(given)
    owner = eager.owners(given["tokens"], given["offsets"], call.n.M)
    pair = (eager.srelu(s)[0], lambda z, r: 2.0 * s * torch.tanh(torch.relu(z) / s) * r)
    z, r = eager.of_tokens(given["c"], owner), eager.routed(call, given["alpha"], owner)
    return eager.gradients(call, pair, z, r, owner)


def relu_of_both_signs(**given: Any) -> Tensors:
    """c squared without the relu."""
    return fused.vjp_slots(**given | {"c": given["c"].abs()})


def zero_prob_is_one(**given: Any) -> Tensors:
    """A routing weight of zero taken for none, and so for 1."""
    prob = given["prob"]
    return fused.vjp_slots(**given | {"prob": None if prob is None else torch.where(prob == 0, 1.0, prob)})


def strides_ignored(**given: Any) -> Tensors:
    """w2 walked as if it were contiguous."""
    w2 = given["w2"]
    dense = torch.empty(w2.shape, device="meta").stride()
    return fused.vjp_slots(**given | {"w2": w2.as_strided(w2.shape, dense, w2.storage_offset())})


def anything_accepted(**given: Any) -> Tensors:
    """Arguments taken as they come: FP64 scales are narrowed without a word."""
    narrowed = {name: given[name] if given[name] is None else given[name].float() for name in ("prob", "alpha")}
    return fused.vjp_slots(**given | narrowed)


def weights_gathered(**given: Any) -> Tensors:
    """Each row's own copy of its expert's weights, [M, N, H]."""
    call = Call.of(given)
    owner = eager.owners(given["tokens"], given["offsets"], call.n.M)
    rows = eager.of_tokens(given["d_out"], owner)[:, :, None]
    gathered = torch.where((owner >= 0)[:, None, None], given["w2"][owner.clamp(min=0)].float(), 0.0)
    scale = torch.where(owner >= 0, given["alpha"][owner.clamp(min=0)], 0.0)[:, None]
    r = scale * (gathered @ rows)[:, :, 0]
    pair = eager.srelu(given.get("tanh_clamp_scale"))
    return eager.gradients(call, pair, eager.of_tokens(given["c"], owner), r, owner)


def silent_fallback(**given: Any) -> Tensors:
    """The fast path raises; the error is swallowed and the slow path answers."""
    try:
        raise RuntimeError("the fused kernel is not available")
    except RuntimeError:
        return eager.vjp(**given)


def deaf_to_determinism(**given: Any) -> Tensors:
    """Atomics whatever was requested: the keyword is accepted and not passed on."""
    return fused.atomic_gradients(Call.of(given))


class _RoutingOfTheLastCall:
    """The rows of each expert are those of the last call before the capture, whatever a replay is given."""

    __name__ = "routing_frozen_in_a_graph"

    def __init__(self) -> None:
        self._routing: dict[str, Tensor] = {}

    def __call__(self, **given: Any) -> Tensors:
        if not torch.cuda.is_current_stream_capturing():
            self._routing = {name: given[name].clone() for name in ("tokens", "offsets")}
        return fused.vjp_slots(**given | self._routing)


def lost_updates(**given: Any) -> Tensors:
    """d_bias by load, add and store, so that row tiles overwrite each other's sums."""
    call = Call.of(given)
    found = fused.slot_gradients(call)
    if call.generate_dbias and not call.n.empty:
        slots, tokens, offsets = _bias_slots(call, found), call["tokens"], call["offsets"]
        found["d_bias"] = call.start("d_bias_onto", (call.n.E, call.n.N))
        grouped_srelu_add_tiles[(row_tiles(call.n.M, call.n.E), cut(call.n.N, FEATURES))](
            slots, tokens, offsets, found["d_bias"], call.n.N, call.n.E, *tokens.stride(), *offsets.stride(),
            **fused.constants(call.n), FEATURES=FEATURES,
        )  # fmt: skip
    return found


_NO_BIAS = {"generate_dbias": False, "d_bias_onto": None}


def _bias_slots(call: Call, found: Tensors) -> Tensor:
    """d_bias's slots once more, in memory that nobody has cleared; found["d_c"] is written again."""
    slots = torch.empty((row_tiles(call.n.M, call.n.E), call.n.N), dtype=torch.float32, device=call["c"].device)
    fused.run_backward(call, found["d_c"], None, slots, atomic=False)
    return slots


def _unrounded(call: Call) -> Tensor:
    """The gradient in the epilogue, in FP32."""
    wide: dict[str, Any] = dict(call.given)
    wide |= {n: t.float() for n, t in wide.items() if t is not None and t.is_floating_point()}
    return eager.vjp(**wide, tanh_clamp_scale=call.clamp)["d_c"]


def _fault(law: str, honest: KernelSpec, backward: Backward, source: str = "", **changes: object) -> Fault:
    family = honest.name.partition(".")[0]
    spec = honest.but(name=f"{family}.fault.{backward.__name__}", vjp=backward, **changes)
    return Fault(spec, law, (backward.__doc__ or "").strip(), source=source, honest=honest)


def _false_claim() -> Fault:
    spec = ATOMIC.claiming(d_prob="fixed", d_bias="fixed").but(name="grouped_srelu.fault.claims_fixed")
    doc = "Atomics that promise a fixed order of their sums."
    return Fault(spec, "bitwise", doc, source="NVIDIA/cudnn-frontend #521", honest=ATOMIC)


_FROZEN = "ROCm/aiter #4494, #4916, #4715; DeepGEMM #451: what a capture saw, replayed on other inputs"
# In a bug that runs other kernels, or none, the evidence law would find that first.
_LOOSE: dict[str, object] = {"must_run": ()}

FAULTS: tuple[Fault, ...] = (
    _false_claim(),
    _fault("bitwise", SLOTS, lost_updates, "fla-org/flash-linear-attention #889"),
    _fault("bitwise", SLOTS, _RoutingOfTheLastCall(), _FROZEN, capability=device_only(SLOTS.capability)),
    _fault("accuracy", SLOTS, alpha_squared, "cudnn-frontend 1.32.0: the reference of its grouped GEMM tests"),
    _fault("accuracy", SWIGLU, alpha_once, "cudnn-frontend 1.32.0: the reference of its grouped GEMM tests"),
    _fault("accuracy", SWIGLU, beta_twice, "cudnn-frontend 1.32.0: the reference of its grouped GEMM tests"),
    _fault("accuracy", SWIGLU, gate_and_up_as_halves, "cudnn-frontend 1.32.0: the reference of its grouped GEMM tests"),
    _fault("accuracy", ATOMIC, last_tile_dropped, "TransformerEngine #3407; DeepGEMM #268"),
    _fault("accuracy", SLOTS, last_slot_dropped, "cudnn-frontend 1.32.0: slots rounded up to a whole cluster"),
    _fault("cancellation", EAGER, gemm_stored_in_bf16, "cudnn-frontend 1.32.0: why GEMM and epilogue are fused"),
    _fault("edges", EAGER, padding_multiplied_away, "tile-ai/tilelang #1939, #894"),
    _fault("edges", SLOTS, padding_counted, "AMD-AGI/Primus-Turbo #397"),
    _fault("edges", SLOTS, fold_mixes_experts, "cudnn-frontend 1.32.0: the fold is a one-hot product"),
    _fault("edges", SLOTS, fold_by_differences, "cudnn-frontend 1.32.0: why its fold is no difference of sums"),
    _fault("accuracy", SLOTS, bias_rounded_at_every_tile, "cudnn-frontend 1.32.0: bf16 red.add at every M tile"),
    _fault("edges", ATOMIC, unzeroed_sums, "cudnn-frontend 1.32.0: the buffer must be zeroed"),
    _fault("accuracy", SLOTS, buffers_overwritten, "TransformerEngine #1488, #2769"),
    _fault("edges", EAGER, added_in_place, "cudnn-frontend 1.32.0: sums onto the caller's buffer"),
    _fault("edges", SLOTS, empty_expert_unwritten, "tgale96/grouped_gemm #36, pytorch #174314"),
    _fault("accuracy", EAGER, clamp_slope_forgotten, "cudnn-frontend 1.32.0: the reference of its grouped GEMM tests"),
    _fault("accuracy", SLOTS, relu_of_both_signs, "cudnn-frontend 1.32.0: the reference of its grouped GEMM tests"),
    _fault("edges", SLOTS, zero_prob_is_one, "cudnn-frontend 1.32.0: prob of zero is no absent prob"),
    _fault("invariance", SLOTS, strides_ignored, "gpu kernels that assume contiguous weights"),
    _fault("edges", SLOTS, anything_accepted, "TransformerEngine #3407: what is not checked is dropped"),
    _fault("memory", EAGER, weights_gathered, "cudnn-frontend 1.32.0: one grouped GEMM, no gathered weights"),
    _fault("evidence", SLOTS, silent_fallback, "xtuner #2260: the test never reached the fused kernel"),
    _fault("evidence", ATOMIC, deaf_to_determinism, "TransformerEngine #3407"),
)
