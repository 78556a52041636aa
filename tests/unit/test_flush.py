"""Points behind which what is below the normal range is zero, as instructions with .ftz leave it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.sparse_mla import SPECS
from numcheck import Case, Contract, Rounding
from numcheck.contract import Policy, Sum
from numcheck.declared import declared
from numcheck.oracles import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.reading import Emulation, Noise, Radius, Truth, read
from numcheck.reading.ball import Ball
from numcheck.sample import sample
from numcheck.ulp import flushed

NORMAL = 2.0**-126
USUAL: dict[str, str | Rounding] = {"d_q": "bf16", "d_kv": "bf16", "P.backward": "bf16", "dS": "bf16"}
FLUSHING: dict[str, str | Rounding] = {
    **USUAL,
    "P.backward": Rounding("bf16", flush=True),
    "P.dS": Rounding("fp32", flush=True),
}


def policy(rounding: Rounding) -> Policy:
    return Policy({"p": rounding}, {"": Sum()})


def of(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_every_reading_flushes_at_the_border_and_nowhere_else() -> None:
    p = of(NORMAL, -NORMAL, 0.9 * NORMAL, -0.9 * NORMAL, 1 + 2.0**-30, math.nan)
    left = of(NORMAL, -NORMAL, 0.0, -0.0, 1 + 2.0**-30, math.nan)
    alone = policy(Rounding("fp32", flush=True))
    torch.testing.assert_close(flushed(p, "fp32"), left, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(Emulation(alone).at("p", p), left, rtol=0, atol=0, equal_nan=True)
    assert Noise(alone, seed=0).at("p", p)[2:4].tolist() == [0.0, 0.0]
    assert Radius(alone).at("p", Ball.exact(p[:5])).radius.tolist() == [0.0, 0.0, 0.9 * NORMAL, 0.9 * NORMAL, 0.0]
    # FP16's own subnormals are not what the FP32 instruction flushes.
    assert Emulation(policy(Rounding("fp16", flush=True))).at("p", of(2.0**-20)).item() == 2.0**-20
    assert Emulation(policy(Rounding("bf16", flush=True))).at("p", of(1 + 2.0**-9, NORMAL / 2)).tolist() == [1.0, 0.0]


def test_a_ball_that_reaches_below_the_border_has_zero_in_it_and_no_other_is_wider() -> None:
    value, radius = of(1.2, 1.2, 0.5, 0.0, -1.2) * NORMAL, of(0.1, 0.3, 0.7, 0.1, 0.3) * NORMAL
    found = Ball(value, radius).flushed(NORMAL).radius
    assert found.tolist() == (of(0.1, 1.2, 0.7, 0.1, 1.2) * NORMAL).tolist()


def test_the_promise_is_in_words() -> None:
    assert Rounding("fp32", flush=True).words == "fp32 (flushed below the normal range)"


@pytest.mark.parametrize("lost", [2.0**-127, 2.0**-120])
def test_a_flushed_power_is_allowed_where_the_contract_says_so_and_a_lost_one_never(lost: float) -> None:
    """Slots of one row add up to a d_q that is normal, though the power of each is not."""
    case = named(1, 2, 1, 1, 1, 64, dtype="bf16", indices="distinct", sink="none", regime="normal")
    made = sample(sparse_mla, case)
    exact = {**made.exact(), "softmax_scale": 1.0}
    listed = torch.ones(1, 64, dtype=torch.int64)
    listed[0, 0] = 0
    exact |= {"topk_idxs": listed, "q": of(1).reshape(1, 1, 1), "kv": of(0, math.log(lost)).reshape(2, 1)}
    exact |= {"d_out": of(1).reshape(1, 1, 1)}
    saved = {"out": of(0).reshape(1, 1, 1), "lse": of(0).reshape(1, 1)}
    truth = read(sparse_mla, Truth(), exact, saved)
    assert float(truth["d_q"].abs()) > NORMAL
    error = truth["d_q"].abs()  # that of a kernel whose powers below `lost` are zero
    silent, said = (read(sparse_mla, Radius(_policy(r, case)), exact, saved)["d_q"] for r in (USUAL, FLUSHING))
    assert float(error) > float(silent)
    assert (float(error) <= float(said)) == (lost < NORMAL)
    if lost < NORMAL:
        assert read(sparse_mla, Emulation(_policy(FLUSHING, case)), exact, saved)["d_q"].item() == 0.0


def test_an_addition_that_flushes_loses_at_most_its_term_and_its_sum() -> None:
    """Two subnormal addends give zero where FP32 atomics add them; no other sum is allowed that."""
    terms, index = of(0.8, 0.8, 1.0).reshape(3, 1) * NORMAL, torch.tensor([0, 0, 1])
    silent, said = (
        Radius(Policy({}, {"": Sum(flush=flush)})).scatter("d_kv", Ball.exact(terms), index, 3)
        for flush in (False, True)
    )
    assert float(silent.radius[0]) < 1.6 * NORMAL < float(said.radius[0]) <= 4.1 * NORMAL
    assert float(said.radius[2]) == 0.0, "where nothing is added, nothing is lost"
    assert (
        "flushed below the normal range"
        in declared(next(s for s in SPECS if s.name == "sparse_mla.triton_atomic"))["sums (fp32)"]
    )


def _policy(rounds: dict[str, str | Rounding], case: Case) -> Policy:
    return Contract(rounds=rounds).policy(case)
