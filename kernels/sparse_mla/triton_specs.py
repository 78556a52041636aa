"""The Triton specs of sparse MLA: a forward, and three backwards that differ in how d_kv is added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kernels.sparse_mla import triton_contracts as contracts
from kernels.triton_probe import missing, raising, triton_probe
from numcheck import Contract, KernelSpec
from numcheck.oracles import sparse_mla as oracle

# Bits by which the first scale of the judged fixed-point backward is finer than its bound allows, where heads are odd
# in number. Where even there are none, as callers have it: the proof of the first pass all but always holds. With these
# it all but always fails, since the sums of small Cases are near their bounds; they overflow and are added again.
FINER = 2

_CLAIMS: Mapping[str, tuple[Contract, str, tuple[str, ...]]] = {
    "sparse_mla.triton_forward": (
        contracts.FORWARD,
        "two walks over the slots, softmax in FP32, P rounded before PV",
        ("sparse_mla_forward",),
    ),
    "sparse_mla.triton_atomic": (
        contracts.ATOMIC,
        "d_kv by float atomics, in the order of arrival",
        ("sparse_mla_backward_q", "sparse_mla_backward_kv"),
    ),
    "sparse_mla.triton_ordered": (
        contracts.ORDERED,
        "contributions to d_kv staged, sorted by KV row and added in order",
        ("sparse_mla_backward_q", "sparse_mla_keys", "sparse_mla_backward_kv", "sparse_mla_add_segments"),
    ),
    "sparse_mla.triton_fixed_point": (
        contracts.FIXED_POINT,
        "d_kv by integer atomics, with a proof that no sum overflowed; of an odd number of "
        f"heads judged with a first scale {FINER} bits finer than callers get, so that the second pass is judged too",
        (
            "sparse_mla_backward_q",
            "sparse_mla_set_scales",
            "sparse_mla_backward_kv",
            "sparse_mla_prove_sums",
            "sparse_mla_scale_back",
        ),
    ),
}


def _specs() -> tuple[KernelSpec, ...]:
    try:
        from kernels.sparse_mla import atomic, backward, backward_kv, fixed_point, forward, ordered
    except ImportError as error:
        return tuple(_without_triton(name, error) for name in _CLAIMS)

    def judged(**given: Any) -> dict[str, Any]:
        return fixed_point.vjp(**given, finer=FINER * (given["q"].shape[1] % 2))

    modules = (forward, backward, backward_kv, ordered, fixed_point)
    backwards: dict[str, Callable[..., dict[str, Any]]] = {
        "sparse_mla.triton_atomic": atomic.vjp,
        "sparse_mla.triton_ordered": ordered.vjp,
        "sparse_mla.triton_fixed_point": judged,
    }
    return tuple(
        KernelSpec(
            name,
            oracle,
            forward=None if name in backwards else forward.forward,
            vjp=backwards.get(name),
            contract=contract,
            must_run=tuple(next(getattr(m, kernel) for m in modules if hasattr(m, kernel)) for kernel in kernels),
            capability=triton_probe(forward.sparse_mla_forward),
            writers=contracts.writers,
            launches=contracts.launches,
            doc=doc,
        )
        for name, (contract, doc, kernels) in _CLAIMS.items()
    )


def _without_triton(name: str, error: ImportError) -> KernelSpec:
    contract, doc, kernels = _CLAIMS[name]
    forward = name.endswith("forward")
    return KernelSpec(
        name,
        oracle,
        forward=raising(error) if forward else None,
        vjp=None if forward else raising(error),
        contract=contract,
        must_run=kernels,
        capability=missing("triton", error),
        doc=doc,
    )


TRITON: tuple[KernelSpec, ...] = _specs()
