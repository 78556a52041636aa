"""Sparse MLA in Triton against an FP64 reference written here and nowhere else, and what its sums of d_kv claim."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.sparse_mla import SPECS, tiles, workspace
from kernels.sparse_mla import triton_contracts as contracts
from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.cudnn_contracts import writers as cudnn_writers
from numcheck import Case, KernelSpec, interpreter
from numcheck.errors import NotDeterministic, WorkspaceExceeded
from numcheck.execute import execute
from numcheck.oracles.sparse_mla_cases import named
from numcheck.order import orders
from numcheck.sample import Sample, place, sample
from numcheck.vacuity import record

pytestmark = pytest.mark.skipif(not interpreter.active(), reason="what a device computes is the laws' to judge")

TRITON = {spec.name.removeprefix("sparse_mla.triton_"): spec for spec in SPECS if "triton" in spec.name}
BACKWARDS = ("atomic", "ordered", "fixed_point")
# Roundings of a 16-bit result on its way (P, dS, itself), and FP32 operations whose errors meet in one element.
ROUNDINGS, OPERATIONS = 4, 200
UNITS = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}

# Seeds the orders that are tried.
ANY_KEY = "5eed"

Tensors = dict[str, Tensor]


def problem(n: Sizes, dtype: torch.dtype = torch.float32, seed: int = 0, *, length: bool = True) -> dict[str, Any]:
    """Every input and cotangent by name, a hole or an index beyond S_k in some slots; kv rows 0 and 1 are unlisted."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    idxs = torch.randint(1, n.S_k + 1, (n.S_q, n.topk), generator=generator, dtype=torch.int32)
    return {
        "q": normal(n.S_q, n.H, n.D).to(dtype),
        "kv": normal(n.S_k, n.D).to(dtype),
        "topk_idxs": torch.where(idxs == 1, -1, idxs),
        "topk_length": torch.randint(0, n.topk + 2, (n.S_q,), generator=generator, dtype=torch.int32)
        if length
        else None,
        "sink": normal(n.H) if length else None,
        "d_out": normal(n.S_q, n.H, n.D_v).to(dtype),
        "softmax_scale": n.D**-0.5,
        "value_dim": n.D_v,
    }


def reference(given: Mapping[str, Any], out: Tensor | None = None) -> tuple[Tensors, Tensors]:
    """Results in FP64, and the size of the terms that each is made of. `out` is what the forward saved."""
    q, kv, g = (given[name].double() for name in ("q", "kv", "d_out"))
    idxs, sink, value = given["topk_idxs"], given["sink"], given["value_dim"]
    live = (idxs >= 0) & (idxs < len(kv))
    if given["topk_length"] is not None:
        live &= torch.arange(idxs.shape[1]) < given["topk_length"][:, None]
    row, alive = torch.where(live, idxs, 0).long(), live.any(-1)[:, None]
    keys = torch.where(live[..., None], kv[row], 0.0)
    score = torch.einsum("thd,tjd->thj", q, keys) * given["softmax_scale"]
    lse = torch.logsumexp(score.masked_fill(~live[:, None], -math.inf), -1)
    total = lse if sink is None else torch.logaddexp(lse, sink.double())
    p = torch.where(live[:, None], torch.exp(score - total[..., None]), 0.0)
    made = {"out": p @ keys[..., :value], "lse": torch.where(alive, lse, math.inf)}
    sizes = {"out": p @ keys[..., :value].abs(), "lse": 1 + made["lse"].abs()}
    saved = made["out"] if out is None else out.double()
    dots, dots_size = (g * saved).sum(-1), (g * saved).abs().sum(-1)
    scale = given["softmax_scale"]
    d_s = p * (g @ keys[..., :value].mT - dots[..., None]) * scale
    s_size = p * (g.abs() @ keys[..., :value].abs().mT + dots_size[..., None]) * scale
    for kind, s, probability, a, b, k in (
        (made, d_s, p, q, g, keys),
        (sizes, s_size, p, q.abs(), g.abs(), keys.abs()),
    ):
        shares = s.mT @ a
        shares[..., :value] += probability.mT @ b
        kind["d_q"] = s @ k
        kind["d_kv"] = torch.zeros_like(kv).index_add_(0, row[live], shares[live])
    if sink is not None:
        share = torch.where(alive, torch.exp(sink.double() - total), 0.0)
        made["d_sink"], sizes["d_sink"] = -(share * dots).sum(0), (share * dots_size).sum(0)
    return made, sizes


def run(spec: KernelSpec, given: Mapping[str, Any], n: Sizes, **rest: Any) -> Tensors:
    """What the spec computes in the repaired interpreter; saved outputs are the reference's, rounded once."""
    dtype = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[given["q"].dtype]
    facts = {
        "sink": "none" if given["sink"] is None else "finite",
        "length": "none" if given["sink"] is None else "partial",
    }
    case = named(**n._asdict(), dtype=dtype, **facts)
    inputs = {name: given[name] for name in ("q", "kv", "topk_idxs", "topk_length", "sink") if given[name] is not None}
    scalars = {name: given[name] for name in ("softmax_scale", "value_dim")}
    saved = None if spec.forward else saved_for(given)
    done = execute(spec, Sample(case, inputs, {"d_out": given["d_out"]}, scalars), saved=saved, **rest)
    assert not done.error
    assert not done.findings
    return dict(done.outputs)


def saved_for(given: Mapping[str, Any]) -> Tensors:
    made, _ = reference(given)
    return {"out": made["out"].to(given["q"].dtype), "lse": made["lse"].float()}


def call(name: str, given: Mapping[str, Any], **rest: Any) -> Tensors:
    """The backward itself, with keywords of its own."""
    from kernels.sparse_mla import fixed_point

    # As callers have it, whose first scale is their own choice.
    vjp = fixed_point.vjp if name == "fixed_point" else TRITON[name].vjp
    with interpreter.session():
        done = vjp(**{**given, **saved_for(given), **rest})
    return dict(done)


def assert_right(got: Tensors, given: Mapping[str, Any], unit: float | None = None) -> None:
    made, sizes = reference(given, saved_for(given)["out"])
    unit = UNITS[given["q"].dtype] if unit is None else unit
    for name, value in got.items():
        allowed = (ROUNDINGS * unit * (name != "lse") + OPERATIONS * 2.0**-24) * sizes[name]
        finite = torch.isfinite(made[name])
        assert torch.equal(value.double()[~finite], made[name][~finite])
        assert bool(((value.double() - made[name]).abs() <= allowed)[finite].all()), name


def raw(t: Tensor) -> Tensor:
    return t.view({2: torch.int16, 4: torch.int32}[t.element_size()])


@pytest.mark.parametrize("dtype", UNITS, ids=str)
@pytest.mark.parametrize("name", TRITON)
def test_right_for_any_sizes_and_strides(name: str, dtype: torch.dtype) -> None:
    for seed, n in enumerate((Sizes(3, 9, 3, 21, 13, 7), Sizes(2, 40, 70, 72, 64, 33))):
        given = problem(n, dtype, seed, length=seed == 0)
        laid_out = {k: place(v, "strided", 1) if isinstance(v, Tensor) else v for k, v in given.items()}
        assert_right(run(TRITON[name], laid_out, n), given)


@pytest.mark.parametrize("name", TRITON)
def test_nothing_of_a_dead_row_or_an_unlisted_one_enters(name: str) -> None:
    n = Sizes(3, 9, 2, 20, 16, 5)
    given = problem(n)
    given["topk_idxs"][1] = -1
    right = saved_for(given)
    poisoned = {k: v.clone() if isinstance(v, Tensor) else v for k, v in given.items()}
    poisoned["kv"][:2] = math.nan
    poisoned["q"][1] = poisoned["d_out"][1] = math.inf
    bad = {k: v.clone() for k, v in right.items()}
    bad["out"][1], bad["lse"][1] = math.nan, math.nan
    spec = TRITON[name]
    with interpreter.session():
        if spec.forward:
            inputs = {k: v for k, v in given.items() if k != "d_out"}
            clean, dirty = (spec.forward(**{**inputs, **{k: of[k] for k in inputs}}) for of in (given, poisoned))
        else:
            clean, dirty = spec.vjp(**given, **right), spec.vjp(**poisoned, **bad)
    for output, value in clean.items():
        assert torch.equal(raw(value), raw(dirty[output])), output


@pytest.mark.parametrize("queries", [1, 2, 3])
def test_where_a_chunk_of_queries_ends_changes_no_bit(queries: int) -> None:
    given = problem(Sizes(5, 7, 3, 20, 16, 9))
    whole, cut = call("ordered", given), call("ordered", given, queries=queries)
    assert all(torch.equal(raw(value), raw(cut[name])) for name, value in whole.items())


def test_integer_sums_do_not_depend_on_order() -> None:
    n = Sizes(5, 4, 2, 20, 16, 9)
    given, first = problem(n), None
    for order in (None, *orders(ANY_KEY, n.S_q, 3)):
        bits_now = raw(run(TRITON["fixed_point"], given, n, order=order)["d_kv"])
        first = bits_now if first is None else first
        assert torch.equal(first, bits_now)


class Passes:
    """Watches the passes over d_kv: the retry flags before the second, which may be left out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, second: bool = True) -> None:
        from kernels.sparse_mla.halves import Backward

        self.flags: list[Tensor] = []
        original = Backward.kv_half

        def kv_half(this: Backward, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("again"):
                self.flags.append(kwargs["scales"].retries.clone())
                if not second:
                    return
            original(this, *args, **kwargs)

        monkeypatch.setattr(Backward, "kv_half", kv_half)


def on_one_row(dtype: torch.dtype) -> dict[str, Any]:
    """All queries on one KV row, with a huge d_out; a second row is listed once."""
    given = problem(Sizes(6, 5, 2, 20, 16, 4), dtype, length=False)
    given["topk_idxs"][:] = 3
    given["topk_idxs"][0, 0] = 2
    given["d_out"] *= 2.0**12
    return given


@pytest.mark.parametrize("finer", [3, 20, 60])
def test_a_scale_too_fine_is_caught_and_the_second_pass_is_right(finer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = on_one_row(torch.bfloat16)
    seen = Passes(monkeypatch)
    assert_right(call("fixed_point", given, finer=finer, d_kv_dtype="fp32"), given)
    (flags,) = seen.flags
    assert flags[3] == 1
    assert flags[-1] == 1
    Passes(monkeypatch, second=False)
    missed = call("fixed_point", given, finer=finer)["d_kv"]
    assert not missed[3].any()


def test_where_every_proof_held_the_second_pass_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = on_one_row(torch.float32)
    once = Passes(monkeypatch, second=False)
    alone = call("fixed_point", given, finer=0)["d_kv"]
    assert not once.flags[0][:-1].any()
    assert once.flags[0][-1] == -1
    monkeypatch.undo()
    assert torch.equal(raw(alone), raw(call("fixed_point", given, finer=0)["d_kv"]))
    assert_right({"d_kv": alone}, given)


def test_a_row_that_nothing_proved_comes_back_as_nan() -> None:
    n = Sizes(3, 5, 2, 16, 16, 4)
    got = run(TRITON["fixed_point"], problem(n), n, silent="sparse_mla_prove_sums")
    assert bool(got["d_kv"].isnan().all())


def test_a_contribution_that_is_not_finite_makes_its_row_nan_and_no_other() -> None:
    given = on_one_row(torch.float32)
    clean = call("fixed_point", given)["d_kv"]
    given["d_out"][0, 0, 0] = math.nan  # query 0 lists rows 2 and 3, and nobody row 4
    got = call("fixed_point", given)["d_kv"]
    assert bool(got[2:4].isnan().all())
    assert torch.equal(raw(got[4]), raw(clean[4]))


CASES = (
    named(5, 9, 3, 24, 16, 6, indices="duplicates", length="partial", d_kv="fp32", dtype="bf16"),
    named(3, 7, 18, 20, 16, 5, indices="holes", sink="none", d_kv="fp32"),
    named(2, 40, 1, 16, 16, 65, indices="one_row", length="beyond", dtype="fp16"),
    named(4, 6, 2, 24, 16, 3, indices="out_of_range"),
    named(2, 6, 2, 24, 16, 3, indices="nothing", dtype="bf16"),
)


def measured(name: str, case: Case, **rest: Any) -> Any:
    drawn = sample(TRITON[name].oracle, case)
    saved = record(TRITON[name], drawn).saved(TRITON[name], drawn) if TRITON[name].forward is None else None
    return execute(TRITON[name], drawn, saved=saved, **rest)


@pytest.mark.parametrize("case", [c for c in CASES if c.dtype == "fp32" or c.fact("d_kv", "data") == "fp32"], ids=str)
def test_the_ownership_map_is_what_the_interpreter_measures(case: Case) -> None:
    claimed, footprints = contracts.writers(case), measured("atomic", case, measure=True).evidence.footprints
    assert footprints["d_kv"].addends == claimed["d_kv"]
    for name in ("d_q", "d_sink"):
        assert name not in footprints or (footprints[name].writers, footprints[name].atomic) == (claimed[name], False)
    for name, footprint in measured("forward", case, measure=True).evidence.footprints.items():
        assert name == "workspace" or footprint.writers == claimed[name]


HEADS = (
    named(4, 5, 65, 16, 16, 6, indices="duplicates", length="partial", d_kv="fp32", dtype="bf16"),
    named(3, 4, 128, 16, 16, 3, indices="one_row", d_kv="fp32", dtype="fp16"),
    named(2, 6, 3, 16, 16, 4, indices="holes", d_kv="fp32", dtype="bf16"),
)


@pytest.mark.parametrize("case", HEADS, ids=str)
def test_cudnn_s_ownership_map_of_d_kv_is_what_its_twin_shows(case: Case) -> None:
    """Both have a program (CTA) a query and 64 heads, which adds to a KV row once a slot that lists it."""
    assert measured("atomic", case, measure=True).evidence.footprints["d_kv"].addends == cudnn_writers(case)["d_kv"]


@pytest.mark.parametrize("name", TRITON)
def test_the_workspace_is_what_the_formula_says_to_the_byte(name: str) -> None:
    for case in CASES:
        done = measured(name, case)
        assert not done.error
        returned = sum(t.nbytes for t in done.outputs.values())
        assert done.evidence.peak_bytes - returned == TRITON[name].contract.workspace(case)


@pytest.mark.parametrize("name", BACKWARDS)
def test_what_does_not_fit_its_budget_raises_before_anything_is_allocated(name: str) -> None:
    n = Sizes(3, 9, 2, 20, 16, 5)
    need = {
        "atomic": workspace.atomic_bytes(n, True),
        "ordered": workspace.ordered_bytes(n, True, 4, 3),
        "fixed_point": workspace.fixed_point_bytes(n),
    }[name]
    spec, given = TRITON[name], problem(n)
    call(name, given, budget=need)
    tight = spec.but(vjp=lambda **inputs: spec.vjp(**inputs, budget=need - 1))
    case = named(**n._asdict(), length="partial")
    done = measured_with(tight, case)
    assert "WorkspaceExceeded" in done.error
    assert done.evidence.peak_bytes == 0
    assert not done.evidence.launches
    with pytest.raises(WorkspaceExceeded, match=rf"needs {need} bytes .*S_q=3.*but {need - 1} are allowed"):
        call(name, given, budget=need - 1)


def measured_with(spec: KernelSpec, case: Case) -> Any:
    drawn = sample(spec.oracle, case)
    return execute(spec, drawn, saved=record(spec, drawn).saved(spec, drawn))


@pytest.fixture
def asked() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("asked")
def test_a_determinism_request_is_honoured_or_refused() -> None:
    given = problem(Sizes(3, 5, 2, 16, 16, 4))
    with pytest.raises(NotDeterministic, match=r"ordered\.vjp or fixed_point\.vjp"):
        call("atomic", given)
    for name in ("ordered", "fixed_point"):
        assert_right(call(name, given), given)


def test_keywords_out_of_range_are_refused() -> None:
    given = problem(Sizes(3, 5, 2, 16, 16, 4))
    with pytest.raises(ValueError, match="queries is 0"):
        call("ordered", given, queries=0)


def test_more_contributions_than_are_proven_are_refused() -> None:
    given = problem(Sizes(2, 5, 1, 16, 16, 4), length=False)
    given["topk_idxs"] = torch.full((1, 1), -1, dtype=torch.int32).expand(2, 2**26 + 1)
    saved = {"out": torch.zeros(2, 1, 16), "lse": torch.full((2, 1), math.inf)}
    with pytest.raises(ValueError, match="call this for fewer queries at a time"):
        TRITON["fixed_point"].vjp(**given, **saved)


def test_tiles_fit_a_program_or_are_refused() -> None:
    for D in (512, 576):
        cut = tiles.tiles_of(Sizes(16384, 16384, 64, D, 512, 2048), 2)
        assert cut[:4] == (64, 64, 512, D - 512)
        assert D % cut.width == 0
    assert tiles.tiles_of(Sizes(1, 1, 1, 1, 1, 1), 4)[:4] == (16, 16, 16, 0)
    assert tiles.tiles_of(Sizes(1, 1, 128, 1024, 1024, 64), 2)[:2] == (32, 32)
    with pytest.raises(ValueError, match="take fewer features"):
        tiles.tiles_of(Sizes(1, 1, 1, 4096, 4096, 1), 4)
