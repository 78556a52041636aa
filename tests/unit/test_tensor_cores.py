"""Sums on tensor cores, emulated from what is published of Hopper's: promised so they hold, promised to nearest not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck import Contract, KernelSpec, Sum
from numcheck.errors import InvalidSpec
from numcheck.judge import gates
from numcheck.oracles.sparse_mla import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.reading import Emulation, read, readings
from numcheck.reading.tree import growths, spread
from numcheck.sample import sample
from numcheck.ulp import cast, round_to, ulp

# Hopper adds 16 products of 16-bit numbers at a time and cuts them 25 bits below the largest (arXiv 2512.07004).
AT_ONCE, BELOW = 16, 2
DOTS = ("S", "out", "dP", "d_q", "dK", "dV")
CORES = Sum(rounding="any", aligned=AT_ONCE)


def on_tensor_cores(terms: Tensor) -> Tensor:
    """The sum over the last axis: blocks of terms and the sum so far cut at one place, the result truncated to FP32."""
    total = torch.zeros(terms.shape[:-1], dtype=torch.float64)
    for block in terms.split(AT_ONCE, -1):
        cut = ulp(torch.maximum(block.abs().amax(-1), total.abs()), "fp32") * 2.0**-BELOW
        parts = torch.cat([block, total.unsqueeze(-1)], -1)
        total = round_to((torch.trunc(parts / cut.unsqueeze(-1)) * cut.unsqueeze(-1)).sum(-1), "fp32", "truncate")
    return total


class Device(Emulation):
    """What a right kernel gives whose matrix products run on tensor cores."""

    def _multiply(self, name: str, a: Any, b: Any, onto: Any) -> Any:
        return self._made(on_tensor_cores(a.unsqueeze(-2) * b.mT.unsqueeze(-3)))


def test_the_lean_of_a_sum_is_within_what_is_predicted() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = (torch.rand(2, 200, 512, generator=generator) + 3).half().double()
    terms = factors[0] * factors[1]
    lean = on_tensor_cores(terms) - terms.sum(-1)
    mean, deviation = spread(terms, CORES)
    assert mean is not None
    assert deviation is not None
    share = float(lean.mean() / mean.mean())
    # Cuts at half of an ulp are foretold, cuts at a quarter were made; what truncation makes of a result is the same.
    assert 0.5 < share < 1
    assert bool((lean.abs() <= growths(CORES, torch.tensor(512.0, dtype=torch.float64)) * terms.sum(-1)).all())
    nearest = spread(terms, Sum())
    assert nearest[0] is None
    assert nearest[1] is not None
    assert float(lean.abs().mean() / nearest[1].mean()) > 3


def test_terms_that_end_above_the_cut_lose_nothing() -> None:
    terms = torch.tensor([[1.0, 2.0**-10, -(2.0**-12)]], dtype=torch.float64)
    assert spread(terms, CORES) == (None, None)
    lost = torch.tensor([[1.0, 2.0**-30]], dtype=torch.float64)
    mean, _ = spread(lost, CORES)
    assert mean is not None
    assert float(mean) < 0


CASE = named(4, 16, 8, 256, 256, 16, indices="random", sink="finite", dtype="fp16", regime="mean4", logits=16)


@pytest.mark.parametrize("dot", [CORES, Sum()], ids=["as tensor cores add", "to nearest"])
def test_a_right_kernel_holds_where_its_contract_says_how_it_adds(dot: Sum) -> None:
    rounds = dict.fromkeys(("out", "d_q", "d_kv", "P.forward", "P.backward", "dS"), "data")
    contract = Contract(rounds=rounds, accumulate={"": "fp32", **dict.fromkeys(DOTS, dot)})
    spec = KernelSpec("sparse_mla.device", sparse_mla, forward=dict, vjp=dict, contract=contract)
    made = sample(sparse_mla, CASE)
    results = read(sparse_mla, Device(contract.policy(CASE)), made.exact())
    outputs = {name: cast(t, sparse_mla.result(name).dtype_for(CASE)) for name, t in results.items()}
    saved = {name: outputs[name].double() for name in ("out", "lse")}
    found = gates(spec, CASE, outputs, readings(sparse_mla, contract.policy(CASE), made, 16, saved))
    broken = {(gate.output, gate.kind) for gate in found if not gate.held}
    if dot is CORES:
        assert not broken
    else:
        assert ("d_kv", "bias") in broken
    assert all(gate.held for gate in found if gate.kind == "ceiling")


def test_a_truncating_cast_is_still_caught() -> None:
    """Sums of open rounding allow no more of a cast than it was allowed before."""
    case = CASE.but(regime="normal", logits=1, dtype="bf16")
    contract = Contract(rounds={"out": "bf16"}, accumulate={"": "fp32", **dict.fromkeys(DOTS, CORES)})
    spec = KernelSpec("sparse_mla.device", sparse_mla, forward=dict, vjp=None, contract=contract)
    made = sample(sparse_mla, case)
    exact = read(sparse_mla, Emulation(replace(contract.policy(case), rounds={})), made.exact())
    outputs = {
        "out": round_to(exact["out"], "bf16", "truncate").bfloat16(),
        "lse": exact["lse"].float(),
    }
    found = gates(spec, case, outputs, readings(sparse_mla, contract.policy(case), made, 16))
    assert {gate.kind for gate in found if gate.output == "out" and not gate.held} >= {"bias", "match"}


def test_a_term_in_several_shares_is_added_as_often() -> None:
    generator = torch.Generator().manual_seed(1)
    share = torch.randn(50, 1, generator=generator).double().expand(50, 64)
    # Four shares of a term, those of a first block of heads before those of the next.
    whole = share * 4
    chain = share.repeat(1, 4).contiguous()
    total = torch.zeros(50, dtype=torch.float32)
    for k in range(chain.shape[1]):
        total = total + chain[:, k].float()
    error = (total.double() - chain.float().double().sum(-1)).square().mean().sqrt()
    alone, split = (spread(whole.float().double(), Sum(products=False, split=n))[1] for n in (1, 4))
    assert alone is not None
    assert split is not None
    assert float(error / alone.square().mean().sqrt()) > 1.5
    assert float(error / split.square().mean().sqrt()) < 1
    count = torch.tensor(64.0, dtype=torch.float64)
    assert float(growths(Sum(split=4), count)) > 3.9 * float(growths(Sum(), count))


@pytest.mark.parametrize("rest", [{"rounding": "nearest"}, {"block": 4}, {"tree": "pairwise"}])
def test_aligned_terms_of_a_tree_that_they_cannot_have_are_refused(rest: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match="aligned terms are cut"):
        Sum(**{"rounding": "any", "aligned": 16, **rest})
    with pytest.raises(InvalidSpec, match="a term arrives in 1 share"):
        Sum(split=0)
    with pytest.raises(InvalidSpec, match="allowed: nearest, truncate, any"):
        Sum(rounding="up")  # type: ignore[arg-type]
