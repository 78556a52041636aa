"""The bitwise law in the interpreter: every false pass turns red, and every right kernel stays green."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from numcheck import Case, KernelSpec, interpreter
from numcheck.execute import execute
from numcheck.laws.bitwise import BITWISE
from numcheck.order import Order, orders
from numcheck.profile import CI, QUICK
from numcheck.sample import sample
from numcheck.verdict import OutputVerdict, Status

interpreter.enable()

from tests.meta import row_sum as problem  # noqa: E402
from tests.meta.row_sum import (  # noqa: E402
    ATOMIC,
    HIDDEN_ATOMIC,
    HIDDEN_RACE,
    LANES,
    ONE_PROGRAM,
    ORDERED,
    RACY,
    STALE,
    THREE_BLOCKS,
    TORCH,
    TWO_BLOCKS,
    spec,
)


def judged(kernel: KernelSpec, case: Case = THREE_BLOCKS) -> OutputVerdict:
    return BITWISE.judge(kernel, case, QUICK).outputs["out"]


def test_unordered_atomics_under_any_are_order_dependent() -> None:
    verdict = BITWISE.judge(ATOMIC, THREE_BLOCKS, QUICK)
    assert verdict.status is Status.ORDER_DEPENDENT
    assert verdict.held
    assert verdict.evidence.footprints["out"].addends == 3
    permuted = next(r for r in verdict.rungs if r.name == "permuted order")
    assert len(permuted.hashes["out"]) == 2


def test_unordered_atomics_that_claim_fixed_fail_with_order_and_bits() -> None:
    found = judged(ATOMIC.claiming(out="fixed"))
    assert found.status is Status.FAIL
    assert "differ in order" in found.why
    assert "got=" in found.where
    assert "expected=" in found.where
    assert found.where.endswith("at (0,)")


def test_unordered_atomics_that_claim_single_fail_even_where_no_bit_flips() -> None:
    found = judged(ATOMIC.claiming(out="single"), THREE_BLOCKS.but(regime="ones"))
    assert found.status is Status.FAIL
    assert "3 atomic addends" in found.why


def test_two_addends_are_vacuous_whatever_the_values() -> None:
    assert judged(ATOMIC, TWO_BLOCKS).status is Status.VACUOUS
    found = judged(ATOMIC.claiming(out="fixed"), TWO_BLOCKS)
    assert found.status is Status.VACUOUS
    assert "two addends" in found.why
    assert found.why.endswith("non-vacuous with D=33 (now 32)")


def test_bf16_normals_never_flip_and_are_vacuous() -> None:
    cases = [THREE_BLOCKS.but(dtype="bf16", regime="normal", seed=k) for k in range(5)]
    assert {judged(ATOMIC.claiming(out="fixed"), case).status for case in cases} == {Status.VACUOUS}


def test_slots_added_in_order_pass_on_a_case_that_could_have_differed() -> None:
    verdict = BITWISE.judge(ORDERED, THREE_BLOCKS, QUICK)
    assert verdict.status is Status.PASS
    assert verdict.figures["vacuity"]["out"]["proven"]
    assert "bound the flip rate" in verdict.outputs["out"].why


def test_one_program_a_row_passes_as_single_by_the_measured_map() -> None:
    found = judged(ONE_PROGRAM)
    assert found.status is Status.PASS
    assert "one writer an address, measured" in found.why


@pytest.mark.parametrize("promise", ["any", "fixed", "single"])
def test_a_lost_update_is_a_race_whatever_is_promised(promise: str) -> None:
    found = judged(RACY.claiming(out=promise))
    assert found.status is Status.FAIL
    assert found.why.startswith("race")


@pytest.mark.parametrize("case", [TWO_BLOCKS, THREE_BLOCKS.but(regime="ones")], ids=["two blocks", "exact sums"])
def test_a_lost_update_is_a_race_even_where_no_bit_can_flip(case: Case) -> None:
    assert judged(RACY, case).status is Status.FAIL


@pytest.mark.parametrize("order", [Order(), *orders(THREE_BLOCKS.key, 3, 6)], ids=str)
def test_a_lost_update_is_a_race_in_every_order_although_its_bits_are_right(order: Order) -> None:
    drawn = sample(problem.row_sum, THREE_BLOCKS)
    racy = execute(RACY, drawn, order=order, measure=True)
    right = execute(ATOMIC, drawn, order=order, measure=True)
    assert torch.equal(racy.outputs["out"], right.outputs["out"])
    assert racy.evidence.footprints["out"].races
    assert not right.evidence.footprints["out"].races


def test_atomics_behind_a_single_writer_are_no_single_output() -> None:
    assert judged(HIDDEN_ATOMIC).status is Status.FAIL
    exact = judged(HIDDEN_ATOMIC, THREE_BLOCKS.but(regime="ones"))
    assert exact.status is Status.VACUOUS
    assert "a workspace address 3 addends" in exact.why


def test_a_race_in_a_workspace_fails_under_the_workspace_s_own_name() -> None:
    verdict = BITWISE.judge(HIDDEN_RACE, THREE_BLOCKS, QUICK)
    assert verdict.status is Status.FAIL
    assert verdict.outputs["workspace"].why.startswith("race")


def test_lanes_of_one_program_that_hit_one_address_are_permuted_too() -> None:
    verdict = BITWISE.judge(LANES, Case.of(S=1, D=16), QUICK)
    assert verdict.evidence.launches[0].grid in ((1,), (1, 1, 1))
    assert verdict.status is Status.ORDER_DEPENDENT


def test_memory_that_is_not_zeroed_first_is_caught_in_spite_of_an_any_promise() -> None:
    found = judged(STALE)
    assert found.status is Status.FAIL
    assert "in the same order of programs" in found.why


def large_by_atomics(x: Tensor) -> dict[str, Tensor]:
    return problem.atomic(x) if x.numel() > 200 else problem.ordered(x)


def test_a_kernel_that_is_only_ordered_while_small_fails_on_the_large_case_that_always_runs() -> None:
    claim = ORDERED.but(forward=large_by_atomics)
    assert judged(claim, THREE_BLOCKS).status is Status.PASS
    assert BITWISE.judge(claim, BITWISE.cases(claim)[0], QUICK).status is Status.FAIL


class Remembers:
    """Right on the first call; afterwards it adds what it kept."""

    def __init__(self, change: Tensor) -> None:
        self.change, self.calls = change, 0

    def __call__(self, x: Tensor) -> dict[str, Tensor]:
        out = x.to(torch.float32).sum(1)
        self.calls += 1
        return {"out": self.alter(out) if self.calls > 1 else out}

    def alter(self, out: Tensor) -> Tensor:
        return out + self.change


class Replaces(Remembers):
    def alter(self, out: Tensor) -> Tensor:
        return self.change.expand_as(out).clone()


@pytest.mark.parametrize("promise", ["fixed", "single"])
def test_state_kept_between_calls_is_caught(promise: str) -> None:
    found = judged(spec("remembers", Remembers(torch.tensor(1.0)), promise))
    assert found.status is Status.FAIL
    assert "repeat 1" in found.why


@pytest.mark.parametrize(
    ("first", "later"),
    [(0x00000000, 0x80000000), (0x7FC00000, 0x7FC00001), (0x7FC00000, 0xFFC00000)],
    ids=["negative zero", "NaN payload", "NaN sign"],
)
def test_values_that_compare_equal_or_never_are_told_apart_by_their_bits(first: int, later: int) -> None:
    def value(bits: int) -> Tensor:
        return torch.tensor([bits], dtype=torch.int64).to(torch.int32).view(torch.float32)

    state = Replaces(value(later))
    state.calls = 0
    kernel = spec("bits", lambda x: state(x) if state.calls else {"out": (state(x), value(first))[1]})
    found = judged(kernel)
    assert found.status is Status.FAIL
    assert f"got={value(later).item()!r} (0x{later:08x})" in found.where
    assert f"(0x{first:08x})" in found.where


def test_the_same_nan_every_time_is_no_difference() -> None:
    assert judged(spec("nan", lambda x: {"out": torch.full((x.shape[0],), float("nan"))})).status is not Status.FAIL


def test_a_kernel_that_raises_is_an_error() -> None:
    def raises(x: Tensor) -> dict[str, Tensor]:
        raise RuntimeError("no such tile")

    found = judged(spec("raises", raises))
    assert found.status is Status.ERROR
    assert "no such tile" in found.why


def test_a_kernel_that_never_ran_is_an_error_although_its_bits_repeat() -> None:
    found = judged(ATOMIC.but(forward=problem.torch_sum))
    assert found.status is Status.ERROR
    assert "no kernel was seen running" in found.why


def test_a_missing_output_is_an_error() -> None:
    assert judged(spec("nothing", lambda x: {"other": x.sum(1)})).status is Status.ERROR


def test_torch_operators_are_judged_by_fixed_rules_when_they_claim_single() -> None:
    found = judged(TORCH.claiming(out="single"))
    assert found.status is Status.PASS
    assert "judged as fixed" in found.why


@pytest.mark.parametrize("kernel", [ATOMIC, ORDERED], ids=lambda kernel: kernel.name)
def test_the_law_is_pure(kernel: KernelSpec) -> None:
    once, twice = (BITWISE.judge(kernel, THREE_BLOCKS, QUICK).to_json() for _ in range(2))
    assert once == twice


def test_a_claim_that_is_never_tested_fails_in_the_pool() -> None:
    cases = [TWO_BLOCKS.but(D=d) for d in (1, 16, 20, 32)]
    claim = ATOMIC.claiming(out="fixed")
    pooled = BITWISE.pool(claim, [(case, BITWISE.judge(claim, case, QUICK)) for case in cases])
    assert pooled is not None
    assert pooled.status is Status.FAIL
    with_teeth = [(case, BITWISE.judge(ORDERED, case, QUICK)) for case in (*cases, THREE_BLOCKS)]
    passed = BITWISE.pool(ORDERED, with_teeth)
    assert passed is not None
    assert passed.status is Status.PASS


def test_the_largest_grid_cases_come_first_and_a_profile_says_whether_they_climb_the_slow_rungs() -> None:
    large = BITWISE.cases(ATOMIC)
    assert [(c.dtype, c["S"], c["D"]) for c in large] == [("fp32", 3, 100), ("bf16", 3, 100)]
    slow = {"thread counts", "fresh process", "compiled"}
    assert slow <= {rung.name for rung in BITWISE.judge(TORCH, large[0], CI).rungs}
    assert not slow & {rung.name for rung in BITWISE.judge(TORCH, large[0], QUICK).rungs}
