"""The oracles that numcheck ships, each an Oracle value: `from numcheck.oracles import mhc_post`."""

from __future__ import annotations

from numcheck.oracles.balance_loss import balance_loss_map, balance_loss_topk
from numcheck.oracles.mhc_post import mhc_post
from numcheck.oracles.sparse_mla import sparse_mla

__all__ = ["balance_loss_map", "balance_loss_topk", "mhc_post", "sparse_mla"]
