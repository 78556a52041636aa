"""The kernels around cuDNN's fixed-point scatter, against the scatter in torch: order, carries, proof, second pass."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kernels.sparse_mla import cudnn_tables as tables

sums = pytest.importorskip("kernels.sparse_mla.cudnn_fixed_sums", reason="needs triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="these run in Triton's interpreter")

ROWS, D = 64, 64
WRAP = 2**32
# Of the sink's share and term, in FP32: the scaled argument (1 ulp of 1.44 is 1 ulp of its power), exp2 (2), one more,
# the reciprocal, times D, and the two additions that a sum of two takes.
SINK_ROUNDINGS = 8


class Scatter:
    """Contributions c [N, D] to rows [N], added as the kernel adds them, in any order."""

    def __init__(self, c: Tensor, row: Tensor) -> None:
        self.c, self.row = c, row
        self.words = torch.zeros(ROWS * (D + tables.WORDS), dtype=torch.int32)
        self.retry = torch.zeros(1, dtype=torch.int32)

    def table(self, first: int, words: int, dtype: torch.dtype) -> Tensor:
        start = ROWS * (D + first)
        return self.words[start : start + words * ROWS].view(dtype)

    @property
    def four(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return (
            self.table(tables.MASS, 2, torch.int64),
            self.table(tables.COUNT, 1, torch.int32),
            self.table(tables.PEAK, 1, torch.int32),
            self.table(tables.SCALE, 1, torch.float32),
        )

    @property
    def started(self) -> Tensor:
        return self.words[: ROWS * (D + tables.SCALE)]

    def add(self, order: Tensor) -> None:
        """What one pass of the kernel adds."""
        mass, count, peak, scale = self.four
        both = self.words[: ROWS * D].view(torch.int64).view(ROWS, D // 2)
        for k in order.tolist():
            i, c = int(self.row[k]), self.c[k]
            s = scale[i]
            n = torch.round((c * s).double()).clamp(-(2.0**31), 2.0**31 - 1).long() + tables.BIAS
            pairs = (n % WRAP).view(-1, 2)
            both[i] += pairs[:, 0] + (pairs[:, 1] << 32)
            size = c.abs().max()
            mass[i] += math.ceil(min(float(size * s) * 64 * (1 + 2**-13) + 32, 2.0**62)) if size.isfinite() else 0
            count[i] += 1
            peak[i] = max(int(peak[i]), int(size.view(torch.int32)) if not size.isnan() else 0x7FFFFFFF)

    def set_scales(self, *, exact: bool, rate: float = 1.0) -> None:
        totals = torch.zeros(2, dtype=torch.int64)
        mass, count, peak, scale = self.four
        sums.sparse_mla_sample_totals[(1,)](mass, count, totals, ROWS)
        sums.sparse_mla_set_scales[(1,)](mass, count, peak, scale, totals, rate, ROWS, EXACT=exact, FINE_BITS=sums.FINE)
        self.started.zero_()

    def prove(self, fine: int = sums.FINE) -> bool:
        self.retry.zero_()
        sums.sparse_mla_prove_sums[(1,)](*self.four, self.retry, ROWS, FINE_BITS=fine)
        return not bool(self.retry[0])

    def d_kv(self) -> Tensor:
        d_kv = torch.empty(ROWS, D)
        both = self.words[: ROWS * D].view(torch.int64)
        sums.sparse_mla_scale_back[(ROWS // 16, 1)](both, *self.four, d_kv, ROWS, D, ROWS=16, WORDS=64)
        return d_kv

    @property
    def truth(self) -> Tensor:
        return torch.zeros(ROWS, D, dtype=torch.float64).index_add_(0, self.row, self.c.double())


def scatter(additions: int = 200, *, decades: float = 0.0, seed: int = 0) -> Scatter:
    g = torch.Generator().manual_seed(seed)
    c = torch.randn(additions, D, generator=g) * 10.0 ** (decades * (torch.rand(additions, 1, generator=g) - 0.5))
    return Scatter(c, torch.randint(0, ROWS // 2, (additions,), generator=g))


def passed(one: Scatter, unit: float = 1.0, order: Tensor | None = None) -> Tensor:
    """d_kv with scales that a measuring pass gave."""
    one.four[3].fill_(unit)
    one.add(torch.arange(len(one.c)))
    one.set_scales(exact=True)
    one.add(torch.arange(len(one.c)) if order is None else order)
    assert one.prove()
    return one.d_kv()


def assert_within_units(one: Scatter, found: Tensor) -> None:
    """Each addition to a row is off by at most half a unit of the row's scale, and FP32 rounds the result once."""
    _, count, _, scale = one.four
    units = count.double() / 2 / scale.double()
    assert bool(((found.double() - one.truth).abs() <= units[:, None] + one.truth.abs() * 2.0**-24).all())


@pytest.mark.parametrize("decades", [0.0, 6.0])
def test_the_sums_are_right_and_no_order_changes_them(decades: float) -> None:
    one = scatter(decades=decades)
    found = passed(one)
    assert torch.equal(found, passed(scatter(decades=decades), order=torch.arange(len(one.c)).flip(0)))
    assert_within_units(one, found)
    sizes = torch.zeros(ROWS, dtype=torch.float64).index_add_(0, one.row, one.c.abs().amax(1).double())
    scales = one.four[3][: ROWS // 2].double()
    assert bool((scales * sizes[: ROWS // 2] >= 2.0**28).all()), "2^29 of the bound, which is at most twice the sizes"
    assert bool((found[ROWS // 2 :] == 0).all()), "rows that nothing lists are exactly zero"


@pytest.mark.parametrize("unit", [2.0**-40, 2.0**40])
def test_a_sum_that_left_the_range_or_is_too_coarse_is_caught_and_put_right(unit: float) -> None:
    one = scatter()
    one.four[3].fill_(unit)
    one.add(torch.arange(len(one.c)))
    assert not one.prove(), "a unit this far off cannot serve"
    assert bool((one.four[3][: ROWS // 2] != unit).all())
    start(one, queries=3)
    one.add(torch.arange(len(one.c)))
    assert one.prove(), "the second pass's scale is one with which it cannot fail"
    assert_within_units(one, one.d_kv())


def test_what_serves_bf16_may_be_too_coarse_for_fp16() -> None:
    """A row's sizes, of some six additions, sum to about 2^20 units: more than 2^16, fewer than 2^17 an addition."""
    one = scatter()
    one.four[3].fill_(2.0**16)
    one.add(torch.arange(len(one.c)))
    assert one.prove(sums.FINE)
    assert not one.prove(sums.FINE_FP16)


def start(one: Scatter, queries: int) -> Tensor:
    lengths = torch.full((queries,), -5, dtype=torch.int32)
    size = one.started.numel()
    grid = (-(-max(size, queries) // (16 * sums.ROWS.value)),)
    sums.sparse_mla_start_again[grid](one.retry, one.words, size, lengths, lengths, queries, 7, HAS_LENGTH=False)
    return lengths


def test_the_second_pass_has_slots_only_where_the_proof_failed() -> None:
    one = scatter()
    passed(one)
    before = one.words.clone()
    assert start(one, 3).tolist() == [0, 0, 0]
    assert torch.equal(one.words, before), "nothing is touched where the proof held"
    one.retry.fill_(1)
    scales = one.four[3].clone()
    assert start(one, 3).tolist() == [7, 7, 7]
    assert bool((one.started == 0).all())
    assert torch.equal(one.four[3], scales)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_row_that_is_not_finite_comes_back_as_nan_and_asks_for_no_second_pass(bad: float) -> None:
    one = scatter()
    one.c[0, 3] = bad
    one.row[0] = 40
    one.four[3].fill_(2.0**20)
    one.add(torch.arange(1, len(one.c)))
    mass, count, peak, _ = one.four
    count[40], peak[40] = 1, 0x7F800000 if math.isinf(bad) else 0x7FFFFFFF
    assert one.prove()
    found = one.d_kv()
    assert bool(found[40].isnan().all())
    assert not bool(found[:40].isnan().any())
    assert bool((mass >= 0).all())


def test_a_guess_from_a_sample_is_within_what_the_proof_accepts() -> None:
    """Every second addition seen: rates, shrinkage and the middle of the window."""
    one = scatter(400)
    one.four[3].fill_(16.0)
    one.add(torch.arange(0, len(one.c), 2))
    one.set_scales(exact=False, rate=2.0)
    one.add(torch.arange(len(one.c)))
    assert one.prove()
    assert_within_units(one, one.d_kv())


def test_the_sink_gradient_has_the_preprocess_s_edges() -> None:
    D_, lse = torch.tensor([[2.0, 1.0], [3.0, 5.0]]), torch.tensor([[0.0, math.inf], [1.0, 1.0]])
    sink, found = torch.tensor([0.0, -math.inf]), torch.empty(2)
    sums.sparse_mla_sink_gradient[(2,)](D_, lse, sink, found, 2, 2, BLOCK=16, BLOCKS=1)
    assert found[0].item() == pytest.approx(-(0.5 * 2.0 + 3.0 / (1.0 + math.e)), rel=SINK_ROUNDINGS * 2.0**-24)
    assert found[1].item() == 0.0


def test_what_the_kernels_and_the_tables_have_in_common() -> None:
    assert sums.BIAS.value == tables.BIAS
    assert tables.SCALE + 1 == tables.WORDS
