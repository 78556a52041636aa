"""mHC post kernels against plain FP64 einsums, written here and nowhere else, on values that numcheck did not draw."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import kernels
from kernels.mhc_post import arguments, blocks, contracts, eager, eager_bf16_rounding
from numcheck import Case, KernelSpec
from numcheck.errors import NotDeterministic
from numcheck.execute import execute
from numcheck.oracles import mhc_post
from numcheck.sample import Sample, place, sample
from numcheck.ulp import dtype_name

NAMES = ("x", "residual", "post", "comb", "d_out")
MHC_POST = [spec for spec in kernels.ALL if spec.oracle is mhc_post]
SPECS = {spec.name: spec for spec in MHC_POST}
U32, U16 = 2.0**-24, 2.0**-8
REPORTED = next(c for c in mhc_post.cancellations if c.name == "reported")


def tensors(S: int, H: int, D: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    made = (normal(S, D), normal(S, H, D), 2 * normal(S, H).sigmoid(), normal(S, H, H).softmax(1), normal(S, H, D))
    data = ("x", "residual", "d_out")
    return {n: t.to(dtype) if n in data else t for n, t in zip(NAMES, made, strict=True)}


def laid_out(given: dict[str, Tensor], layout: str, offset: int) -> dict[str, Tensor]:
    return {name: place(t, layout, offset) for name, t in given.items()}


def exactly(given: dict[str, Tensor], sign: Callable[[Tensor], Tensor] = lambda t: t) -> dict[str, Tensor]:
    """The outputs in FP64; with `sign=torch.abs`, the summed size of their terms."""
    x, residual, post, comb, g = (sign(given[name].double()) for name in NAMES)
    return {
        "out": torch.einsum("to,td->tod", post, x) + torch.einsum("tso,tsd->tod", comb, residual),
        "d_x": torch.einsum("to,tod->td", post, g),
        "d_residual": torch.einsum("tso,tod->tsd", comb, g),
        "d_post": torch.einsum("td,tod->to", x, g),
        "d_comb": torch.einsum("tsd,tod->tso", residual, g),
    }


def run(spec: KernelSpec, given: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the spec computes, in the repaired interpreter where it is Triton's."""
    inputs = {name: given[name] for name in NAMES[:-1]}
    S, H, D = given["residual"].shape
    case = Case.of(S=S, H=H, D=D, dtype=dtype_name(given["residual"].dtype))
    done = execute(spec, Sample(case, inputs, {"d_out": given["d_out"]}))
    assert not done.error
    assert not done.findings
    return dict(done.outputs)


def assert_right(spec: KernelSpec, given: dict[str, Tensor]) -> None:
    """Each element within the roundings of its cast and of its terms, at most H + 1 or D of them in FP32."""
    exact, size = exactly(given), exactly(given, torch.abs)
    D, bf16 = given["x"].shape[-1], given["x"].dtype == torch.bfloat16
    # The old policy rounds a coefficient, a product or mix, and a coefficient's gradient.
    early = 4 * U16 if "bf16_rounding" in spec.name and bf16 else 0.0
    for name, got in run(spec, given).items():
        cast = U16 if got.dtype == torch.bfloat16 else 0.0
        allowed = cast * exact[name].abs() + ((D + 10) * U32 + early) * size[name]
        assert got.shape == exact[name].shape
        assert bool(((got.double() - exact[name]).abs() <= allowed).all()), name


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
@pytest.mark.parametrize("size", [(1, 1, 1), (1, 1, 33), (2, 8, 31), (3, 2, 257)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_outputs_are_the_formula(spec: KernelSpec, size: tuple[int, int, int], dtype: torch.dtype) -> None:
    assert_right(spec, tensors(*size, dtype))


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
def test_long_rows(spec: KernelSpec) -> None:
    assert_right(spec, tensors(1, 4, 2053, torch.bfloat16))


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
@pytest.mark.parametrize(("layout", "offset"), [("strided", 0), ("strided", 3), ("contiguous", 1)])
def test_strides_and_offsets_change_no_bit(spec: KernelSpec, layout: str, offset: int) -> None:
    given = tensors(2, 4, 40, torch.bfloat16)
    expected = run(spec, given)
    for name, got in run(spec, laid_out(given, layout, offset)).items():
        assert torch.equal(got, expected[name]), name


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
def test_expanded_inputs(spec: KernelSpec) -> None:
    """Strides of zero: one residual row and one cotangent row for all streams."""
    given = tensors(2, 4, 20)
    shared = {n: t[:, :1].expand_as(t) if n in ("residual", "d_out") else t for n, t in given.items()}
    expected = exactly(shared)
    for name, got in run(spec, shared).items():
        assert torch.allclose(got.double(), expected[name], rtol=0, atol=64 * U32 * float(expected[name].abs().max()))


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
@pytest.mark.parametrize("size", [(0, 4, 31), (2, 2, 0)], ids=str)
def test_nothing_to_do(spec: KernelSpec, size: tuple[int, int, int]) -> None:
    """Empty outputs, and zeros where a sum has no terms."""
    given = tensors(*size)
    for name, got in run(spec, given).items():
        assert torch.equal(got.double(), exactly(given)[name]), name


WRONG = {
    "x": ("x", lambda t: t[:, :-1], ValueError, r"x has shape \[2, 19\], but residual \[2, 4, 20\] asks for \[2, 20\]"),
    "post": ("post", lambda t: t[:1], ValueError, "post has shape"),
    "comb": ("comb", lambda t: t[..., 0], ValueError, "comb has shape"),
    "d_out": ("d_out", lambda t: t.transpose(1, 2), ValueError, "d_out has shape"),
    "rank": ("residual", lambda t: t[0], ValueError, r"residual has shape .* must be \[S, H, D\]"),
    "H": ("residual", lambda t: t[:, :3], ValueError, "H=3 streams, but H must be one of 1, 2, 4, 8"),
    "fp16": ("residual", lambda t: t.half(), TypeError, "residual is torch.float16"),
    "mixed": ("x", lambda t: t.bfloat16(), TypeError, "x is torch.bfloat16, but it must be torch.float32"),
    "coefficient": ("post", lambda t: t.bfloat16(), TypeError, "coefficients stay in FP32"),
    "device": ("comb", lambda t: t.to("meta"), ValueError, "comb is on meta, but residual is on cpu"),
}


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused(spec: KernelSpec, wrong: str) -> None:
    name, change, error, message = WRONG[wrong]
    given = tensors(2, 4, 20)
    given[name] = change(given[name])
    inputs = {n: given[n] for n in NAMES[:-1]}
    if spec.forward and name != "d_out":
        with pytest.raises(error, match=message):
            spec.forward(**inputs)
    if spec.vjp:
        with pytest.raises(error, match=message):
            spec.vjp(**inputs, d_out=given["d_out"])


@pytest.mark.parametrize("name", ["mhc_post.eager", "mhc_post.triton"])
def test_a_small_result_of_large_terms_survives(name: str) -> None:
    done = execute(SPECS[name], sample(mhc_post, REPORTED.case, values=REPORTED.values))
    assert done.outputs["out"].flatten().tolist() == [0.0030059814453125, 0.0]


def test_the_old_policy_loses_it() -> None:
    old = SPECS["mhc_post.eager_bf16_rounding"]
    done = execute(old, sample(mhc_post, REPORTED.case, values=REPORTED.values))
    assert done.outputs["out"].flatten().tolist() == [0.0, 0.0]


def test_the_old_policy_s_backward_is_what_autograd_makes_of_its_forward() -> None:
    """Bit for bit, with H 1 and D below a vector's length, so that no sum has two orders."""
    given = tensors(5, 1, 4, torch.bfloat16)
    leaves = {n: given[n].clone().requires_grad_() for n in NAMES[:-1]}

    def rounded(value: Tensor) -> Tensor:
        return value.bfloat16().float()

    post, comb = rounded(leaves["post"]), rounded(leaves["comb"])
    mix = (comb[..., None] * leaves["residual"].float()[:, :, None]).sum(1)
    out = (rounded(post[..., None] * leaves["x"].float()[:, None]) + rounded(mix)).bfloat16()
    inputs = {n: given[n] for n in NAMES[:-1]}
    assert torch.equal(out, eager_bf16_rounding.forward(**inputs)["out"])
    expected = torch.autograd.grad(out, list(leaves.values()), given["d_out"])
    got = eager_bf16_rounding.vjp(**inputs, d_out=given["d_out"])
    for name, gradient in zip(got, expected, strict=True):
        assert torch.equal(got[name], gradient), name


def test_the_sum_of_one_long_row_does_not_depend_on_threads() -> None:
    row = torch.randn(1, 100_000, generator=torch.Generator().manual_seed(1))
    threads = torch.get_num_threads()
    try:
        sums = set()
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            sums.add(float(eager.feature_sum(row)))
    finally:
        torch.set_num_threads(threads)
    assert len(sums) == 1


def test_atomics_refuse_a_determinism_request() -> None:
    given = tensors(1, 2, 40)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(NotDeterministic, match="vjp_ordered"):
            SPECS["mhc_post.triton_split_atomic"].vjp(**given)
    finally:
        torch.use_deterministic_algorithms(False)


def test_each_config_of_the_autotuner_is_a_spec_of_its_own() -> None:
    pinned = [spec for name, spec in SPECS.items() if name.startswith("mhc_post.triton_tuned[")]
    assert [spec.pins[0][1] for spec in pinned] == [0, 1]
    # D 2053 is nine blocks of 256 or three of 1024: other trees, other bits.
    given = tensors(1, 4, 2053)
    first, second = (run(spec, given)["d_comb"] for spec in pinned)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("D", [*range(1, 70), 257, 1024, 2053, 4096, 5129])
def test_blocks_cover_d_and_a_split_has_three_from_33_on(D: int) -> None:
    for parts in (blocks.TRIPS, blocks.SPLITS):
        block = blocks.block_of(D, parts)
        assert blocks.SMALLEST <= block <= blocks.LARGEST
        assert block & (block - 1) == 0
        assert (blocks.blocks_of(D, block) - 1) * block < D <= blocks.blocks_of(D, block) * block
    if D > 2 * blocks.SMALLEST:
        assert contracts.split_blocks(D) >= 3


def test_names_are_unique_and_the_readme_lists_them() -> None:
    assert len(SPECS) == len(MHC_POST)
    text = (Path(eager.__file__).parent / "README.md").read_text()
    assert all(f"`{name.partition('[')[0]}" in text for name in SPECS)


def test_the_problem_and_its_kernels_agree_on_h() -> None:
    assert mhc_post.space.choices["H"] == arguments.STREAM_COUNTS


def test_without_triton_the_specs_are_listed_as_unavailable() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import kernels\n"
        "for spec in kernels.ALL: print(spec.name, getattr(spec.available('cpu'), 'needs', 'runs'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert listed["mhc_post.eager"] == "runs"
    assert listed["mhc_post.triton"] == "triton"
    assert listed["mhc_post.triton_split_atomic"] == "triton"
