"""Small outputs have no band of their own: what single Cases cannot show, the pool does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from numcheck.gate import Gate
from numcheck.pool import FEWEST_POOLED, pooled_gates, pooled_share
from numcheck.residual import Residual
from numcheck.ulp import round_to
from tests.unit.test_judge import normal, readings


def shares(count: int, size: int, grid: str = "bf16", broken: Any = None) -> list[dict[str, Any]]:
    made = [readings(normal(size, seed=k), grid, seed=100 + k) for k in range(count)]
    found = [pooled_share(r if broken is None else broken(r)) for r in made]
    return [share for share in found if share is not None]


def truncating(r: Residual) -> Residual:
    return replace(r, got=round_to(r.truth, "bf16", "truncate"))


def doubled(r: Residual) -> Residual:
    return replace(r, got=r.truth + 1.3 * (r.got - r.truth))


def kinds(gates: list[Gate]) -> set[str]:
    return {g.kind for g in gates if not g.held}


@pytest.mark.parametrize("grid", ["bf16", "fp32"])
@pytest.mark.parametrize("size", [3, 31, 400])
def test_right_outputs_pool_to_one(grid: str, size: int) -> None:
    gates = pooled_gates("out", shares(60, size, grid))
    assert kinds(gates) == set()
    assert not any(g.vacuous for g in gates)
    band = next(g for g in gates if g.kind == "band")
    assert band.value == pytest.approx(1.0, abs=0.15)


def test_truncation_of_three_elements_a_case_is_seen_in_the_pool() -> None:
    assert kinds(pooled_gates("out", shares(60, 3, broken=truncating))) == {"match", "band", "bias"}


def test_an_error_a_third_too_large_passes_each_band_and_not_the_pool() -> None:
    assert "band" in kinds(pooled_gates("out", shares(60, 100, broken=doubled)))


def test_fp32_outputs_pool_one_sided() -> None:
    def better(r: Residual) -> Residual:
        return replace(r, got=r.truth)

    def worse(r: Residual) -> Residual:
        return replace(r, got=r.truth + 2 * (r.noise[0] - r.truth))

    assert kinds(pooled_gates("out", shares(60, 31, "fp32", better))) == set()
    assert kinds(pooled_gates("out", shares(60, 31, "fp32", worse))) == {"band"}


def test_a_large_case_does_not_drown_the_small_ones() -> None:
    large = shares(1, 30_000)
    assert "band" in kinds(pooled_gates("out", [*large, *shares(60, 31, broken=truncating)]))


def test_too_few_errors_say_so() -> None:
    gates = pooled_gates("out", shares(3, 2))
    assert FEWEST_POOLED > 3 * 2
    assert all(g.vacuous for g in gates)
    assert pooled_gates("out", []) == []


def test_nothing_is_learned_from_exact_or_broken_outputs() -> None:
    integers = readings(torch.arange(9.0, dtype=torch.float64))
    assert pooled_share(integers) is None
    r = readings(normal(9))
    assert pooled_share(replace(r, got=r.got * torch.nan)) is None


def test_a_share_is_plain_json() -> None:
    share = shares(1, 31)[0]
    assert json.loads(json.dumps(share)) == share
