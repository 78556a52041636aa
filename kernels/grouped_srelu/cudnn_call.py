"""What calls of cuDNN's grouped backwards share: aligned rows in, and the oracle's gradients out of what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.grouped_srelu.call import Call, Tensors
from kernels.grouped_srelu.eager import owners, product
from kernels.grouped_srelu.packing import Places, widened
from kernels.grouped_srelu.tiles import FEATURES, ROWS, cut
from numcheck.determinism import NVTE, Request, requested


@dataclass(frozen=True, eq=False)
class Aligned:
    """A call whose rows are at cuDNN's places. columns: of c, of which more may follow that hold zeros."""

    call: Call
    places: Places

    @classmethod
    def of(cls, call: Call) -> Aligned:
        """The call with each expert's rows at multiples of 256."""
        return cls(call, Places.of(call["tokens"], call["offsets"], call.n.M))

    def arguments(self) -> dict[str, Any]:
        """Keywords of a wrapper that do not depend on the dtype of its GEMM. (m, n, 1), (m, 1, 1) as it wants them."""
        call, places = self.call, self.places
        # Without a routing weight the factor is 1, and what is summed beside it is thrown away.
        prob = call.given["prob"]
        weight = torch.ones_like(call["c"][:, 0], dtype=torch.float32) if prob is None else prob
        start = call.start("d_prob_onto", (call.n.M,))
        return {
            "c_tensor": widened(places.aligned(call["c"])).unsqueeze(-1),
            "padded_offsets": places.ends,
            "alpha_tensor": call["alpha"].contiguous(),
            "prob_tensor": places.aligned(weight).reshape(-1, 1, 1),
            "dprob_tensor": places.aligned(start).reshape(-1, 1, 1),
            "generate_dbias": call.generate_dbias,
            "d_dtype": call["c"].dtype,
        }

    def collected(self, made: Mapping[str, Tensor]) -> Tensors:
        """The gradients: d_c, d_prob and d_bias from what the wrapper made, d_x by a GEMM of torch's."""
        call, n = self.call, self.call.n
        d_c = self.places.back(made["d_row_tensor"][:, : n.columns, 0])
        found = {"d_c": d_c}
        if call.weighted:
            sums = self.places.back(made["dprob_tensor"].reshape(-1))
            found["d_prob"] = torch.where(self.places.target >= 0, sums, call.start("d_prob_onto", (n.M,)))
        if call.generate_dbias:
            # A buffer of its own, in bf16: the wrapper adds onto none of the caller's.
            start = call.start("d_bias_onto", (n.E, n.columns))
            found["d_bias"] = start + made["dbias_tensor"][:, : n.columns, 0].float()
        owner = owners(call["tokens"], call["offsets"], n.M)
        found["d_x"] = product(d_c.float(), call["w1"], owner).to(d_c.dtype)
        return found


def asked(call: Call) -> Request:
    """Who asks for determinism where a sum of this call is shared between programs; nobody where none is.

    d_prob is shared by N tiles, and where one CTA takes several row tiles the order inside a tile changes too. d_bias
    is shared by row tiles.
    """
    several = cut(call.n.M, ROWS) > 1
    shared = (call.weighted and (several or cut(call.n.N, FEATURES) > 1)) or (call.generate_dbias and several)
    return requested(NVTE) if shared else Request()
