"""The oracles that numcheck ships, each an Oracle value: `from numcheck.oracles import mhc_post`."""

from __future__ import annotations

from numcheck.oracles.mhc_post import mhc_post
from numcheck.oracles.sparse_mla import sparse_mla

__all__ = ["mhc_post", "sparse_mla"]
