"""Program order and atomic lanes are permuted; readers and writers are measured; a shared plain address is a race."""

# ruff: noqa: E402
from __future__ import annotations

from numcheck import interpreter

interpreter.enable()

import math

import pytest
import torch

from numcheck.evidence import WORKSPACE
from numcheck.interpreter.probe_kernels import arrival
from numcheck.order import Order
from tests.interpreter import small

# Four parts whose FP32 sum depends on order: 2^24 swallows a lone 1.
PARTS = torch.tensor([2.0**24, 1.0, 1.0, -(2.0**24)])
ORDERS = (Order(), Order("reversed"), Order("shuffled", 1), Order("shuffled", 2), Order("exact", 5))


def total(kernel, x, order, block=1, out=None, measure=False):
    out = torch.zeros(1) if out is None else out
    with interpreter.session(order, measure) as session:
        kernel[(-(-len(x) // block),)](x, out, len(x), BLOCK=block)
    return out, session


def test_the_order_of_programs_reaches_the_bits_of_an_atomic_sum():
    sums = {total(small.total_atomic, PARTS, order)[0].item() for order in ORDERS}
    assert len(sums) > 1


def test_an_order_is_the_same_each_time():
    for order in ORDERS:
        assert total(small.total_atomic, PARTS, order)[0] == total(small.total_atomic, PARTS, order)[0]


def test_launches_of_one_session_are_shuffled_apart():
    seen = []
    with interpreter.session(Order("shuffled", 7)) as session:
        for _ in range(3):
            counter, arrived = torch.zeros(1, dtype=torch.int32), torch.zeros(6, dtype=torch.int32)
            arrival[(6,)](counter, arrived, 1, 1)
            seen.append(tuple(arrived.tolist()))
    assert len(set(seen)) > 1
    assert [launch.grid for launch in session.launches] == [(6, 1, 1)] * 3


@pytest.mark.parametrize("grid", [(5,), (2, 3), (2, 3, 2)])
def test_every_program_runs_once_in_any_order(grid):
    n = math.prod(grid)
    sizes = (*grid, 1, 1)
    for order in ORDERS[:3]:
        out = torch.full((n,), -1, dtype=torch.int32)
        with interpreter.session(order):
            small.grid_corner[grid](out, sizes[1], sizes[2])
        assert out.tolist() == list(range(n))


def test_lanes_of_one_atomic_are_shuffled_too():
    sums = set()
    for order in ORDERS:
        out = torch.zeros(1)
        with interpreter.session(order):
            small.total_lanes[(1,)](PARTS, out, 4, BLOCK=8)
        sums.add(out.item())
    assert len(sums) > 1


def test_an_atomic_sum_has_addends_and_no_race():
    out, session = total(small.total_atomic, torch.arange(40.0), Order(), block=16, measure=True)
    footprint = session.footprints({"out": out}, {})["out"]
    assert (footprint.writers, footprint.addends, footprint.multi, footprint.atomic) == (0, 3, 1, True)
    assert footprint.races == ()


def test_a_nonzero_start_counts_as_an_addend():
    out, session = total(small.total_atomic, torch.arange(40.0), Order(), 16, torch.ones(1), measure=True)
    assert session.footprints({"out": out}, {})["out"].addends == 4
    out, session = total(small.total_atomic, torch.arange(40.0), Order(), 16, torch.tensor([-0.0]), measure=True)
    assert session.footprints({"out": out}, {})["out"].addends == 3


def test_a_lost_update_is_a_race_though_its_bits_never_differ():
    for order in ORDERS:
        kept, session = total(small.total_lost, PARTS, order, measure=True)
        assert torch.equal(kept, total(small.total_atomic, PARTS, order)[0])
        footprint = session.footprints({"out": kept}, {})["out"]
        assert footprint.writers == 4
        index, first, second = footprint.races[0]
        assert index == 0
        assert first != second


def test_one_writer_an_address_is_proven():
    x, out = torch.randn(50), torch.zeros(50)
    with interpreter.session(measure=True) as session:
        small.double[(4,)](x, out, 50, BLOCK=16, SPILL=0)
    footprint = session.footprints({"out": out}, {"x": x})
    assert set(footprint) == {"out"}
    assert (footprint["out"].writers, footprint["out"].unwritten, footprint["out"].races) == (1, 0, ())


def test_an_unwritten_element_is_counted():
    out = torch.zeros(50)
    with interpreter.session(measure=True) as session:
        small.double[(4,)](torch.randn(50), out, 50, BLOCK=16, SPILL=-1)
    assert session.footprints({"out": out}, {})["out"].unwritten == 1


def test_reading_what_another_program_writes_is_a_race():
    x, out = torch.randn(32), torch.zeros(32)
    with interpreter.session(measure=True) as session:
        small.copy_first[(2,)](x, out, 32, BLOCK=16)
    races = session.footprints({"out": out}, {})["out"].races
    assert races[0] == (16, 1, 0)


def test_two_launches_that_share_an_address_are_no_race():
    x, out = torch.randn(16), torch.zeros(16)
    with interpreter.session(measure=True) as session:
        small.double[(1,)](x, out, 16, BLOCK=16, SPILL=0)
        small.double[(1,)](out, out, 16, BLOCK=16, SPILL=0)
    assert session.footprints({"out": out}, {})["out"].races == ()


def test_accesses_of_two_widths_that_overlap_are_a_race():
    x = torch.tensor([1], dtype=torch.int64)
    out = torch.zeros(2, dtype=torch.int64)
    with interpreter.session(measure=True) as session:
        small.packed[(2,)](x, out)
    assert session.footprints({"out": out}, {})["out"].races


def test_strided_outputs_are_found_by_element():
    whole = torch.zeros(16, 4)
    out = whole[:, 0]
    with interpreter.session(measure=True) as session:
        small.total_lost[(2,)](torch.randn(2), out[3:], 2, BLOCK=1)
    footprint = session.footprints({"out": out}, {})["out"]
    assert footprint.races[0][0] == 3
    assert footprint.unwritten == 15


def test_memory_that_is_nobodys_is_the_workspace():
    slots = torch.zeros(1)
    with interpreter.session(measure=True) as session:
        small.total_lost[(2,)](torch.randn(2), slots, 2, BLOCK=1)
    found = session.footprints({"out": torch.zeros(1)}, {})
    assert set(found) == {WORKSPACE}
    assert found[WORKSPACE].races[0][0] == 0


def test_memory_used_before_an_output_was_born_does_not_count():
    out, session = total(small.total_lost, PARTS, Order(), measure=True)
    address = out.untyped_storage().data_ptr()
    assert "out" not in session.footprints({"out": out}, {}, born={address: 1})
    assert session.footprints({"out": out}, {}, born={address: 0})["out"].races
