"""Grouped dSReLU kernels against a plain FP64 loop, their refusals, and what they promise about order."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.grouped_srelu import SPECS, eager_swiglu, fused, refusal, tiles
from kernels.grouped_srelu.arguments import Sizes
from kernels.grouped_srelu.faults import FAULTS
from numcheck import Case, KernelSpec
from numcheck.determinism import NVTE
from numcheck.errors import NotDeterministic
from numcheck.execute import execute
from numcheck.laws.bitwise import BITWISE
from numcheck.oracles import grouped_srelu, grouped_swiglu
from numcheck.profile import CI
from numcheck.reading import Radius, Truth, read
from numcheck.sample import Sample, place, sample
from numcheck.verdict import Status

NAMED = {spec.name: spec for spec in SPECS}
EAGER, ATOMIC, SLOTS = (NAMED[f"grouped_srelu.{name}"] for name in ("eager", "triton_atomic", "triton_slots"))
EVERY = pytest.mark.parametrize("spec", [EAGER, ATOMIC, SLOTS], ids=lambda spec: spec.name)
# FP32 sums of a few hundred terms of one size, in any order; bf16 rounds once more.
CLOSE = {torch.float32: 2.0**-16, torch.bfloat16: 2.0**-7}


def tensors(E: int, N: int, M: int, H: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> dict[str, Any]:
    """Normals that numcheck did not draw, in experts of equal spans whose last row is padding."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    ends = torch.tensor([M * (e + 1) // E for e in range(E)], dtype=torch.int32)
    spans = ends - torch.cat([ends.new_zeros(1), ends[:-1]])
    data = {"c": normal(M, N), "w1": normal(E, N, H), "w2": normal(E, N, H), "d_out": normal(M, H)}
    sums = {"prob": normal(M), "alpha": normal(E), "d_prob_onto": normal(M), "d_bias_onto": normal(E, N)}
    given = {name: t.to(dtype) for name, t in data.items()} | sums
    return given | {"tokens": (spans - 1).clamp(min=0), "offsets": ends}


def exactly(given: Mapping[str, Any]) -> dict[str, Tensor]:
    """The gradients in FP64, one token at a time; d_x of the rounded d_c."""
    wide = {name: t.double() if torch.is_tensor(t) and t.is_floating_point() else t for name, t in given.items()}
    d_c, d_x = torch.zeros_like(wide["c"]), torch.zeros_like(wide["d_out"])
    d_prob, d_bias, start = wide["d_prob_onto"].clone(), wide["d_bias_onto"].clone(), 0
    for e, (count, stop) in enumerate(zip(given["tokens"].tolist(), given["offsets"].tolist(), strict=True)):
        for m in range(start, start + count):
            r = wide["alpha"][e] * (wide["w2"][e] @ wide["d_out"][m])
            g = 2 * wide["c"][m].clamp(min=0) * r * wide["prob"][m]
            d_c[m] = g.to(given["c"].dtype)
            d_bias[e] += g
            d_prob[m] += (wide["c"][m].clamp(min=0) ** 2 * r).sum()
            d_x[m] = d_c[m] @ wide["w1"][e]
        start = stop
    return {"d_c": d_c, "d_prob": d_prob, "d_bias": d_bias, "d_x": d_x}


def run(spec: KernelSpec, given: Mapping[str, Any]) -> Mapping[str, Tensor]:
    """In the interpreter's repaired arithmetic, as a law would."""
    E, N, H = given["w2"].shape
    names = {c.name for c in spec.oracle.cotangents}
    inputs = {name: t for name, t in given.items() if torch.is_tensor(t) and name not in names}
    cotangents = {name: t for name, t in given.items() if name in names}
    dtype = "fp32" if given["c"].dtype is torch.float32 else "bf16"
    case = Case.of(E=E, N=N, M=len(given["c"]), H=H, dtype=dtype)
    done = execute(spec, Sample(case, inputs, cotangents, {"generate_dbias": True}))
    assert not done.error, done.error
    assert not done.findings
    return done.outputs


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("size", [(1, 1, 2, 1), (3, 257, 7, 65), (2, 40, 300, 3), (4, 513, 4, 130)], ids=str)
def test_the_gradients_are_those_of_the_loop(
    spec: KernelSpec, dtype: torch.dtype, size: tuple[int, int, int, int]
) -> None:
    given = tensors(*size, dtype)
    expected = exactly(given)
    for name, got in run(spec, given).items():
        near = CLOSE[got.dtype] * float(expected[name].abs().max())
        assert torch.allclose(got.double(), expected[name], rtol=CLOSE[got.dtype], atol=near), name


@EVERY
def test_strided_inputs_at_an_offset(spec: KernelSpec) -> None:
    given = tensors(2, 70, 9, 33)
    laid_out = {name: place(t, "strided", 3) for name, t in given.items()}
    for name, got in run(spec, laid_out).items():
        assert torch.equal(got, run(spec, given)[name]), name


@EVERY
def test_buffers_that_are_left_out_start_at_zero(spec: KernelSpec) -> None:
    given = tensors(2, 70, 9, 33)
    zeros = given | {name: torch.zeros_like(given[name]) for name in ("d_prob_onto", "d_bias_onto")}
    none = {name: t for name, t in given.items() if not name.endswith("_onto")}
    assert spec.vjp is not None
    expected = run(spec, zeros)
    got = spec.vjp(**none)
    for name in ("d_prob", "d_bias"):
        assert torch.equal(got[name], expected[name]), name


@pytest.mark.parametrize("reach", [2.0**-20, 2.0**-8, 1.25, 2.5, 8.0, 100.0])
def test_the_clamp_is_as_exact_as_promised_from_tiny_values_to_saturation(reach: float) -> None:
    """0.625 is where the kernel changes formulas; 2.5 / 4 lies on it."""
    case = Case.of(E=1, N=513, M=1, H=1, facts={"clamp": 4.0})
    c = torch.linspace(0, reach, 513, dtype=torch.float64)[None]
    drawn = sample(grouped_srelu, case, values={"c": c.float().double()})
    got = execute(SLOTS, drawn).outputs
    truth = read(grouped_srelu, Truth(), drawn.exact())
    radius = read(grouped_srelu, Radius(SLOTS.contract.policy(case)), drawn.exact())
    for name in ("d_c", "d_prob"):
        assert bool(((got[name].double() - truth[name]).abs() <= radius[name]).all()), name


def test_slots_of_one_expert_never_reach_another() -> None:
    """A product with ones and zeros would: 0 * inf is NaN."""
    given = tensors(3, 5, 9, 2)
    given["c"][0], given["d_out"][0] = 3e38, 3e38
    mixing = next(f.spec for f in FAULTS if f.spec.name.endswith("fold_mixes_experts"))
    kept = run(SLOTS, given)["d_bias"]
    assert not bool(torch.isfinite(kept[0]).all())
    assert bool(torch.isfinite(kept[1:]).all())
    assert bool(torch.isnan(mixing.vjp(**given)["d_bias"][1:]).any())


# Order: what could have differed.


@pytest.mark.parametrize(
    ("N", "onto", "addends", "proven"),
    [
        (128, "zeros", 1, False),
        (255, "zeros", 1, False),
        (256, "zeros", 1, False),
        (257, "zeros", 2, False),
        (384, "zeros", 2, False),
        (512, "zeros", 2, False),
        (768, "zeros", 3, True),
        (1024, "zeros", 4, True),
        (256, "data", 2, False),
        (257, "data", 3, True),
        (512, "data", 3, True),
    ],
)
def test_where_d_prob_s_order_could_show(N: int, onto: str, addends: int, proven: bool) -> None:
    """One address needs three addends, what the caller's buffer holds being one of them."""
    case = Case.of(E=1, N=N, M=64, H=1, facts={"onto": onto, "bias": False})
    fixed = BITWISE.judge(SLOTS, case, CI)
    assert fixed.outputs["d_prob"].status is (Status.PASS if proven else Status.VACUOUS)
    assert fixed.figures["vacuity"]["d_prob"]["addends"] == addends
    measured = BITWISE.judge(ATOMIC, case, CI)
    assert measured.figures["vacuity"]["d_prob"]["addends"] == addends
    assert measured.outputs["d_prob"].status is (Status.ORDER_DEPENDENT if proven else Status.VACUOUS)
    assert measured.outputs["d_c"].status is Status.PASS


@pytest.mark.parametrize(
    ("M", "onto", "proven"), [(128, "data", False), (256, "zeros", False), (257, "zeros", True), (129, "data", True)]
)
def test_where_d_bias_s_order_could_show(M: int, onto: str, proven: bool) -> None:
    case = Case.of(E=1, N=40, M=M, H=1, facts={"onto": onto, "prob": "none"})
    assert BITWISE.judge(SLOTS, case, CI).outputs["d_bias"].status is (Status.PASS if proven else Status.VACUOUS)
    wanted = Status.ORDER_DEPENDENT if proven else Status.VACUOUS
    assert BITWISE.judge(ATOMIC, case, CI).outputs["d_bias"].status is wanted


# Determinism requests.


@pytest.fixture
def asks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv(NVTE.name, raising=False)

    def ask(variable: str | None, flag: str) -> None:
        if variable is not None:
            monkeypatch.setenv(NVTE.name, variable)
        if flag != "off":
            torch.use_deterministic_algorithms(True, warn_only=flag == "soft")

    yield ask
    torch.use_deterministic_algorithms(False)


WIDE, TALL, BOTH = Sizes(4, 257, 2, 1, 1), Sizes(129, 4, 2, 1, 1), Sizes(129, 257, 2, 1, 1)


@pytest.mark.parametrize("variable", [None, "1", "0"])
@pytest.mark.parametrize("flag", ["off", "soft", "on"])
@pytest.mark.parametrize("n", [WIDE, TALL], ids=["two N tiles", "two row tiles"])
def test_either_knob_asks_and_neither_vetoes(n: Sizes, flag: str, variable: str | None, asks: Any) -> None:
    asks(variable, flag)

    def call() -> None:
        refusal.require("stock", n, weighted=True, biased=True)

    if variable == "0" or flag == "on":
        with pytest.raises(NotDeterministic, match="vjp_slots"):
            call()
    elif flag == "soft":
        with pytest.warns(UserWarning, match="vjp_slots"):
            call()
    else:
        call()


@pytest.mark.parametrize(
    ("n", "weighted", "biased", "remedies"),
    [
        (Sizes(128, 256, 2, 4, 1), True, True, ()),
        (WIDE, False, True, ()),
        (TALL, True, False, ()),
        (BOTH, False, False, ()),
        (Sizes(0, 1024, 2, 1, 1), True, True, ()),
        (WIDE, True, True, ("prob=None",)),
        (TALL, True, True, ("generate_dbias=False",)),
        (BOTH, True, True, ("prob=None", "generate_dbias=False")),
    ],
)
def test_the_remedy_is_that_of_the_sum_that_is_shared(
    n: Sizes, weighted: bool, biased: bool, remedies: tuple[str, ...], asks: Any
) -> None:
    asks("0", "off")
    if not remedies:
        refusal.require("stock", n, weighted=weighted, biased=biased)
        return
    with pytest.raises(NotDeterministic) as refused:
        refusal.require("stock", n, weighted=weighted, biased=biased)
    for remedy in ("prob=None", "generate_dbias=False"):
        assert (remedy in str(refused.value)) is (remedy in remedies)
    assert f"{NVTE.name}=0" in str(refused.value)


def test_the_kernel_itself_refuses_and_slots_do_not(asks: Any) -> None:
    given = tensors(1, 257, 4, 2)
    asks(None, "on")
    with pytest.raises(NotDeterministic, match=r"2 N tiles of 256 add to each d_prob"):
        fused.vjp_atomic(**given)
    fused.vjp_atomic(**given | {"prob": None, "d_prob_onto": None})
    fused.vjp_slots(**given)


# Arguments.

WRONG = {
    "w2": ("w2", lambda t: t[0], ValueError, r"w2 has shape \[4, 3\], but it must be \[E, N, H\]"),
    "c": ("c", lambda t: t[:, :-1], ValueError, r"c has shape \[6, 3\], but M=6, N=4, H=3, E=2 ask for \[6, 4\]"),
    "rank": ("c", lambda t: t[0], ValueError, r"c has shape \[4\], but it must be \[M, N\]"),
    "w1": ("w1", lambda t: t[:1], ValueError, "w1 has shape"),
    "prob": ("prob", lambda t: t[:-1], ValueError, "prob has shape"),
    "alpha": ("alpha", lambda t: t.bfloat16(), TypeError, "alpha is torch.bfloat16.* scales and sums stay in FP32"),
    "tokens": ("tokens", lambda t: t.long(), TypeError, "tokens is torch.int64"),
    "offsets": ("offsets", lambda t: t[:1], ValueError, "offsets has shape"),
    "d_out": ("d_out", lambda t: t.bfloat16(), TypeError, "d_out is torch.bfloat16, but w2 is torch.float32"),
    "fp16": ("w2", lambda t: t.half(), TypeError, "w2 is torch.float16|but w2 is torch.float16"),
    "onto": ("d_bias_onto", lambda t: t.T, ValueError, "d_bias_onto has shape"),
    "device": ("c", lambda t: t.to("meta"), ValueError, "c is on meta, but w2 is on cpu"),
    "unweighted": ("prob", lambda t: None, ValueError, "d_prob_onto is given but prob is None"),
    "no bias": ("generate_dbias", lambda t: False, ValueError, "d_bias_onto is given but generate_dbias is False"),
    "clamp": ("tanh_clamp_scale", lambda t: 0.0, ValueError, "tanh_clamp_scale=0.0, but it must be finite and above 0"),
    "no hidden": ("w2", lambda t: t[..., :0], ValueError, "H must be at least 1"),
}


@EVERY
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused(spec: KernelSpec, wrong: str) -> None:
    name, change, error, message = WRONG[wrong]
    given: dict[str, Any] = tensors(2, 4, 6, 3)
    given[name] = change(given.get(name))
    assert spec.vjp is not None
    with pytest.raises(error, match=message):
        spec.vjp(**given)


def test_swiglu_refuses_features_that_are_no_whole_blocks() -> None:
    given = sample(grouped_swiglu, Case.of(E=1, N=32, M=2, H=3)).given
    given |= {name: given[name][:, :20] for name in ("w2",)} | {"c": given["c"][:, :40], "w1": given["w1"][:, :40]}
    given |= {"d_bias_onto": given["d_bias_onto"][:, :40]}
    with pytest.raises(ValueError, match="N=20 features, but gate and up come in blocks of 32"):
        eager_swiglu.vjp(**given)


# Tiles, names.


@pytest.mark.parametrize("E", [1, 2, 3, 7])
def test_row_tiles_bound_every_way_to_share_rows_out(E: int) -> None:
    for M in (0, 1, 2, 127, 128, 129, 256, 257, 300, 1000):
        generator = torch.Generator().manual_seed(M)
        for _ in range(20):
            cuts = torch.randint(0, M + 1, (E + 1,), generator=generator).sort().values.tolist()
            counts = [b - a for a, b in itertools.pairwise(cuts)]
            assert sum(tiles.cut(n, tiles.ROWS) for n in counts) <= tiles.row_tiles(M, E)
            assert max(tiles.cut(n, tiles.ROWS) for n in counts) <= tiles.widest(M)
    # The bound is met: one row in all but one expert, which has one row more than whole tiles.
    assert tiles.row_tiles(E - 1 + 257, E) == E - 1 + 3


def test_names_are_unique_and_the_readme_lists_them() -> None:
    assert len(NAMED) == len(SPECS)
    text = (Path(fused.__file__).parent / "README.md").read_text()
    assert all(f"`{name}`" in text for name in NAMED)


def test_without_triton_the_specs_are_listed_as_unavailable() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "from kernels.grouped_srelu import SPECS\n"
        "for spec in SPECS: print(spec.name, getattr(spec.available('cpu'), 'needs', 'runs'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed = dict(line.rsplit(" ", 1) for line in done.stdout.splitlines())
    assert listed == {
        "grouped_srelu.eager": "runs",
        "grouped_srelu.triton_atomic": "triton",
        "grouped_srelu.triton_slots": "triton",
        "grouped_srelu.cudnn_dsrelu": "sm100",
        "grouped_swiglu.eager": "runs",
        "grouped_swiglu.cudnn_dglu": "sm100",
    }
