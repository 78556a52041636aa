"""cuDNN's grouped GEMM dGLU backward (dSwiGLU) of bf16 data, for SM100; the second GEMM is torch's.

d_prob is added over N tiles by atomics, d_bias over row tiles by packed bf16 atomics. The wrapper has had
`deterministic` since 1.32.0, for d_prob of block-scaled data alone: bf16 data raise NotImplementedError, d_bias has no
ordered sum in any version, and without a d_prob the argument is accepted and dropped. So d_bias is refused here.
"""

from __future__ import annotations

from torch import Tensor

from kernels.grouped_srelu import frontend
from kernels.grouped_srelu.call import Call, Tensors
from kernels.grouped_srelu.cudnn_call import Aligned, asked
from kernels.grouped_srelu.eager_swiglu import check_blocks
from kernels.grouped_srelu.packing import widened
from numcheck.determinism import require

NAME = "grouped_gemm_dglu_wrapper_sm100"
KERNEL = "grouped_swiglu.cudnn_dglu"
UPGRADE = (
    f"the installed {NAME} takes no `{frontend.KEYWORD}` argument: upgrade {frontend.PACKAGE} to 1.32.0 or later, or "
    "pass prob=None where every routing weight is 1"
)
UNSUPPORTED = (
    "it orders d_prob of block-scaled data alone: quantise d_out and w2, or call grouped_srelu.eager_swiglu.vjp"
)
NO_BIAS = (
    f"no version of {NAME} adds up d_bias in order, and without d_prob it drops `{frontend.KEYWORD}` without a word: "
    "pass generate_dbias=False and sum d_c over each expert's rows"
)


def vjp(
    c: Tensor, prob: Tensor | None, alpha: Tensor, beta: Tensor, w1: Tensor, w2: Tensor, tokens: Tensor,
    offsets: Tensor, *, d_out: Tensor, d_prob_onto: Tensor | None = None, d_bias_onto: Tensor | None = None,
    generate_dbias: bool = True,
) -> Tensors:  # fmt: skip
    """The gradients by cuDNN, d_c that of beta c. Data are bf16.

    Raises as `arguments.sizes` does, ImportError where the front-end has no such wrapper, NotDeterministic where
    determinism is requested and a sum that programs share has no ordered mode.
    """
    call = Call.of(locals(), width=2)
    check_blocks(call)
    if call.n.empty:
        return call.begun()
    request = asked(call)
    if generate_dbias:
        require(KERNEL, request, remedy=NO_BIAS)
    aligned = Aligned.of(call)
    arguments = aligned.arguments() | {
        "a_tensor": widened(aligned.places.aligned(d_out)).unsqueeze(-1),
        # (n, k, l) with k contiguous.
        "b_tensor": widened(w2).permute(1, 2, 0),
        "sfa_tensor": None,
        "sfb_tensor": None,
        "beta_tensor": beta.contiguous(),
        "act_func": "dswiglu",
    }
    made = frontend.call(KERNEL, frontend.wrapper(NAME), arguments, request, upgrade=UPGRADE, unsupported=UNSUPPORTED)
    return aligned.collected(made)
