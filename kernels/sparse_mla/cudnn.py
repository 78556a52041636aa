"""The cuDNN specs of sparse MLA: importable everywhere, run where `cudnn_probe` says so."""

from __future__ import annotations

from kernels.sparse_mla import cudnn_contracts, cudnn_fixed_point, cudnn_sliced, cudnn_stock
from numcheck import KernelSpec
from numcheck.oracles import sparse_mla as oracle

STOCK = KernelSpec(
    "sparse_mla.cudnn_stock",
    oracle,
    vjp=cudnn_stock.vjp,
    contract=cudnn_contracts.STOCK,
    must_run=("*FlashAttentionDSABackwardSm90*",),
    capability=cudnn_stock.capability,
    writers=cudnn_contracts.writers,
    doc="the installed cuDNN front-end's SM90 backward; d_kv and d_sink by float atomics",
)

FIXED_POINT = KernelSpec(
    "sparse_mla.cudnn_fixed_point",
    oracle,
    vjp=cudnn_fixed_point.vjp,
    contract=cudnn_contracts.FIXED_POINT,
    must_run=("*cudnn_fixed_kernel*FixedPoint*", "*sparse_mla_prove_sums*"),
    capability=cudnn_fixed_point.capability,
    writers=cudnn_contracts.writers,
    agrees={"d_q": STOCK},
    doc="cuDNN's SM90 backward with d_kv scattered as integers, a proof on the device, a second pass where it fails",
)

SLICED = KernelSpec(
    "sparse_mla.cudnn_sliced",
    oracle,
    vjp=cudnn_sliced.vjp,
    contract=cudnn_contracts.SLICED,
    must_run=("*cudnn_sliced_kernel*Sliced*", "*sparse_mla_add_slices*"),
    capability=cudnn_sliced.capability,
    writers=cudnn_contracts.writers,
    agrees={"d_q": STOCK},
    doc="cuDNN's SM90 backward, each CTA in flight adding to sums of its own, which are then added in order",
)

SPECS: tuple[KernelSpec, ...] = (STOCK, FIXED_POINT, SLICED)
