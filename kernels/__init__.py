"""The claims under test: implementations, one folder a family. `ALL` lists their specs."""

from __future__ import annotations

from kernels import balance_loss, grouped_srelu, mhc_post, sparse_mla
from numcheck import KernelSpec

ALL: tuple[KernelSpec, ...] = (
    *mhc_post.SPECS,
    *sparse_mla.SPECS,
    *balance_loss.SPECS,
    *grouped_srelu.SPECS,
)
