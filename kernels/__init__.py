"""The claims under test: implementations, one folder a family. `ALL` lists their specs."""

from __future__ import annotations

from kernels import grouped_srelu, mhc_post
from numcheck import KernelSpec

ALL: tuple[KernelSpec, ...] = (*mhc_post.SPECS, *grouped_srelu.SPECS)
