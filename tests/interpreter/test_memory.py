"""Waiting ends in an error, accesses out of bounds are reported and not done, launches that cannot run say why."""

# ruff: noqa: E402
from __future__ import annotations

from numcheck import interpreter

interpreter.enable()

import os
import subprocess
import sys

import pytest
import torch

from numcheck.errors import InvalidSpec, Refused
from numcheck.interpreter import spin
from numcheck.interpreter.spin import Waits
from numcheck.order import Order
from tests.interpreter import small

THREE = torch.arange(3.0)


def in_turn(poll, order):
    out, turn = torch.zeros(1), torch.zeros(1, dtype=torch.int32)
    with interpreter.session(order):
        small.total_in_turn[(3,)](THREE, out, turn, 3, BLOCK=1, POLL=poll)
    return out.item()


@pytest.mark.parametrize("poll", ["cas", "add", "load"])
def test_a_kernel_that_waits_for_its_turn_ends_in_an_error(poll, monkeypatch):
    monkeypatch.setattr(spin, "IDLE_READS", 300)
    assert in_turn(poll, Order()) == THREE.sum()
    with pytest.raises(Exception, match="waits for another program") as caught:
        in_turn(poll, Order("reversed"))
    assert isinstance(caught.value.__cause__, Waits)


def test_long_loops_of_honest_loads_do_not_count_as_waiting(monkeypatch):
    monkeypatch.setattr(spin, "IDLE_READS", 100)
    x = torch.arange(300.0)
    out = torch.zeros(300)
    with interpreter.session():
        small.running[(1,)](x, out, 300)
    assert torch.equal(out, x.cumsum(0))
    with interpreter.session():
        small.scaled_sum[(1,)](x, torch.tensor([2.0]), out, 300)
    assert out[0] == 2 * x.sum()


def test_a_loop_without_end_ends(monkeypatch):
    monkeypatch.setattr(spin, "MEMORY_OPERATIONS", 50)
    with interpreter.session(), pytest.raises(Exception, match="touched memory 50 times"):
        small.running[(1,)](torch.arange(300.0), torch.zeros(300), 300)


def test_a_store_without_mask_is_reported_and_not_done():
    memory = torch.full((64,), 7.0)
    out = torch.empty(0).set_(memory[:50].clone().untyped_storage(), 0, (50,))
    with interpreter.session() as session:
        small.double[(4,)](torch.ones(50), out, 50, BLOCK=16, SPILL=1)
    assert session.findings() == (
        "double writes out of bounds: 14 lane(s) of program 3, up to 14 element(s) past the end of `out`",
    )
    assert torch.equal(out, torch.full((50,), 2.0))


def test_a_read_out_of_bounds_gives_nan_and_is_reported():
    out = torch.zeros(1)
    with interpreter.session() as session:
        small.wild[(1,)](torch.ones(4), out, 2**40)
        small.wild[(1,)](torch.ones(4), out, -(2**40))
    assert out.isnan().all()
    assert len(session.findings()) == 2
    assert "past the end of" in session.findings()[0]
    assert "before the start of" in session.findings()[1]


def test_views_into_one_storage_stay_in_bounds():
    whole = torch.zeros(100)
    with interpreter.session() as session:
        small.double[(2,)](torch.ones(20), whole[40:60], 20, BLOCK=16, SPILL=0)
    assert session.findings() == ()
    assert whole.sum() == 40


def test_of_the_callers_own_tensors_nothing_is_read_beyond_their_elements():
    """Margins around a drawn tensor are the judge's; a caller's tensor may end where its memory does."""
    x, out = torch.ones(100)[40:60], torch.zeros(1)
    for far, given, findings in ((19, (x,), 0), (20, (x,), 1), (-1, (x,), 1), (20, (), 0)):
        with interpreter.session(given=given) as session:
            small.wild[(1,)](x, out, far)
        assert len(session.findings()) == findings, (far, given)


def test_masked_off_lanes_hold_what_a_maximum_passes_over_and_what_it_does_not():
    out = torch.zeros(8)
    with interpreter.session():
        small.double[(1,)](torch.ones(4), out, 4, BLOCK=8, SPILL=1)
    assert out[:4].eq(2).all()
    assert out[4:].isnan().sum() == out[4:].isinf().sum() == 2


def test_overflow_is_checked_where_asked_for():
    x, out = torch.tensor([2**20], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with interpreter.session():
        small.overflowing[(1,)](x, out)
    with interpreter.session(check_overflow=True), pytest.raises(Exception, match="overflow"):
        small.overflowing[(1,)](x, out)


def test_a_scalar_comparison_masks_a_block():
    x, out = torch.randn(8), torch.zeros(8)
    with interpreter.session():
        small.guarded_by_scalar[(2,)](x, out, 5, BLOCK=8)
    assert torch.equal(out[:5], x[:5])
    assert not out[5:].any()


def test_helpers_of_kernels_run_and_leave_the_language_as_it_was():
    x, out = torch.randn(20), torch.zeros(20)
    with interpreter.session():
        small.with_helper[(2,)](x, out, 20, BLOCK=16)
    assert torch.equal(out, 2 * x)
    again = torch.zeros(20)
    small.with_helper[(2,)](x, again, 20, BLOCK=16)
    assert torch.equal(again, out)


def test_each_pinned_config_runs_and_the_configs_come_back():
    configs = small.tuned.configs
    x = torch.randn(50)
    for index, grid in ((0, 4), (1, 2)):
        out = torch.zeros(50)
        with interpreter.session(pins=[(small.tuned, index)]) as session:
            small.tuned[lambda meta: (-(-50 // meta["BLOCK"]),)](x, out, 50)
        assert torch.equal(out, 2 * x)
        assert session.launches[0].grid == (grid, 1, 1)
        assert small.tuned.configs is configs


def test_an_autotuned_kernel_without_a_pin_is_refused_with_the_remedy():
    with interpreter.session(), pytest.raises(Refused, match=r"tuned has 2 configs .* spec\.pinned"):
        small.tuned[(4,)](torch.randn(50), torch.zeros(50), 50)


def test_a_bad_pin_is_refused():
    with pytest.raises(InvalidSpec, match="pin 2 of tuned"), interpreter.session(pins=[(small.tuned, 2)]):
        pass
    with pytest.raises(InvalidSpec, match="not autotuned"), interpreter.session(pins=[(small.double, 0)]):
        pass


def test_the_interpreter_cannot_be_chosen_after_triton_was_imported():
    code = (
        "import triton\nfrom numcheck import interpreter, errors\nassert not interpreter.active()\n"
        "try:\n    interpreter.enable()\nexcept errors.Refused as e:\n    raise SystemExit('before' not in str(e))\n"
        "raise SystemExit(1)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=_without_switch(), check=False).returncode == 0


def test_importing_the_package_loads_neither_torch_nor_triton():
    code = "import sys, numcheck.interpreter\nraise SystemExit('torch' in sys.modules or 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _without_switch():
    return {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}


def test_a_lone_lane_that_is_off_holds_its_other_even_where_that_is_zero():
    """The interpreter takes an `other` of one zero for none, and what is undefined holds poison here."""
    for other in (True, False):
        out = torch.ones(2)
        with interpreter.session():
            small.one_lane_off[(1,)](THREE, torch.ones(1, dtype=torch.int8), out, OTHER=other)
        assert bool((out == 0).all()) == other
        assert bool(torch.isnan(out[0])) != other


def test_a_lone_lane_that_is_off_holds_nan_in_one_program_and_infinity_in_the_next():
    for programs, kind in ((1, torch.isnan), (2, torch.isinf)):
        out = torch.ones(2)
        with interpreter.session():
            small.one_lane_off[(programs,)](THREE, torch.ones(1, dtype=torch.int8), out, OTHER=False)
        assert bool(kind(out[0]))
