"""Sparse MLA: the implementations under test, each with its contract. See the README beside this file."""

from __future__ import annotations

from kernels.sparse_mla import contracts, cudnn, eager
from kernels.sparse_mla.triton_specs import TRITON
from numcheck import KernelSpec
from numcheck.oracles import sparse_mla as oracle

EAGER = KernelSpec(
    "sparse_mla.eager",
    oracle,
    forward=eager.forward,
    vjp=eager.vjp,
    contract=contracts.EAGER,
    doc="torch operators in FP32, d_kv summed in order, rounded once at the end",
)

SPECS: tuple[KernelSpec, ...] = (EAGER, *TRITON, *cudnn.SPECS)
