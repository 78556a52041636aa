"""The claims under test: implementations, one folder a family. `ALL` lists their specs."""

from __future__ import annotations

from kernels import mhc_post, sparse_mla
from numcheck import KernelSpec

ALL: tuple[KernelSpec, ...] = (*mhc_post.SPECS, *sparse_mla.SPECS)
