"""Samples: the same bits everywhere, values with teeth, memory laid out as the Case says."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from numcheck.case import LAYOUTS, REGIMES, Case
from numcheck.errors import InvalidSpec
from numcheck.oracle import Input
from numcheck.oracles import mhc_post
from numcheck.sample import MARGIN, Counter, cotangent, data, exact, move, place, sample
from numcheck.ulp import digest, round_to

# Bits of a Case's tensors, in the order x, residual, post, comb, d_out. They are what "the same bits on every device
# and version" means: a change here changes every Case that was ever recorded.
GOLDEN = {
    "wide": "494cfd527b2db4f7 28dcc0b39e24de9e 3f9940e0e91af136 4f75213a8ec5796e f914c1c2a9be01ef",
    "normal": "be5940f33ed742cc 2959be939af46bd8 3f9940e0e91af136 4f75213a8ec5796e f5a2e8d29266a0e8",
    "mean4": "8141e933f96b6316 6c32091e2bbe1717 3f9940e0e91af136 4f75213a8ec5796e f5a2e8d29266a0e8",
    "cancelling": "a679230510203611 fbdd7bc65a8ad5f9 3f9940e0e91af136 4f75213a8ec5796e dec01c06370c8305",
    "integers": "c5512b3fc8e4ac51 1a2525a0a93b41c2 600f9ecac304a5e5 5a8c8f31c74f6421 66190ba5dc5d6c6e",
    "ones": "2876db0d8cac0666 3c5572824b44fc1c 195d085322642e2a 780195e87f0679f0 66190ba5dc5d6c6e",
    "zeros": "60976072db7ffaba a14b3e84bc4faec2 d0f96aca3647786d 09f91fb265e056e9 66190ba5dc5d6c6e",
}


@pytest.mark.parametrize("regime", REGIMES)
def test_golden_bits(regime: str) -> None:
    case = Case.of(S=2, H=2, D=31, dtype="bf16", regime=regime, seed=7)
    made = sample(mhc_post, case)
    assert " ".join(digest(t) for t in (*made.inputs.values(), *made.cotangents.values())) == GOLDEN[regime]


def test_layout_and_offset_change_no_bit() -> None:
    case = Case.of(S=2, H=4, D=31, dtype="bf16", seed=3)
    plain = sample(mhc_post, case)
    for layout in LAYOUTS:
        for offset in range(4):
            other = sample(mhc_post, case.but(layout=layout, offset=offset))
            assert [digest(t) for t in other.inputs.values()] == [digest(t) for t in plain.inputs.values()]


def test_an_element_depends_on_its_index_alone() -> None:
    short, long = Counter(0, "x").normal((10,)), Counter(0, "x").normal((1000,))
    assert torch.equal(short, long[:10])


def test_names_and_seeds_are_independent() -> None:
    tensors = [Counter(seed, name).normal((64,)) for seed in (0, 1) for name in ("x", "y")]
    assert len({digest(t) for t in tensors}) == 4


def test_counter_distributions() -> None:
    counter = Counter(0, "x")
    normal, uniform = counter.normal((100_000,)), counter.uniform((100_000,))
    # Five standard errors of the mean, 1 / sqrt(n).
    assert abs(normal.mean().item()) < 5 * 100_000**-0.5
    assert normal.std().item() == pytest.approx(1.0, abs=5 * 100_000**-0.5)
    assert 0 < uniform.min().item() < uniform.max().item() < 1
    assert set(counter.integers((1000,), -3, 3).tolist()) == set(range(-3, 4))
    assert set(counter.signs((100,)).tolist()) == {-1.0, 1.0}
    assert sorted(counter.permutation(50).tolist()) == list(range(50))
    assert counter.permutation(50).tolist() != list(range(50))
    assert set(counter.powers((1000,), -2, 2).tolist()) == {0.25, 0.5, 1.0, 2.0, 4.0}


def test_sample_rounds_once_and_upcasts_exactly() -> None:
    case = Case.of(S=1, H=2, D=257, dtype="bf16", regime="normal")
    made = sample(mhc_post, case)
    assert torch.equal(made.exact()["x"], round_to(data(case, "x", (1, 257)), "bf16"))
    assert made.inputs["x"].dtype == torch.bfloat16
    assert made.inputs["post"].dtype == torch.float32
    assert {t.dtype for t in made.exact().values()} == {torch.float64}
    assert all(t.is_contiguous() for t in made.exact().values())


@pytest.mark.parametrize("width", [3, 31, 256, 4096])
def test_cancelling_rows_cancel(width: int) -> None:
    values = data(Case.of(D=width, regime="cancelling"), "x", (200, width))
    ratio = values.sum(-1).abs() / values.abs().sum(-1)
    # From 2^-2 down to 2^-12, but for the survivor's own factor of up to two and how large a row's normals are.
    assert ratio.median().item() < 2.0**-4
    assert ratio.min().item() < 2.0**-10
    assert ratio.min().item() > 2.0**-14


def test_cancelling_products_with_the_cotangent_cancel() -> None:
    case = Case.of(D=256, regime="cancelling")
    terms = data(case, "x", (100, 256)) * cotangent(case, "d_out", (100, 256))
    assert (terms.sum(-1).abs() / terms.abs().sum(-1)).median().item() < 2.0**-4
    # Partners are apart, so partial sums grow before they cancel: adjacent ones would leave nothing to round.
    assert (terms.cumsum(-1).abs().amax(-1) / terms.abs().amax(-1)).median().item() > 1


@pytest.mark.parametrize("regime", REGIMES)
def test_cotangents_are_signed_and_generic(regime: str) -> None:
    values = cotangent(Case.of(D=64, regime=regime), "d_out", (4, 64))
    assert (values > 0).any()
    assert (values < 0).any()
    assert len(values.unique()) > 5


@pytest.mark.parametrize("regime", ["integers", "ones", "zeros"])
def test_exact_regimes_leave_nothing_to_round(regime: str) -> None:
    case = Case.of(S=1, H=8, D=64, dtype="bf16", regime=regime)
    values = sample(mhc_post, case).exact()
    out = values["post"][:, :, None] * values["x"][:, None] + torch.einsum(
        "tso,tsd->tod", values["comb"], values["residual"]
    )
    assert torch.equal(round_to(out, "bf16"), out)


def test_strided_axes_do_not_collapse() -> None:
    t = place(torch.arange(24.0).reshape(2, 3, 4), "strided", 0)
    assert t.stride(-1) == 2
    assert t.stride(0) != 3 * t.stride(1)
    assert t.stride(1) != 4 * t.stride(2)
    assert torch.equal(t, torch.arange(24.0).reshape(2, 3, 4))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_margins_and_gaps_hold_nan(layout: str, offset: int) -> None:
    t = place(torch.ones(3, 5, dtype=torch.bfloat16), layout, offset)
    whole = torch.tensor([], dtype=torch.bfloat16).set_(t.untyped_storage())
    assert t.storage_offset() == MARGIN + offset
    assert int(torch.isnan(whole).sum()) == whole.numel() - 15
    assert torch.isnan(whole[: MARGIN + offset]).all()
    assert torch.isnan(whole[-MARGIN:]).all()


def test_moving_keeps_strides_offset_and_margins() -> None:
    t = place(torch.ones(3, 5), "strided", 3)
    moved = move(t, "meta")
    assert (moved.stride(), moved.storage_offset()) == (t.stride(), t.storage_offset())
    assert moved.untyped_storage().nbytes() == t.untyped_storage().nbytes()


def test_empty_tensors_can_be_placed() -> None:
    assert place(torch.zeros(0, 4), "strided", 2).shape == (0, 4)
    assert sample(mhc_post, Case.of(S=0, H=2, D=3)).inputs["x"].shape == (0, 3)


def test_integers_upcast_to_int64_and_bools_stay() -> None:
    assert exact(torch.tensor([1], dtype=torch.int32)).dtype == torch.int64
    assert exact(torch.tensor([True])).dtype == torch.bool


def test_but_replaces_in_layout_and_rounds_once() -> None:
    made = sample(mhc_post, Case.of(S=1, H=1, D=3, dtype="bf16", layout="strided", offset=1))
    value = torch.tensor([[1.0, 2.0, 1 + 2.0**-8 + 2.0**-40]], dtype=torch.float64)
    other = made.but(x=value)
    assert other.inputs["x"].tolist() == [[1.0, 2.0, 1 + 2.0**-7]]
    assert other.inputs["x"].stride() == made.inputs["x"].stride()
    assert other.inputs["residual"] is made.inputs["residual"]
    with pytest.raises(ValueError, match="no tensor y"):
        made.but(y=value)


def test_given_values_stand_in_for_drawn_ones() -> None:
    case = Case.of(S=1, H=1, D=2, dtype="bf16")
    made = sample(mhc_post, case, values={"x": [[1.5, 2.0]]})
    assert made.inputs["x"].tolist() == [[1.5, 2.0]]
    with pytest.raises(InvalidSpec, match="shape"):
        sample(mhc_post, case, values={"x": [[1.5]]})
    with pytest.raises(InvalidSpec, match="'y'"):
        sample(mhc_post, case, values={"y": [[1.5, 2.0]]})


def test_an_index_input_needs_a_fill_of_its_own() -> None:
    lost = Input("rows", ("S", "D"), dtype="int32", grad=False)
    case = Case.of(S=2, H=1, D=3)
    with pytest.raises(InvalidSpec, match="fill"):
        sample(replace(mhc_post, inputs=(*mhc_post.inputs, lost)), case)
    drawn = replace(lost, fill=lambda c, name: Counter(c.seed, name).indices((c["S"], c["D"]), 0, 9))
    made = sample(replace(mhc_post, inputs=(*mhc_post.inputs, drawn)), case)
    assert made.inputs["rows"].dtype == torch.int32
