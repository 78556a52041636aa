"""The oracles that numcheck ships, each an Oracle value: `from numcheck.oracles import mhc_post`."""

from __future__ import annotations

from numcheck.oracles.balance_loss import balance_loss_map, balance_loss_topk
from numcheck.oracles.grouped_srelu import grouped_srelu
from numcheck.oracles.grouped_swiglu import grouped_swiglu
from numcheck.oracles.mhc_post import mhc_post
from numcheck.oracles.sparse_mla import sparse_mla

__all__ = ["balance_loss_map", "balance_loss_topk", "grouped_srelu", "grouped_swiglu", "mhc_post", "sparse_mla"]
