"""cuDNN's grouped GEMM dSReLU backward, for SM100: the fused GEMM and epilogue; the second GEMM is torch's.

Stock, it adds d_prob over N tiles by atomics and d_bias over row tiles by packed bf16 atomics, so both depend on the
order of arrival. On request it is called with deterministic=True, which gives each tile a slot of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.grouped_srelu import frontend
from kernels.grouped_srelu.call import Call, Tensors
from kernels.grouped_srelu.cudnn_call import Aligned, asked
from kernels.grouped_srelu.packing import SCALED, packed, scales, widened

NAME = "grouped_gemm_dsrelu_wrapper_sm100"
UPGRADE = (
    f"the installed {NAME} takes no `{frontend.KEYWORD}` argument: upgrade {frontend.PACKAGE} to 1.28.0 or later, or "
    "call grouped_srelu.fused.vjp_slots"
)
UNSUPPORTED = "this call has no deterministic mode there: call grouped_srelu.fused.vjp_slots"


def vjp(
    c: Tensor, prob: Tensor | None, alpha: Tensor, w1: Tensor, w2: Tensor, tokens: Tensor, offsets: Tensor, *,
    d_out: Tensor, d_prob_onto: Tensor | None = None, d_bias_onto: Tensor | None = None,
    generate_dbias: bool = True, tanh_clamp_scale: float | None = None,
) -> Tensors:  # fmt: skip
    """The gradients by cuDNN. d_out and w2 hold 4-bit floats (e2m1), which is checked.

    Raises as `arguments.sizes` does, ImportError where the front-end has no such wrapper, NotDeterministic where
    determinism is requested and the installed wrapper cannot give it.
    """
    call = Call.of(locals())
    if call.n.empty:
        return call.begun()
    aligned = Aligned.of(call)
    arguments = aligned.arguments() | _inputs(aligned)
    if tanh_clamp_scale is not None:
        arguments["tanh_clamp_scale"] = tanh_clamp_scale
    made = frontend.call(
        "grouped_srelu.cudnn_dsrelu", frontend.wrapper(NAME), arguments, asked(call),
        upgrade=UPGRADE, unsupported=UNSUPPORTED,
    )  # fmt: skip
    return aligned.collected(made)


def _inputs(aligned: Aligned) -> dict[str, object]:
    """The GEMM's inputs as 4-bit floats with scale factors of 1: a (m, k, 1), b (n, k, l), both with k contiguous."""
    call = aligned.call
    a, b = widened(aligned.places.aligned(call["d_out"])), widened(call["w2"])
    # As many features as c has columns once it is widened: those that follow are zero.
    b = torch.nn.functional.pad(b, (0, 0, 0, widened(call["c"][:1]).shape[1] - call.n.N))
    groups, features, depth = b.shape
    return {
        "a_tensor": packed(a, "d_out").unsqueeze(-1),
        "b_tensor": packed(b, "w2").permute(1, 2, 0),
        "sfa_tensor": scales(a.shape[0], depth, 1, a.device),
        "sfb_tensor": scales(features, depth, groups, a.device),
        "sf_vec_size": SCALED,
    }
