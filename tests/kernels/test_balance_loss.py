"""Balance loss kernels against plain FP64 formulas, written here and nowhere else, on values numcheck did not draw."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.balance_loss import SPECS, contracts, eager, fused, native, tiles
from kernels.balance_loss.tiles import Tiles, backward_rows, backward_tiles, forward_tiles
from numcheck import Case, KernelSpec
from numcheck.errors import NotDeterministic
from numcheck.execute import execute
from numcheck.oracles import balance_loss_map, balance_loss_topk
from numcheck.oracles.balance_loss_cases import CLAMP, EPSILON, NAMED
from numcheck.reading import Radius, Truth, read
from numcheck.reading.tree import growths
from numcheck.sample import Sample, place, sample
from numcheck.ulp import dtype_name

U32, U16 = 2.0**-24, 2.0**-8
COEFFICIENT, TOPK = 0.5, 2
NAMED_SPECS = {spec.name: spec for spec in SPECS}
ALL = pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
TRITON = pytest.mark.parametrize("spec", [s for s in SPECS if "triton" in s.name], ids=lambda s: s.name)


def tensors(
    T: int, E: int, dtype: torch.dtype = torch.float32, *, seed: int = 0, padded: bool = True, signed: bool = True
) -> dict[str, Tensor]:
    """Scores, a ragged map, padding, denominator and cotangent."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(T, E, generator=g)
    made = {
        "scores": (scores if signed else scores.sigmoid()).to(dtype),
        "routing_map": torch.rand(T, E, generator=g) < 0.4,
        "denominator": torch.tensor(3.75),
        "d_loss": torch.tensor(-1.5),
    }
    return made | ({"padding": torch.rand(T, generator=g) < 0.2} if padded else {})


def given(spec: KernelSpec, made: dict[str, Tensor]) -> Sample:
    oracle = spec.oracle
    T, E = made["scores"].shape
    facts = {"padding": "some" if "padding" in made else "none"}
    case = Case.of(T=T, E=E, K=min(TOPK, E), dtype=dtype_name(made["scores"].dtype), facts=facts)
    scalars: dict[str, Any] = {"coefficient": COEFFICIENT}
    scalars |= {"topk": min(TOPK, E)} if oracle is balance_loss_topk else {}
    inputs = {i.name: made[i.name] for i in oracle.inputs if i.name in made}
    return Sample(case, inputs, {"d_loss": made["d_loss"]}, scalars)


def run(spec: KernelSpec, made: dict[str, Tensor]) -> dict[str, Tensor]:
    """What the spec computes, in the repaired interpreter where it is Triton's."""
    done = execute(spec, given(spec, made))
    assert not done.error
    assert not done.findings
    return dict(done.outputs)


def exactly(spec: KernelSpec, made: dict[str, Tensor]) -> dict[str, Tensor]:
    """The outputs in FP64, the gradient by autograd."""
    live = ~made["padding"] if "padding" in made else torch.ones(made["scores"].shape[0], dtype=torch.bool)
    leaf = made["scores"].double()[live].requires_grad_()
    if spec.oracle is balance_loss_map:
        chosen, den = made["routing_map"][live], leaf.abs().sum(1).clamp(min=CLAMP)
    else:
        top = leaf.topk(min(TOPK, leaf.shape[1]), dim=1).indices
        chosen, den = torch.zeros(leaf.shape, dtype=torch.bool).scatter_(1, top, True), leaf.sum(1) + EPSILON
    counts = chosen.double().sum(0)
    frequencies = leaf.shape[1] * counts / counts.sum().clamp(min=1)
    mass = (leaf / den[:, None]).sum(0)
    raw = frequencies @ mass
    loss = COEFFICIENT * raw / made["denominator"].double().clamp(min=1)
    (found,) = torch.autograd.grad(loss, leaf, made["d_loss"].double())
    d_scores = torch.zeros(made["scores"].shape, dtype=torch.float64)
    d_scores[live] = found
    results = {"frequencies": frequencies, "mass": mass, "raw": raw, "loss": loss, "d_scores": d_scores}
    return {name: t.detach() for name, t in results.items()}


@ALL
@pytest.mark.parametrize("size", [(1, 2), (5, 9), (33, 129)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_outputs_are_the_formula(spec: KernelSpec, size: tuple[int, int], dtype: torch.dtype) -> None:
    """Within a few roundings of the sizes of the terms; a row's den may cancel, and then its terms are larger."""
    made = tensors(*size, dtype, padded=size[0] > 1)
    exact, got = exactly(spec, made), run(spec, made)
    s = made["scores"].double()
    den = s.abs().sum(1) if spec.oracle is balance_loss_map else s.sum(1).abs()
    worse = (s.abs().sum(1) / den)[:, None]
    room = (size[0] + size[1] + 20) * U32
    gradient = exact["frequencies"].max() / den[:, None] * worse**2 * COEFFICIENT * 1.5 / 3.75
    largest = (s.abs() / den[:, None] * worse).sum(0)
    cast = U16 if dtype == torch.bfloat16 else 0.0
    allowed = {
        "frequencies": room * exact["frequencies"],
        "mass": room * largest,
        "raw": room * (exact["frequencies"] * largest).sum(),
        "loss": room * (exact["frequencies"] * largest).sum(),
        "d_scores": room * gradient + cast * exact["d_scores"].abs(),
    }
    for name, value in got.items():
        assert bool(((value.double() - exact[name]).abs() <= allowed[name]).all()), name


@ALL
@pytest.mark.parametrize(("layout", "offset"), [("strided", 3), ("contiguous", 1)])
def test_strides_and_offsets_change_no_bit(spec: KernelSpec, layout: str, offset: int) -> None:
    made = tensors(7, 33, torch.bfloat16)
    expected = run(spec, made)
    for name, got in run(spec, {n: place(t, layout, offset) for n, t in made.items()}).items():
        assert torch.equal(got, expected[name]), name


@ALL
def test_padding_holds_what_it_likes(spec: KernelSpec) -> None:
    made = tensors(9, 6)
    expected = run(spec, made)
    dirty = made["scores"].masked_fill(made["padding"][:, None], torch.nan)
    chosen = made["routing_map"] | made["padding"][:, None]
    for name, got in run(spec, made | {"scores": dirty, "routing_map": chosen}).items():
        assert torch.equal(got, expected[name]), name


@ALL
def test_no_padding_is_a_mask_of_none(spec: KernelSpec) -> None:
    made = tensors(9, 6, padded=False)
    masked = run(spec, made | {"padding": torch.zeros(9, dtype=torch.bool)})
    assert all(torch.equal(got, masked[name]) for name, got in run(spec, made).items())


@ALL
@pytest.mark.parametrize("T", [0, 4])
def test_nothing_to_do(spec: KernelSpec, T: int) -> None:
    """No tokens, or none that is live: zeros, and no NaN."""
    made = tensors(T, 5) | {"padding": torch.ones(T, dtype=torch.bool)}
    assert not any(bool(t.any()) for t in run(spec, made).values())


@TRITON
def test_expanded_scores(spec: KernelSpec) -> None:
    """Strides of zero: one row of scores for all tokens."""
    made = tensors(5, 7)
    made["scores"] = made["scores"][:1].expand(5, 7)
    copied = run(spec, made | {"scores": made["scores"].contiguous()})
    assert all(torch.equal(got, copied[name]) for name, got in run(spec, made).items())


WRONG = {
    "rank": ("scores", lambda t: t[0], ValueError, r"scores has shape \[6\], but it must be \[T, E\]"),
    "fp16": ("scores", lambda t: t.half(), TypeError, "scores is torch.float16.*exponents"),
    "map": ("routing_map", lambda t: t[:, 1:], ValueError, r"routing_map has shape \[4, 5\].* asks for \[4, 6\]"),
    "map dtype": ("routing_map", lambda t: t.int(), TypeError, "routing_map is torch.int32"),
    "padding": ("padding", lambda t: t[1:], ValueError, "padding has shape"),
    "padding dtype": ("padding", lambda t: t.float(), TypeError, "padding is torch.float32"),
    "denominator": ("denominator", lambda t: t.double(), TypeError, "denominator is torch.float64"),
    "d_loss": ("d_loss", lambda t: t[None], ValueError, r"d_loss has shape \[1\]"),
    "device": ("denominator", lambda t: t.to("meta"), ValueError, "denominator is on meta, but scores is on cpu"),
}


@ALL
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused(spec: KernelSpec, wrong: str) -> None:
    name, change, error, message = WRONG[wrong]
    made = tensors(4, 6)
    made[name] = change(made[name])
    oracle = spec.oracle
    if name == "routing_map" and oracle is balance_loss_topk:
        return
    call = given(spec, tensors(4, 6)).given | {n: t for n, t in made.items() if n == name}
    assert spec.vjp is not None
    with pytest.raises(error, match=message):
        spec.vjp(**oracle.for_vjp(call, {"frequencies": torch.ones(6)}))
    if name != "d_loss":
        assert spec.forward is not None
        with pytest.raises(error, match=message):
            spec.forward(**oracle.for_forward(call))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk": 7}, "topk is 7, but it must be from 1 to E=6"),
        ({"topk": 0}, "topk is 0"),
        ({"coefficient": float("inf")}, "coefficient is inf"),
    ],
)
def test_wrong_numbers_are_refused(change: dict[str, Any], message: str) -> None:
    made = tensors(4, 6)
    call = {
        "scores": made["scores"],
        "padding": None,
        "denominator": made["denominator"],
        "coefficient": 1.0,
        "topk": 2,
    }
    for forward in (eager.forward_topk, fused.forward_topk):
        with pytest.raises(ValueError, match=message):
            forward(**{**call, **change})


def at_the_clamp() -> dict[str, Tensor]:
    made = tensors(3, 4, padded=False)
    made["scores"] = torch.tensor([[CLAMP, 0, 0, 0], [0, -CLAMP, 0, 0], [CLAMP * 2, 0, 0, 0]])
    made["routing_map"] = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    return made


@pytest.mark.parametrize("spec", [s for s in SPECS if s.oracle is balance_loss_map], ids=lambda s: s.name)
def test_the_clamp_is_strict_but_for_torch_s_own_before_2_14(spec: KernelSpec) -> None:
    made = at_the_clamp()
    got = run(spec, made)
    weights = got["frequencies"] * -1.5 * COEFFICIENT / 3.75
    strict = spec.name != "balance_loss_map.native" or native.clamp_is_strict()
    for row, column in ((0, 0), (1, 1)):
        assert bool(got["d_scores"][row, column] == weights[column] / CLAMP) == strict
    # Above the limit the norm moves with its only score, whose share stays 1.
    assert float(got["d_scores"][2, 0]) == pytest.approx(0.0, abs=float(weights[0].abs()) / CLAMP * 4 * U32)


def test_torch_s_convention_at_the_clamp_is_that_of_its_version() -> None:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    assert native.clamp_is_strict() == ((major, minor) >= (2, 14))


def test_the_native_contract_leaves_rows_at_the_clamp_to_a_strict_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed, plain = (Case.of(T=3, E=2, K=1, facts={"rows": rows}) for rows in ("mixed", "signed"))
    for strict in (True, False):
        monkeypatch.setattr(contracts, "clamp_is_strict", lambda strict=strict: strict)
        assert (contracts.legal_native(mixed) is None) == strict
        assert contracts.legal_native(plain) is None


@pytest.mark.parametrize("spec", [s for s in SPECS if s.oracle is balance_loss_map], ids=lambda s: s.name)
def test_frequencies_have_native_torch_s_bits(spec: KernelSpec) -> None:
    """Integers, an IEEE division and a product: shown with torch 2.13 on the CPU, for every implementation."""
    for T, E in ((5, 9), (33, 129), (300, 64)):
        made = tensors(T, E, seed=T)
        expected = native.forward(**given(NAMED_SPECS["balance_loss_map.native"], made).inputs, coefficient=1.0)
        assert torch.equal(run(spec, made)["frequencies"], expected["frequencies"])


@pytest.mark.parametrize(
    "name", ["balance_loss_map.triton", "balance_loss_map.triton_atomic", "balance_loss_map.eager"]
)
def test_the_rest_is_within_both_radii_of_native_torch(name: str) -> None:
    """Another tree of sums: each side is within its Contract's radius of the truth, which is a few ulps here."""
    spec, other = NAMED_SPECS[name], NAMED_SPECS["balance_loss_map.native"]
    case = Case.of(T=33, E=129, K=8, regime="normal", facts={"rows": "signed"})
    drawn = sample(balance_loss_map, case)
    got, expected = execute(spec, drawn).outputs, execute(other, drawn).outputs
    allowed = [read(balance_loss_map, Radius(s.contract.policy(case)), drawn.exact()) for s in (spec, other)]
    for output, value in got.items():
        apart = (value.double() - expected[output].double()).abs()
        assert bool((apart <= allowed[0][output] + allowed[1][output]).all()), output


@pytest.mark.parametrize("given_map", [True, False])
def test_bits_do_not_depend_on_the_cut(given_map: bool) -> None:
    """Balanced trees of neighbours: tiles of 1 to 32 tokens, one or many a launch, fold to the same sums."""
    made = tensors(29, 9)
    n = fused.forward_sizes(made["scores"], made["padding"], made["denominator"], 1.0)
    chosen = made["routing_map"] if given_map else None
    cuts = [Tiles(rows, 16, 1, -(-29 // rows)) for rows in (1, 4, 8, 32)]
    call = (made["scores"], chosen, made["padding"], made["denominator"], 1.0, TOPK)
    first, *others = (fused.launch_forward(n, *call, tiles=cut) for cut in cuts)
    for other in others:
        assert all(torch.equal(other[name], first[name]) for name in first)


@pytest.mark.parametrize("E", [1, 2, 9, 64, 129, 512, 2**15])
def test_tiles_cover_the_tokens(E: int) -> None:
    for T in (*range(1, 70), 255, 257, 4096, 4097, 8193, 100_000):
        cut = forward_tiles(T, E)
        span = cut.rows * cut.trips
        assert (cut.parts - 1) * span < T <= cut.parts * span
        assert cut.rows * cut.experts <= max(tiles.TILE, cut.experts)
        assert cut.parts * cut.experts <= max(tiles.FOLD, cut.experts)
        assert (backward_tiles(T, E) - 1) * backward_rows(T, E) < T <= backward_tiles(T, E) * backward_rows(T, E)
        if 3 <= T <= 255 and E <= 129:
            assert cut.parts >= 3
    assert forward_tiles(0, E).parts == 0


@TRITON
@pytest.mark.parametrize("size", [(3, 2), (33, 129), (1024, 512), (1025, 512), (8193, 64)])
def test_the_contract_s_sum_of_mass_has_no_fewer_adds_than_the_kernel(spec: KernelSpec, size: tuple[int, int]) -> None:
    T, E = size
    cut = forward_tiles(T, E)
    # A tile's rows in a tree, then a part's tiles one by one; parts in a tree, or each onto those that came before it.
    parts = cut.parts - 1 if "atomic" in spec.name else math.ceil(math.log2(cut.parts))
    adds = math.log2(cut.rows) + cut.trips - 1 + parts
    how = spec.contract.policy(Case.of(T=T, E=E, K=1)).sum_of("mass")
    assert float(growths(how, torch.tensor([float(T)], dtype=torch.float64))[0]) > adds * U32


def test_named_shapes_have_tails_and_three_parts() -> None:
    for T, E, _ in NAMED:
        assert forward_tiles(T, E).parts >= 3
    assert any(T % forward_tiles(T, E).rows for T, E, _ in NAMED)


@pytest.mark.parametrize("objective", ["map", "topk"])
def test_atomics_refuse_a_determinism_request(objective: str) -> None:
    spec = NAMED_SPECS[f"balance_loss_{objective}.triton_atomic"]
    call = spec.oracle.for_forward(given(spec, tensors(4, 6)).given)
    assert spec.forward is not None
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(NotDeterministic, match=r"kernels\.balance_loss\.fused"):
            spec.forward(**call)
    finally:
        torch.use_deterministic_algorithms(False)


def test_scores_frequencies_and_mask_are_all_that_is_saved() -> None:
    for oracle in (balance_loss_map, balance_loss_topk):
        assert oracle.saved == ("frequencies",)
        truth = read(oracle, Truth(), sample(oracle, Case.of(T=3, E=4, K=2)).exact())
        assert set(truth) == {"frequencies", "mass", "raw", "loss", "d_scores"}


def test_names_are_unique_and_the_readme_lists_them() -> None:
    assert len(NAMED_SPECS) == len(SPECS)
    text = (Path(eager.__file__).parent / "README.md").read_text()
    assert all(f"`{name}`" in text for name in NAMED_SPECS)


def test_without_triton_the_specs_are_listed_as_unavailable() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from kernels.balance_loss import SPECS\n"
        "for spec in SPECS: print(spec.name, getattr(spec.available('cpu'), 'needs', 'runs'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert set(listed) == set(NAMED_SPECS)
    assert {name for name, runs in listed.items() if runs == "triton"} == {n for n in NAMED_SPECS if "triton" in n}


def test_the_operators_trace_as_one_node_and_have_the_same_bits() -> None:
    from kernels.balance_loss import operators

    made = tensors(7, 5)
    routing, mask, below = made["routing_map"], made["padding"], made["denominator"]
    functions = (
        lambda s: -1.5 * operators.balance_loss_map(s, routing, mask, below, COEFFICIENT)[3],
        lambda s: -1.5 * operators.balance_loss_topk(s, mask, below, COEFFICIENT, TOPK)[3],
    )
    for function, objective in zip(functions, ("map", "topk"), strict=True):
        expected = run(NAMED_SPECS[f"balance_loss_{objective}.triton"], made)["d_scores"]
        for called in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
            leaf = made["scores"].clone().requires_grad_()
            (found,) = torch.autograd.grad(called(leaf), leaf)
            assert torch.equal(found, expected)


def test_the_operators_pass_torch_s_own_checks_and_differentiate_the_loss_alone() -> None:
    from kernels.balance_loss import operators

    made = tensors(7, 5)
    call = (made["scores"], made["routing_map"], made["padding"], made["denominator"], COEFFICIENT)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    torch.library.opcheck(torch.ops.numcheck_kernels.balance_loss_map.default, call, test_utils=checks)
    leaf = made["scores"].clone().requires_grad_()
    with pytest.raises(RuntimeError, match="only loss is differentiable"):
        operators.balance_loss_map(leaf, *call[1:])[2].backward()
