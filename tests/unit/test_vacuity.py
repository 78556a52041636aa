"""The order proof: where it must hold, where it must not, and what it advises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from numcheck import Case, CaseSpace, Contract, Input, KernelSpec, Oracle, Output, Sum
from numcheck.advice import advice, nearest, neighbours
from numcheck.evidence import ADDENDS, Evidence, Footprint
from numcheck.oracles import mhc_post
from numcheck.oracles.sparse_mla import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.reading import slices
from numcheck.sample import Sample, sample
from numcheck.vacuity import Proof, Terms, prove, record

BLOCK = 16


def _forward(read, x):
    return {"out": read.at("out", read.total("out", x, dim=1)), "twice": 2.0 * x}


ORACLE = Oracle(
    "sums",
    inputs=(Input("x", ("S", "D")),),
    outputs=(Output("out", ("S",), dtype="fp32"), Output("twice", ("S", "D"))),
    forward=_forward,
    vjp=lambda read, x, d_out, d_twice: {"d_x": d_out[:, None] + 2.0 * d_twice},
    space=CaseSpace(sizes={"S": (1, 4), "D": (1, 5000)}),
)


def _spec(how: Sum, **rest) -> KernelSpec:
    contract = Contract(accumulate={"out": how}, dtypes=("fp32", "bf16"), **rest.pop("contract", {}))
    return KernelSpec("sums", ORACLE, forward=lambda x: {"out": x.sum(1), "twice": 2 * x}, contract=contract, **rest)


BLOCKED = _spec(Sum("fp32", block=BLOCK))


def _proof(spec: KernelSpec, case: Case, evidence: Evidence | None = None) -> Proof:
    return prove(spec, case, record(spec, sample(ORACLE, case)).terms, evidence or Evidence())["out"]


def _given(spec: KernelSpec, values: list[float]) -> Proof:
    case = Case.of(S=1, D=len(values))
    return prove(spec, case, record(spec, sample(ORACLE, case, values={"x": [values]})).terms, Evidence())["out"]


def test_two_addends_onto_zero_never_depend_on_order() -> None:
    proof = _given(_spec(Sum("fp32")), [1.0, 2.0**-24])
    assert (proof.addends, proof.proven) == (2, False)


def test_three_addends_of_spread_values_depend_on_order() -> None:
    # (1 + 2^-24) + 2^-24 rounds twice to 1; 2^-24 + 2^-24 first makes 2^-23, which survives.
    proof = _given(_spec(Sum("fp32")), [1.0, 2.0**-24, 2.0**-24])
    assert (proof.addends, proof.sensitive, proof.proven) == (3, 1, True)


def test_three_addends_that_add_exactly_do_not() -> None:
    proof = _given(_spec(Sum("fp32")), [1.0, 2.0, 3.0])
    assert (proof.addends, proof.sensitive, proof.proven) == (3, 0, False)


def test_only_the_last_two_of_three_can_matter() -> None:
    # Swapping the first two addends commutes: of three addends, only which one comes last tells.
    values = [2.0**-24, 2.0**-24, 1.0]
    assert _given(_spec(Sum("fp32")), values).proven


def test_a_cast_hides_an_order_that_the_sum_shows() -> None:
    cast = _spec(Sum("fp32"), contract={"rounds": {"out": "bf16"}})
    proof = _given(cast, [1.0, 2.0**-24, 2.0**-24])
    assert (proof.sums, proof.sensitive, proof.proven) == (1, 0, False)
    assert "1 before the cast" in proof.why


def test_a_wider_accumulator_is_less_sensitive() -> None:
    assert not _given(_spec(Sum("fp64")), [1.0, 2.0**-24, 2.0**-24]).proven


def test_a_bf16_accumulator_is_added_in_bf16() -> None:
    assert _given(_spec(Sum("bf16")), [1.0, 2.0**-8, 2.0**-8]).proven


def test_an_infinite_or_nan_term_is_no_proof_and_no_crash() -> None:
    assert not _given(_spec(Sum("fp32")), [float("nan"), 1.0, 2.0]).proven


def test_the_blocks_of_the_contract_count_as_addends() -> None:
    assert _proof(BLOCKED, Case.of(S=1, D=2 * BLOCK)).addends == 2
    assert _proof(BLOCKED, Case.of(S=1, D=2 * BLOCK + 1)).addends == 3


def test_measured_atomics_outrank_the_contract() -> None:
    case = Case.of(S=1, D=2 * BLOCK + 1)
    measured = Evidence(footprints={"out": Footprint(addends=2, atomic=True)})
    proof = _proof(BLOCKED, case, measured)
    assert (proof.addends, proof.source, proof.proven) == (2, "measured", False)


def test_a_plain_measured_map_leaves_the_contract_to_say() -> None:
    case = Case.of(S=1, D=2 * BLOCK + 1)
    proof = _proof(BLOCKED, case, Evidence(footprints={"out": Footprint(writers=1)}))
    assert (proof.addends, proof.source) == (3, "oracle")


def test_the_ownership_map_stands_where_nothing_was_measured() -> None:
    declared = _spec(Sum("fp32"), writers=lambda case: {"out": 2})
    proof = _proof(declared, Case.of(S=1, D=40))
    assert (proof.addends, proof.source) == (2, "declared")


def test_a_claim_of_one_writer_is_not_its_own_excuse() -> None:
    claim = _spec(Sum("fp32"), writers=lambda case: {"out": 1}, contract={"order": {"out": "single"}})
    assert _proof(claim, Case.of(S=1, D=40)).source == "oracle"


def test_an_output_without_a_sum_has_one_addend() -> None:
    case = Case.of(S=1, D=40)
    proof = prove(BLOCKED, case, record(BLOCKED, sample(ORACLE, case)).terms, Evidence())["twice"]
    assert (proof.addends, proof.proven) == (1, False)


def test_bf16_normals_in_three_blocks_add_exactly() -> None:
    case = Case.of(S=4, D=2 * BLOCK + 1, dtype="bf16", regime="normal")
    assert not any(_proof(BLOCKED, case.but(seed=k)).proven for k in range(10))


def test_long_sums_are_sampled() -> None:
    proof = _proof(_spec(Sum("fp32")), Case.of(S=64, D=4096))
    assert 8 <= proof.addresses < 64
    assert proof.sensitive == proof.addresses


@pytest.mark.parametrize(
    ("case", "told"),
    [
        (Case.of(S=4, D=20), "D=33 (now 20)"),
        (Case.of(S=0, D=33, seed=2), "S=1 (now 0)"),
        (Case.of(S=4, D=33, regime="ones"), "regime=wide (now ones)"),
        (Case.of(S=4, D=33, dtype="bf16", regime="normal"), "dtype=fp32 (now bf16), regime=wide (now normal)"),
        # One address whose three partial sums add exactly by chance: another seed.
        (Case.of(S=1, D=33), "seed=2 (now 0)"),
    ],
)
def test_advice_names_the_smallest_change_and_the_changed_case_is_proven(case: Case, told: str) -> None:
    proof = _proof(BLOCKED, case)
    assert not proof.proven
    assert advice(BLOCKED, case, proof) == f"non-vacuous with {told}"
    found = nearest(BLOCKED, case, proof)
    assert found is not None
    assert _proof(BLOCKED, found).proven


def test_measured_addends_are_taken_for_blocks_of_a_power_of_two() -> None:
    # 33 terms in three: 16, 16 and 1, as kernels cut them, rather than 11 each. Only so does the last one stand alone.
    values = [1.0] * 16 + [2.0**-20] * 16 + [2.0**-24]
    case = Case.of(S=1, D=33)
    terms = record(BLOCKED, sample(ORACLE, case, values={"x": [values]})).terms
    measured = Evidence(footprints={"out": Footprint(addends=3, atomic=True)})
    spec = _spec(Sum("fp32"))
    assert (
        prove(spec, case, terms, measured)["out"].sensitive == prove(BLOCKED, case, terms, Evidence())["out"].sensitive
    )


def test_advice_follows_the_ownership_map() -> None:
    declared = _spec(Sum("fp32"), writers=lambda case: {"out": -(-case["D"] // 24)})
    case = Case.of(S=4, D=30)
    assert advice(declared, case, _proof(declared, case)) == "non-vacuous with D=49 (now 30)"


def test_advice_asks_the_ownership_map_a_few_times_and_reads_a_neighbour_once() -> None:
    asked: list[int] = []

    def writers(case: Case) -> dict[str, int]:
        asked.append(case["D"])
        return {"out": -(-case["D"] // 100)}

    declared, case = _spec(Sum("fp32"), writers=writers), Case.of(S=4, D=30)
    proof = _proof(declared, case)
    read: list[Case] = []
    known = neighbours(declared)

    def terms_of(near: Case) -> Terms:
        read.append(near)
        return known(near)

    asked.clear()
    told = [advice(declared, case, proof, terms_of) for _ in range(2)]
    assert told[0].startswith("non-vacuous with D=201 (now 30)")
    assert told[0] == told[1]
    # Not each of the 171 sizes in between.
    assert len(asked) < 50
    assert read[0] == read[1]
    assert known(read[0]) is known(read[1])


def test_without_a_sum_the_advice_is_to_claim_single() -> None:
    case = Case.of(S=1, D=40)
    proof = prove(BLOCKED, case, record(BLOCKED, sample(ORACLE, case)).terms, Evidence())["twice"]
    assert "claim twice='single'" in advice(BLOCKED, case, proof)


def test_three_is_the_number_of_addends_from_which_order_matters() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b, c = torch.randn(3, 1000, generator=generator)
    assert torch.equal(a + b, b + a)
    assert not torch.equal((a + b) + c, a + (b + c))
    assert ADDENDS == 3


def listing(S: int, rows: int = 8, **rest: Any) -> tuple[KernelSpec, Sample]:
    """A backward of sparse MLA, whose d_kv adds up over queries, on a Case of S of them."""
    case = named(S, rows, 1, 8, 8, 4, **{"regime": "wide", "indices": "distinct", **rest})
    contract = Contract(accumulate="fp32")
    return KernelSpec("mla", sparse_mla, forward=dict, vjp=dict, contract=contract), sample(sparse_mla, case)


def test_a_sum_over_a_batch_counts_the_addends_of_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, made = listing(12)
    whole = record(spec, made)
    monkeypatch.setattr(slices, "WEIGHED", 1)
    # A row's keys have 32 elements, so these are slices of three queries.
    monkeypatch.setattr(slices, "ELEMENTS", {"cpu": 96})
    cut = record(spec, made)
    monkeypatch.setattr("numcheck.vacuity.KEPT", 12 * 4 * 2)
    thin = record(spec, made)
    assert whole.terms["d_kv"].most == cut.terms["d_kv"].most == thin.terms["d_kv"].most == 6
    assert torch.allclose(whole.terms["d_kv"].rows(40), cut.terms["d_kv"].rows(40), rtol=1e-12)
    assert thin.terms["d_kv"].addresses == 8 * 2
    for recorded in (whole, cut, thin):
        assert prove(spec, made.case, recorded.terms, Evidence())["d_kv"].proven
        assert torch.allclose(recorded.truth["d_q"], whole.truth["d_q"])
        assert torch.allclose(recorded.truth["d_kv"], whole.truth["d_kv"])


def test_a_query_a_row_is_no_proof() -> None:
    spec, made = listing(2, rows=99)
    proof = prove(spec, made.case, record(spec, made).terms, Evidence())["d_kv"]
    assert (proof.addends, proof.proven) == (1, False)


def test_of_a_large_batch_only_the_rows_that_a_proof_looks_at_are_read() -> None:

    spec = KernelSpec("mhc", mhc_post, forward=dict, vjp=dict, contract=Contract(accumulate="fp32"))
    case = Case.of(S=3, H=8, D=8192)
    terms = record(spec, sample(mhc_post, case)).terms
    assert terms["d_post"][0].shape[0] == 2
    assert prove(spec, case, terms, Evidence())["d_comb"].proven
    assert record(spec, sample(mhc_post, case.but(D=16))).terms["d_post"][0].shape[0] == 3
