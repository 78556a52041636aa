"""Grouped dSReLU and dSwiGLU backwards: the implementations under test. See the README beside this file."""

from __future__ import annotations

from kernels.grouped_srelu import contracts, cudnn_dglu, cudnn_dsrelu, eager, eager_swiglu, frontend
from kernels.triton_probe import missing, raising, triton_probe
from numcheck import Contract, KernelSpec
from numcheck.oracles import grouped_srelu, grouped_swiglu

EAGER = KernelSpec(
    "grouped_srelu.eager",
    grouped_srelu,
    vjp=eager.vjp,
    contract=contracts.EAGER,
    doc="torch operators in FP32, one GEMM an expert",
)
EAGER_SWIGLU = KernelSpec(
    "grouped_swiglu.eager",
    grouped_swiglu,
    vjp=eager_swiglu.vjp,
    contract=contracts.EAGER_SWIGLU,
    doc="torch operators in FP32, one GEMM an expert",
)
CUDNN_DSRELU = KernelSpec(
    "grouped_srelu.cudnn_dsrelu",
    grouped_srelu,
    vjp=cudnn_dsrelu.vjp,
    contract=contracts.CUDNN_DSRELU,
    must_run=("*dsrelu*",),
    capability=frontend.probe(cudnn_dsrelu.NAME),
    writers=contracts.addends,
    doc="cuDNN's grouped GEMM dSReLU for SM100, d_prob and d_bias by atomics unless determinism is requested",
)
CUDNN_DGLU = KernelSpec(
    "grouped_swiglu.cudnn_dglu",
    grouped_swiglu,
    vjp=cudnn_dglu.vjp,
    contract=contracts.CUDNN_DGLU,
    must_run=("*dglu*",),
    capability=frontend.probe(cudnn_dglu.NAME),
    writers=contracts.addends,
    doc="cuDNN's grouped GEMM dSwiGLU for SM100 and bf16 data, d_prob and d_bias by atomics",
)


def _triton() -> tuple[KernelSpec, ...]:
    names = {
        "grouped_srelu.triton_atomic": (contracts.ATOMIC, "d_prob and d_bias by float atomics"),
        "grouped_srelu.triton_slots": (contracts.SLOTS, "d_prob and d_bias by slots added in order"),
    }
    try:
        from kernels.grouped_srelu import backward, fused
    except ImportError as error:
        return tuple(_absent(name, contract, doc, error) for name, (contract, doc) in names.items())
    calls = (fused.vjp_atomic, fused.vjp_slots)
    return tuple(
        KernelSpec(
            name,
            grouped_srelu,
            vjp=call,
            contract=contract,
            must_run=(backward.grouped_srelu_backward, backward.grouped_srelu_input_gradient),
            capability=triton_probe(backward.grouped_srelu_backward),
            writers=contracts.addends,
            doc=f"fused GEMM and epilogue, {doc}",
        )
        for (name, (contract, doc)), call in zip(names.items(), calls, strict=True)
    )


def _absent(name: str, contract: Contract, doc: str, error: ImportError) -> KernelSpec:
    must_run = ("grouped_srelu_backward", "grouped_srelu_input_gradient")
    return KernelSpec(
        name,
        grouped_srelu,
        vjp=raising(error),
        contract=contract,
        must_run=must_run,
        capability=missing("triton", error),
        doc=doc,
    )


SPECS: tuple[KernelSpec, ...] = (EAGER, *_triton(), CUDNN_DSRELU, EAGER_SWIGLU, CUDNN_DGLU)
