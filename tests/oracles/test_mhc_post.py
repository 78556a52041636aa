"""The mHC post oracle: its declarations agree with each other and with the problem."""

from __future__ import annotations

import pytest
import torch

from numcheck.case import Case
from numcheck.contract import Contract, Rounding
from numcheck.oracle import Relation
from numcheck.oracles import mhc_post
from numcheck.reading import Emulation, Recording, Truth, read
from numcheck.sample import sample


class Points(Truth):
    """Truth that writes down the names it is asked for."""

    def __init__(self) -> None:
        self.points: set[str] = set()
        self.totals: set[str] = set()

    def at(self, name: str, value: object) -> object:
        self.points.add(name)
        return value

    def total(self, name: str, terms: object, dim: object, *, onto: object = None, apart: str = "") -> object:
        self.totals |= {name, apart} - {""}
        return super().total(name, terms, dim, onto=onto, apart=apart)  # type: ignore[arg-type]


def named() -> Points:
    points = Points()
    read(mhc_post, points, sample(mhc_post, Case.of(S=1, H=2, D=3)).exact())
    return points


def test_names_of_points_and_totals() -> None:
    points = named()
    assert points.points == {"post", "comb", "px", "out", "d_x", "d_residual", "d_post", "d_comb"}
    assert points.totals == {"out", "mix", "d_x", "d_residual", "d_post", "d_comb"}


def test_every_candidate_policy_names_points_that_exist() -> None:
    points = named()
    allowed = points.points | {"mix"} | {t + ".terms" for t in points.totals}
    assert len(mhc_post.policies) >= 8
    assert next(iter(mhc_post.policies)) == "fp32"
    for rounds in mhc_post.policies.values():
        assert set(rounds) <= allowed


def test_no_two_candidate_policies_give_the_same_bits() -> None:
    case = Case.of(S=2, H=4, D=100, dtype="bf16")
    exact = sample(mhc_post, case).exact()
    bits = [
        torch.cat([t.flatten() for t in read(mhc_post, Emulation(Contract(rounds=r).policy(case)), exact).values()])
        for r in mhc_post.policies.values()
    ]
    for k, mine in enumerate(bits):
        for other in bits[:k]:
            assert not torch.equal(mine, other)


def test_truncation_is_among_the_candidates() -> None:
    assert mhc_post.policies["truncated outputs"]["out"] == Rounding("data", "truncate")


@pytest.mark.parametrize("case", [*mhc_post.space.edges, *mhc_post.space.tiny], ids=Case.line)
def test_edge_and_tiny_cases_can_be_sampled_and_read(case: Case) -> None:
    made = sample(mhc_post, case)
    results = read(mhc_post, Recording(), made.exact())
    for output in mhc_post.results:
        assert tuple(results[output.name].shape) == output.shape(case)


def test_comb_is_indexed_source_then_output() -> None:
    comb = torch.zeros(1, 2, 2, dtype=torch.float64)
    comb[0, 0, 1] = 1.0
    exact = sample(mhc_post, Case.of(S=1, H=2, D=3)).exact() | {"comb": comb, "post": torch.zeros(1, 2).double()}
    out = read(mhc_post, Truth(), exact)["out"]
    assert torch.equal(out[0, 1], exact["residual"][0, 0])
    assert torch.equal(out[0, 0], torch.zeros(3, dtype=torch.float64))


def test_a_token_depends_on_itself_alone() -> None:
    exact = sample(mhc_post, Case.of(S=3, H=2, D=5)).exact()
    whole = read(mhc_post, Truth(), exact)
    one = read(mhc_post, Truth(), {name: t[1:2] for name, t in exact.items()})
    assert mhc_post.batch == "S"
    for name, value in one.items():
        assert torch.equal(value, whole[name][1:2])


@pytest.mark.parametrize("relation", mhc_post.relations, ids=lambda r: r.name)
def test_relations_hold_of_the_truth_and_move_something(relation: Relation) -> None:
    case = Case.of(S=2, H=4, D=5)
    exact = sample(mhc_post, case).exact()
    turned = relation.transform(case, exact)
    assert turned is not None
    plain, moved = read(mhc_post, Truth(), exact), read(mhc_post, Truth(), turned)
    back = relation.back(case, moved)
    for name, value in plain.items():
        # FP64 sums of a few hundred terms in another order: some 1e-14; a wrong relation is off by far more.
        assert torch.allclose(back[name], value, rtol=1e-12, atol=1e-12)
    assert any(not torch.allclose(moved[name], value) for name, value in plain.items())


def test_relations_say_nothing_of_a_single_stream() -> None:
    case = Case.of(S=2, H=1, D=1)
    exact = sample(mhc_post, case).exact()
    assert all(r.transform(case, exact) is None for r in mhc_post.relations)


def test_each_cancellation_has_a_case_of_its_own() -> None:
    assert len({c.case for c in mhc_post.cancellations}) == len(mhc_post.cancellations)
