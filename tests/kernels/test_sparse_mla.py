"""What all sparse-MLA kernels refuse, and the eager one: its order, chunks and bytes, and the chain that it joins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.sparse_mla import EAGER, blocks, contracts, eager
from kernels.sparse_mla.arguments import forward_sizes
from kernels.sparse_mla.faults import duplicates_counted_once
from numcheck import Case, KernelSpec
from numcheck.errors import WorkspaceExceeded
from numcheck.execute import execute
from numcheck.laws import LAWS
from numcheck.laws.memory import judge as memory
from numcheck.oracle import Relation
from numcheck.oracles.sparse_mla_cases import named
from numcheck.profile import CI, QUICK
from numcheck.sample import sample
from numcheck.verdict import Status

LAW = {law.name: law for law in LAWS}
FULL = named(5, 9, 3, 24, 16, 7, indices="holes", length="partial", sink="finite", dtype="bf16")
FORWARD = ("q", "kv", "topk_idxs", "topk_length", "sink", "softmax_scale", "value_dim", "d_kv_dtype", "budget")


def given(case: Case) -> dict[str, Any]:
    """Everything that a vjp takes, out and lse from the eager forward."""
    drawn = sample(EAGER.oracle, case)
    inputs: dict[str, Any] = dict.fromkeys(("topk_length", "sink")) | {**drawn.inputs, **drawn.scalars}
    return {**inputs, **eager.forward(**inputs), **drawn.cotangents}


def forward(call: Mapping[str, Any]) -> dict[str, Tensor]:
    return eager.forward(**{n: v for n, v in call.items() if n in FORWARD})


def grown(name: str, axis: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(call: dict[str, Any]) -> dict[str, Any]:
        tensor = call[name]
        return {name: torch.cat([tensor, tensor.narrow(axis, 0, 1)], axis)}

    return change


def cast(name: str, dtype: torch.dtype) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda call: {name: call[name].to(dtype)}


WRONG: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], type[Exception], str]] = {
    "q of two axes": (lambda call: {"q": call["q"][0]}, ValueError, "q has shape"),
    "kv of other features": (grown("kv", 1), ValueError, "kv has shape"),
    "indices of other queries": (grown("topk_idxs", 0), ValueError, "topk_idxs has shape"),
    "lengths of other queries": (grown("topk_length", 0), ValueError, "topk_length has shape"),
    "a sink too many": (grown("sink", 0), ValueError, "sink has shape"),
    "out of other features": (grown("out", 2), ValueError, "out has shape"),
    "lse of other heads": (grown("lse", 1), ValueError, "lse has shape"),
    "d_out of other queries": (grown("d_out", 0), ValueError, "d_out has shape"),
    "kv in FP32": (cast("kv", torch.float32), TypeError, "kv is torch.float32"),
    "all in FP64": (lambda call: {"q": call["q"].double()}, TypeError, "q is torch.float64"),
    "int64 indices": (cast("topk_idxs", torch.int64), TypeError, "topk_idxs is torch.int64"),
    "int64 lengths": (cast("topk_length", torch.int64), TypeError, "topk_length is torch.int64"),
    "a bf16 sink": (cast("sink", torch.bfloat16), TypeError, "sink is torch.bfloat16"),
    "a bf16 lse": (cast("lse", torch.bfloat16), TypeError, "lse is torch.bfloat16"),
    "FP32 d_out": (cast("d_out", torch.float32), TypeError, "d_out is torch.float32"),
    "no value": (lambda call: {"value_dim": 0}, ValueError, "value_dim is 0"),
    "a value wider than a key": (lambda call: {"value_dim": 25}, ValueError, "value_dim is 25"),
    "an infinite scale": (lambda call: {"softmax_scale": float("inf")}, ValueError, "softmax_scale is inf"),
    "d_kv in FP16": (lambda call: {"d_kv_dtype": "fp16"}, ValueError, "d_kv_dtype is 'fp16'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_refused_by_name(what: str) -> None:
    change, error, message = WRONG[what]
    call = given(FULL)
    with pytest.raises(error, match=message):
        eager.vjp(**{**call, **change(call)})
    if not {"out", "lse", "d_out"} & set(change(call)):
        with pytest.raises(error, match=message):
            forward({**call, **change(call)})


def test_nothing_is_required_that_a_problem_may_lack() -> None:
    bare = named(2, 3, 1, 4, 4, 2, sink="none")
    drawn = sample(EAGER.oracle, bare)
    scalars: Mapping[str, Any] = drawn.scalars
    sizes = forward_sizes(drawn.inputs["q"], drawn.inputs["kv"], drawn.inputs["topk_idxs"], None, None, **scalars)
    assert sizes == (2, 3, 1, 4, 4, 2)
    assert not sizes.empty
    assert set(execute(EAGER, drawn).outputs) == {"out", "lse", "d_q", "d_kv"}


def bits(results: Mapping[str, Tensor]) -> dict[str, Tensor]:
    widths = {2: torch.int16, 4: torch.int32}
    return {name: t.view(widths[t.element_size()]) for name, t in results.items()}


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(x, bits(b)[name]) for name, x in bits(a).items())


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queries of FULL at a time, so that the last chunk has one."""
    monkeypatch.setattr(blocks, "CHUNK_BYTES", 4 * 7 * 24 * 2)


class Shares:
    """An adder that keeps what it is given: shares and rows in the order of query and slot."""

    def __init__(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __call__(self, sums: Tensor, shares: Tensor, rows: Tensor) -> None:
        self.seen.append((shares.clone(), rows.clone()))
        eager.add_by_row(sums, shares, rows)

    def all(self) -> dict[str, Tensor]:
        shares, rows = zip(*self.seen, strict=True)
        return {"shares": torch.cat(shares), "rows": torch.cat(rows).int()}


def of_query(call: Mapping[str, Any], t: int) -> dict[str, Any]:
    per_query = ("q", "topk_idxs", "topk_length", "out", "lse", "d_out")
    return {name: value[t : t + 1] if name in per_query else value for name, value in call.items()}


def test_chunks_change_no_row_and_only_the_order_of_d_kv(small_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal addends in two orders: each sum is within (addends - 1) 2^-24 of the exact one, times their summed size."""
    case = FULL.but(d_kv="fp32")
    call = given(case)
    parts, once = Shares(), Shares()
    cut = {**forward(call), **eager.vjp(**call, add=parts)}
    assert blocks.chunk_queries(24, 7) == 2
    monkeypatch.undo()
    assert blocks.chunk_queries(24, 7) > case["S_q"]
    whole = {**forward(call), **eager.vjp(**call, add=once)}
    assert (len(parts.seen), len(once.seen)) == (3, 1)
    rows = ("out", "lse", "d_q")
    assert same({n: cut[n] for n in rows}, {n: whole[n] for n in rows})
    assert same(parts.all(), once.all())
    shares, of_row = once.all().values()
    sizes = torch.zeros((case["S_k"] + 1, case["D"]), dtype=torch.float64)
    sizes.index_add_(0, of_row, shares.double().abs())
    sinks = sum(eager.vjp(**of_query(call, t))["d_sink"].double().abs() for t in range(case["S_q"]))
    for name, addends, size in (("d_kv", len(shares), sizes[:-1]), ("d_sink", case["S_q"], sinks)):
        assert bool(((cut[name].double() - whole[name]).abs() <= 2 * (addends - 1) * 2.0**-24 * size).all())
    assert not same({"d_kv": cut["d_kv"]}, {"d_kv": whole["d_kv"]})


def test_it_runs_where_determinism_is_asked_for() -> None:
    call = given(FULL.but(d_kv="fp32"))
    before = eager.vjp(**call)
    torch.use_deterministic_algorithms(True)
    try:
        assert same(eager.vjp(**call), before)
    finally:
        torch.use_deterministic_algorithms(False)


def test_d_kv_is_added_in_the_order_of_query_and_slot() -> None:
    """FP32 sums of a row's shares, one after the other: three shares whose other orders give other bits."""
    shares = torch.tensor([[2.0**24], [1.0], [1.0], [-(2.0**24)]])
    sums = torch.zeros((2, 1))
    eager.add_by_row(sums, shares, torch.tensor([1, 1, 1, 1]))
    assert sums.flatten().tolist() == [0.0, 0.0]
    sums.zero_()
    eager.add_by_row(sums, shares[[1, 2, 0, 3]], torch.tensor([1, 1, 1, 1]))
    assert sums.flatten().tolist() == [0.0, 2.0]
    sums.zero_()
    eager.add_by_row(sums, shares, torch.tensor([1, 2, 0, 2]))
    assert sums.flatten().tolist() == [1.0, 2.0**24]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "sizes", [(5, 9, 3, 24, 16, 7), (1, 40, 16, 16, 16, 63), (6, 7, 2, 8, 8, 1), (0, 4, 2, 8, 8, 3)]
)
def test_the_workspace_is_stated_to_the_byte(sizes: tuple[int, ...], dtype: str) -> None:
    made: Any = named
    for facts in ({"sink": "none"}, {"sink": "finite", "length": "partial", "d_kv": "fp32"}):
        case = made(*sizes, dtype=dtype, regime="normal", **facts)
        figures = memory(EAGER, case, QUICK).figures
        assert figures["measured"] == figures["formula"] == contracts.eager_workspace(case)


def test_the_workspace_is_stated_for_several_chunks_too(small_chunks: None) -> None:
    figures = memory(EAGER, FULL, QUICK).figures
    assert figures["measured"] == figures["formula"]


def test_longer_problems_take_no_more_than_their_sums() -> None:
    long = named(16384, 524288, 64, 576, 512, 2048, dtype="bf16")
    chunk = 3 * blocks.CHUNK_BYTES
    assert contracts.eager_workspace(long) < 2 * 4 * 524288 * 576 + 2 * chunk


def test_what_does_not_fit_is_refused_before_it_is_allocated() -> None:
    call = given(FULL)
    need = contracts.eager_workspace(FULL)
    assert same(eager.vjp(**call, budget=need), eager.vjp(**call))
    for refused in (forward, lambda given: eager.vjp(**given)):
        with pytest.raises(WorkspaceExceeded, match=f"needs {need} bytes of workspace for S_q=5, .* but {need - 1}"):
            refused({**call, "budget": need - 1})


def verdict(spec: KernelSpec, case: Case) -> dict[str, Status]:
    return {name: o.status for name, o in LAW["accuracy"].judge(spec, case, CI).outputs.items()}


CHAINED = named(5, 40, 2, 16, 16, 24, indices="random", regime="normal", dtype="bf16")


def test_a_chain_is_judged_with_the_saved_output_that_it_should_have_had() -> None:
    """A forward that saves an `out` of too few bits: its vjp makes the right thing of that, the chain does not."""

    def coarse(**call: Any) -> dict[str, Tensor]:
        saved = eager.forward(**call)
        return {**saved, "out": (saved["out"].float() * 64).round().div(64).to(saved["out"].dtype)}

    alone, chain = EAGER.but(forward=coarse), EAGER.but(forward=coarse, saved="recomputed")
    assert verdict(alone, CHAINED) | {"out": Status.PASS} == dict.fromkeys(EAGER.judged, Status.PASS)
    assert verdict(alone, CHAINED)["out"] is Status.FAIL
    assert verdict(chain, CHAINED)["d_q"] is Status.FAIL


def test_an_honest_chain_holds() -> None:
    assert set(verdict(EAGER.but(saved="recomputed"), CHAINED).values()) == {Status.PASS}


def test_a_chain_needs_both_halves() -> None:
    with pytest.raises(ValueError, match="saved='recomputed' judges forward and vjp as one"):
        EAGER.but(vjp=None, saved="recomputed")


def first_slot_counts_double(**call: Any) -> dict[str, Tensor]:
    results = eager.forward(**call)
    first = call["topk_idxs"][:, :1].clamp(0, len(call["kv"]) - 1).long()
    extra = call["kv"][first][..., : call["value_dim"]]
    return {**results, "out": results["out"] + (0.25 * extra).to(results["out"].dtype)}


def holes_read_row_0(**call: Any) -> dict[str, Tensor]:
    return eager.forward(**{**call, "topk_idxs": call["topk_idxs"].clamp(min=0)})


def head_0_has_the_sink_of_all(**call: Any) -> dict[str, Tensor]:
    return eager.forward(**{**call, "sink": call["sink"][:1].expand(len(call["sink"]))})


def row_0_is_no_row(**call: Any) -> dict[str, Tensor]:
    idxs = call["topk_idxs"]
    return eager.forward(**{**call, "topk_idxs": torch.where(idxs == 0, -1, idxs)})


BREAKS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "slots in another order": first_slot_counts_double,
    "slots padded with holes": holes_read_row_0,
    "a duplicate split over two equal rows": duplicates_counted_once,
    "heads in another order": head_0_has_the_sink_of_all,
    "KV rows in another order": row_0_is_no_row,
}
RELATED = named(3, 8, 3, 16, 16, 6, indices="duplicates", sink="finite", regime="normal")


@pytest.mark.parametrize("relation", EAGER.oracle.relations, ids=lambda relation: relation.name)
def test_each_relation_breaks_a_kernel_and_holds_for_the_right_one(relation: Relation) -> None:
    broken = EAGER.but(forward=BREAKS[relation.name], vjp=None, oracle=replace(EAGER.oracle, relations=(relation,)))
    verdict = LAW["invariance"].judge(broken, RELATED, QUICK)
    failed = [gate.reason for gate in verdict.gates if not gate.held]
    assert any(relation.name in reason for reason in failed), failed
    right = LAW["invariance"].judge(broken.but(forward=eager.forward), RELATED, QUICK)
    assert right.status is Status.PASS
