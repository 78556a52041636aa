"""mHC post: the implementations under test, each with its contract. See the README beside this file."""

from __future__ import annotations

from kernels.mhc_post import contracts, eager, eager_bf16_rounding
from kernels.triton_probe import missing, raising, triton_probe
from numcheck import Available, Capability, KernelSpec, Unavailable
from numcheck.capability import Device
from numcheck.oracles import mhc_post as oracle


def _compiled_bits(device: Device) -> Capability:
    if device == "cuda":
        return Unavailable("on a GPU torch.compile contracts post*x + comb*residual to FMA, so the bits differ there")
    return Available()


EAGER = KernelSpec(
    "mhc_post.eager",
    oracle,
    forward=eager.forward,
    vjp=eager.vjp,
    contract=contracts.EAGER,
    doc="torch operators in FP32, rounded once at the end",
)
# The sums over D of the backward differ between eager and compiled torch, so only the forward claims equal bits.
EAGER_FORWARD = KernelSpec(
    "mhc_post.eager_forward",
    oracle,
    forward=eager.forward,
    contract=contracts.EAGER_FORWARD,
    capability=_compiled_bits,
    compiled=True,
    doc="the eager forward, the same bits under torch.compile",
)
EAGER_BF16_ROUNDING = KernelSpec(
    "mhc_post.eager_bf16_rounding",
    oracle,
    forward=eager_bf16_rounding.forward,
    vjp=eager_bf16_rounding.vjp,
    contract=contracts.BF16_ROUNDING,
    doc="the policy before FP32 coefficients: each intermediate rounded to the data's dtype",
)


def _triton() -> tuple[KernelSpec, ...]:
    try:
        from kernels.mhc_post import fused, split, tuned
    except ImportError as error:
        return _without_triton(error)
    runs = triton_probe(fused.mhc_post_forward)
    both = (fused.mhc_post_forward, fused.mhc_post_backward)
    splits = (fused.mhc_post_forward, split.mhc_post_backward_split)
    return (
        KernelSpec(
            "mhc_post.triton",
            oracle,
            forward=fused.forward,
            vjp=fused.vjp,
            contract=contracts.FUSED,
            must_run=both,
            capability=runs,
            writers=contracts.one_writer,
            doc="fused forward and backward, one program a token",
        ),
        *KernelSpec(
            "mhc_post.triton_tuned",
            oracle,
            forward=tuned.forward,
            vjp=tuned.vjp,
            contract=contracts.FUSED,
            must_run=both,
            capability=runs,
            writers=contracts.one_writer,
            doc="the fused backward, held to one config of its autotuner",
        ).pinned(tuned.backward),
        KernelSpec(
            "mhc_post.triton_split_atomic",
            oracle,
            forward=fused.forward,
            vjp=split.vjp_atomic,
            contract=contracts.SPLIT_ATOMIC,
            must_run=splits,
            capability=runs,
            writers=contracts.split_writers,
            doc="D split over programs; d_post and d_comb by float atomics",
        ),
        KernelSpec(
            "mhc_post.triton_split_ordered",
            oracle,
            forward=fused.forward,
            vjp=split.vjp_ordered,
            contract=contracts.SPLIT_ORDERED,
            must_run=(*splits, split.mhc_post_sum_slots),
            capability=runs,
            writers=contracts.split_writers,
            doc="D split over programs; d_post and d_comb by slots added in order",
        ),
    )


def _without_triton(error: ImportError) -> tuple[KernelSpec, ...]:
    fused = (contracts.FUSED, ("mhc_post_forward", "mhc_post_backward"))
    rows = {
        "mhc_post.triton": fused,
        "mhc_post.triton_tuned": fused,
        "mhc_post.triton_split_atomic": (contracts.SPLIT_ATOMIC, ("mhc_post_forward", "mhc_post_backward_split")),
        "mhc_post.triton_split_ordered": (contracts.SPLIT_ORDERED, ("mhc_post_forward", "mhc_post_backward_split")),
    }
    return tuple(
        KernelSpec(
            name,
            oracle,
            forward=raising(error),
            vjp=raising(error),
            contract=contract,
            must_run=must_run,
            capability=missing("triton", error),
        )
        for name, (contract, must_run) in rows.items()
    )


SPECS: tuple[KernelSpec, ...] = (EAGER, EAGER_FORWARD, EAGER_BF16_ROUNDING, *_triton())
