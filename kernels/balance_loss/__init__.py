"""Balance losses: the implementations under test, each with its contract. See the README beside this file."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from kernels.balance_loss import contracts, eager, native
from kernels.triton_probe import missing, triton_probe
from numcheck import Contract, KernelSpec
from numcheck.oracles import balance_loss_map, balance_loss_topk

KERNELS = ("balance_loss_parts", "balance_loss_fold", "balance_loss_backward")
MAP_EAGER = KernelSpec(
    "balance_loss_map.eager",
    balance_loss_map,
    forward=eager.forward_map,
    vjp=eager.vjp_map,
    contract=contracts.EAGER_MAP,
    doc="torch operators in FP32, strict at the clamp under every torch",
)
MAP_NATIVE = KernelSpec(
    "balance_loss_map.native",
    balance_loss_map,
    forward=native.forward,
    vjp=native.vjp,
    contract=contracts.NATIVE,
    doc="F.normalize differentiated by autograd, with the installed torch's own convention at the clamp",
)
TOPK_EAGER = KernelSpec(
    "balance_loss_topk.eager",
    balance_loss_topk,
    forward=eager.forward_topk,
    vjp=eager.vjp_topk,
    contract=contracts.EAGER_TOPK,
    doc="torch operators in FP32, the first of equal scores",
)


def _triton() -> tuple[KernelSpec, ...]:
    try:
        from kernels.balance_loss import atomic, fused
    except ImportError as error:
        return _without_triton(error)
    kernels = (fused.balance_loss_parts, fused.balance_loss_fold, fused.balance_loss_backward)
    runs = triton_probe(fused.balance_loss_parts)
    problems = (
        (balance_loss_map, fused.forward_map, atomic.forward_map, fused.vjp_map),
        (balance_loss_topk, fused.forward_topk, atomic.forward_topk, fused.vjp_topk),
    )
    return tuple(
        KernelSpec(
            f"{oracle.name}.{name}",
            oracle,
            forward=forward,
            vjp=vjp,
            contract=contract,
            must_run=kernels,
            capability=runs,
            writers=contracts.writers,
            doc=doc,
        )
        for oracle, by_slots, by_atomics, vjp in problems
        for name, forward, contract, doc in (
            ("triton", by_slots, contracts.FUSED, "fused; every sum a balanced tree, parts folded from slots"),
            ("triton_atomic", by_atomics, contracts.ATOMIC, "fused; column sums over parts by float atomics"),
        )
    )


def _without_triton(error: ImportError) -> tuple[KernelSpec, ...]:
    def raising(**inputs: Any) -> dict[str, Tensor]:
        raise error

    rows: tuple[tuple[str, Contract], ...] = (("triton", contracts.FUSED), ("triton_atomic", contracts.ATOMIC))
    return tuple(
        KernelSpec(
            f"{oracle.name}.{name}",
            oracle,
            forward=raising,
            vjp=raising,
            contract=contract,
            must_run=KERNELS,
            capability=missing("triton", error),
        )
        for oracle in (balance_loss_map, balance_loss_topk)
        for name, contract in rows
    )


SPECS: tuple[KernelSpec, ...] = (MAP_EAGER, MAP_NATIVE, TOPK_EAGER, *_triton())
