"""read.scatter: addends that an index sends to their addresses, and how many come to each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from numcheck import Case, CaseSpace, Contract, Input, KernelSpec, Oracle, Output, Sum
from numcheck.contract import Policy, Rounding
from numcheck.evidence import Evidence
from numcheck.reading import Emulation, Noise, Radius, Recording, Truth, large
from numcheck.reading.addends import Scattered
from numcheck.reading.large import scatter_spread
from numcheck.reading.tree import spread
from numcheck.ulp import round_to
from numcheck.vacuity import Proof, prove

ROWS, WIDTH = 12, 5
CHAIN = Sum(tree="sequential")


def normal(seed: int, *shape: int) -> Tensor:
    t = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return round_to(t, "fp32")


def drawn(seed: int, count: int, low: int = -1, rows: int = ROWS) -> Tensor:
    return torch.randint(low, rows, (count,), generator=torch.Generator().manual_seed(seed))


def policy(how: Sum = CHAIN, **rounds: str) -> Policy:
    return Policy({name: Rounding(to) for name, to in rounds.items()}, {"": how})


def rms(t: Tensor) -> float:
    return t.pow(2).mean().sqrt().item()


def chained(terms: Tensor, index: Tensor, rows: int) -> Tensor:
    """FP32 atomics, one after the other in order."""
    total = np.zeros((rows, *terms.shape[1:]), np.float32)
    for term, row in zip(terms.numpy().astype(np.float32), index.tolist(), strict=True):
        if row >= 0:
            total[row] += term
    return torch.from_numpy(total.astype(np.float64))


def written_out(terms: Tensor, index: Tensor, rows: int) -> list[list[int]]:
    return [[n for n, row in enumerate(index.tolist()) if row == r] for r in range(rows)]


def test_duplicates_add_and_negative_ones_do_not() -> None:
    terms = torch.tensor([[1.0], [2.0], [4.0], [math.nan], [8.0]], dtype=torch.float64)
    index = torch.tensor([2, 0, 2, -1, 2])
    for reading in (Truth(), Recording(), Emulation(policy(), shared={})):
        assert reading.scatter("d_kv", terms, index, 4).flatten().tolist() == [2.0, 0.0, 13.0, 0.0]
    radius = Radius(policy()).scatter("d_kv", terms, index, 4)
    assert radius.value.flatten().tolist() == [2.0, 0.0, 13.0, 0.0]
    # One addend rounds nothing, three may; what is dropped leaves no trace, though it is NaN.
    assert bool((radius.radius[[0, 1, 3]] < 1e-12).all())
    assert 1e-6 < radius.radius[2].item() < 1e-5


def test_an_index_beyond_the_rows_is_told() -> None:
    with pytest.raises(IndexError, match="index 4; allowed: 0 to 3"):
        Truth().scatter("d_kv", normal(0, 2, 1), torch.tensor([0, 4]), 4)


@pytest.mark.parametrize("exact", [0, large.EXACT])
def test_noise_is_what_real_atomics_show(monkeypatch: Any, exact: int) -> None:
    monkeypatch.setattr(large, "EXACT", exact)
    terms, index = normal(0, 600, 40), drawn(1, 600)
    truth = Truth().scatter("d_kv", terms, index, ROWS)
    shared: dict[Any, Any] = {}
    expected = [rms(Noise(policy(), k, shared).scatter("d_kv", terms, index, ROWS) - truth) for k in range(8)]
    assert rms(chained(terms, index, ROWS) - truth) / (sum(expected) / 8) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize("how", [CHAIN, Sum(), Sum(tree="pairwise"), Sum(block=8)], ids=str)
def test_the_model_agrees_with_the_written_out_terms(monkeypatch: Any, how: Sum) -> None:
    # Rows that get from none to some 140 terms.
    index = drawn(1, 1500, rows=ROWS).float().pow(2).div(ROWS).long() - 1
    terms, onto = normal(0, 1500, 30) + 0.5, normal(2, ROWS, 30) * 50
    for start in (None, onto):
        whole = Scattered(terms, index, ROWS, start)
        _, exact = scatter_spread(whole, how)
        every = whole.at(torch.arange(ROWS), torch.arange(30))
        assert torch.equal(exact.flatten(), spread(every.flatten(0, 1), how)[1])
        monkeypatch.setattr(large, "EXACT", 0)
        _, mine = scatter_spread(whole, how)
        monkeypatch.undo()
        assert rms(mine) / rms(exact) == pytest.approx(1.0, abs=0.05)
        assert bool((mine[whole.counts == 0] == 0).all())


def test_integers_are_exact_in_any_order(monkeypatch: Any) -> None:
    monkeypatch.setattr(large, "EXACT", 0)
    terms = torch.randint(-9, 10, (600, WIDTH), generator=torch.Generator().manual_seed(0)).double()
    assert scatter_spread(Scattered(terms, drawn(1, 600), ROWS), Sum()) == (None, None)


def test_no_real_order_of_atomics_leaves_the_radius_and_a_lost_update_does() -> None:
    terms, index = normal(0, 600, WIDTH), drawn(1, 600)
    reading = Radius(policy(Sum()))
    ball = reading.scatter("d_kv", reading.enter(terms), index, ROWS)
    for seed in range(3):
        order = torch.randperm(600, generator=torch.Generator().manual_seed(seed))
        got = chained(terms[order], index[order], ROWS)
        assert bool(((got - ball.value).abs() <= ball.radius).all())
    lost = torch.where(torch.arange(600) == 7, -1, index)
    assert bool(((chained(terms, lost, ROWS) - ball.value).abs() > ball.radius).any())


def test_the_radius_of_an_address_knows_its_own_addends() -> None:
    index = torch.tensor([0, 1, 1, *[2] * 100])
    radius = Radius(policy()).scatter("d_kv", torch.ones(103, 1, dtype=torch.float64), index, 3).radius.flatten()
    assert radius[0].item() < 1e-15
    assert radius[1].item() == pytest.approx(2 * 2.0**-24, rel=1e-3)
    assert radius[2].item() == pytest.approx(100 * 99 * 2.0**-24, rel=1e-3)


def test_terms_round_one_by_one_where_declared() -> None:
    terms = torch.tensor([[1 + 2.0**-8 + 2.0**-20]] * 4, dtype=torch.float64)
    index = torch.tensor([0, 0, 1, -1])
    got = Emulation(policy(**{"d_kv.terms": "bf16"})).scatter("d_kv", terms, index, 2)
    assert got.flatten().tolist() == [2 * (1 + 2.0**-7), 1 + 2.0**-7]


def test_a_first_addend_is_added_and_counted() -> None:
    terms, index, onto = normal(0, 6, 2), torch.tensor([0, 0, 1, -1, 1, 1]), normal(1, 3, 2)
    truth = Truth().scatter("d_kv", terms, index, 3, onto=onto)
    assert torch.allclose(truth, Truth().scatter("d_kv", terms, index, 3) + onto)
    recording = Recording()
    recording.scatter("d_kv", terms, index, 3, onto=onto)
    assert recording.terms["d_kv"].most == 4
    rows = recording.terms["d_kv"].rows(6)
    assert rows.shape == (6, 4)
    assert torch.allclose(rows.sum(-1).sort()[0], truth.flatten().sort()[0])


def test_addends_keep_their_order_and_the_busiest_addresses_come_first() -> None:
    terms, index = normal(0, 9, 2), torch.tensor([3, -1, 1, 3, 0, 1, 3, 1, 3])
    kept = Scattered(terms, index, 5)
    assert kept.counts.tolist() == [1, 3, 0, 4, 0]
    assert (kept.most, kept.addresses) == (4, 10)
    first = kept.rows(2)
    assert torch.equal(first[0], terms[[0, 3, 6, 8], 0])
    assert torch.equal(first[1][:3], terms[[2, 5, 7], 0])
    assert first[1][3].item() == 0.0
    assert torch.allclose(kept.size(), Truth().scatter("", terms.abs(), index, 5))


def test_nothing_is_scattered() -> None:
    none = torch.zeros(0, 3, dtype=torch.float64)
    index = torch.zeros(0, dtype=torch.int64)
    for reading in (Truth(), Recording(), Emulation(policy(), 1), Noise(policy(), 1)):
        assert torch.equal(reading.scatter("d_kv", none, index, 4), torch.zeros(4, 3, dtype=torch.float64))
    dropped = torch.full((5,), -1)
    for reading in (Truth(), Emulation(policy(), 1), Noise(policy(), 1)):
        assert torch.equal(reading.scatter("d_kv", normal(0, 5, 3), dropped, 4), torch.zeros(4, 3, dtype=torch.float64))
    assert Scattered(normal(0, 5, 3), dropped, 4).most == 0
    assert Scattered(normal(0, 5, 3), dropped, 4).rows(3).shape == (3, 0)


def kept(index: list[int], terms: list[float], rows: int = 3) -> Proof:
    """The proof of a scatter of single numbers."""

    def forward(read: Any, x: Any) -> dict[str, Any]:
        return {"out": read.scatter("out", x, torch.tensor(index), rows)}

    oracle = Oracle(
        "scattered",
        inputs=(Input("x", ("N",)),),
        outputs=(Output("out", ("R",), dtype="fp32"),),
        forward=forward,
        space=CaseSpace({"N": (1, 99), "R": (1, 9)}),
    )
    spec = KernelSpec("scattered", oracle, forward=lambda x: {"out": x}, contract=Contract(accumulate="fp32"))
    recording = Recording()
    forward(recording, torch.tensor(terms, dtype=torch.float64))
    return prove(spec, Case.of(N=len(terms), R=rows), recording.terms, Evidence())["out"]


LOSING = [1.0, 2.0**-24, 2.0**-24]


def test_three_addends_at_one_address_are_proven_by_the_index() -> None:
    proof = kept([1, 1, 1], LOSING)
    assert (proof.addends, proof.source, proof.proven) == (3, "oracle", True)
    # The same terms, none of which meet three at a time.
    assert kept([0, 1, 1], LOSING).addends == 2
    assert not kept([0, 1, 1], LOSING).proven
    assert kept([-1, 1, 1], LOSING).addends == 2
    assert kept([0, 1, 2], LOSING).addends == 1
    assert kept([-1, -1, -1], LOSING).addends == 0


def test_a_proof_finds_the_one_busy_address_among_many() -> None:
    quiet = list(range(1, 5000))
    proof = kept([0, *quiet, 0, 0], [1.0, *[3.0] * len(quiet), 2.0**-24, 2.0**-24], rows=5000)
    assert (proof.addends, proof.proven, proof.sensitive) == (3, True, 1)
