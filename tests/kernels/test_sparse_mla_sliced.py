"""cudnn_sliced without its GPU: how a call is cut, its scratch, the kernels around it, and its map against another."""

from __future__ import annotations

import pytest
import torch

from kernels.sparse_mla import cudnn_sliced, cudnn_workspace
from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.cudnn_workspace import MULTIPROCESSORS, SLICED_BYTES, head_tiles, sliced_scratch, slicing
from numcheck.laws import accuracy, bitwise
from numcheck.oracles.sparse_mla_cases import named
from numcheck.profile import QUICK

sums = pytest.importorskip("kernels.sparse_mla.cudnn_sliced_sums", reason="needs triton")
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="these run in Triton's interpreter")

DEPLOYED = Sizes(16384, 16384, 64, 512, 512, 2048)
WIDE = Sizes(4096, 16384, 128, 576, 512, 2048)
LONGEST = Sizes(16384, 524288, 128, 576, 512, 2048)
ONE = Sizes(1, 1, 2, 512, 512, 1)
SHAPES = [DEPLOYED, WIDE, LONGEST, ONE, Sizes(5, 200, 65, 576, 512, 7)]


@pytest.mark.parametrize("n", SHAPES, ids=str)
def test_a_launch_is_as_wide_as_the_device_and_its_slices_are_bounded(n: Sizes) -> None:
    cut = slicing(n, MULTIPROCESSORS)
    assert cut.slices == cut.queries * head_tiles(n) <= MULTIPROCESSORS
    assert cut.queries == n.S_q or cut.slices + head_tiles(n) > MULTIPROCESSORS, (
        "none that could run beside is left out"
    )
    assert cut.rows * cut.tiles >= n.S_k > cut.rows * (cut.tiles - 1)
    assert cut.slices * cut.rows * n.D * 4 <= SLICED_BYTES


def test_deployed_sizes_take_one_tile_and_long_context_several() -> None:
    assert slicing(DEPLOYED, MULTIPROCESSORS).tiles == slicing(WIDE, MULTIPROCESSORS).tiles == 1
    assert slicing(LONGEST, MULTIPROCESSORS).tiles > 1


def test_fewer_multiprocessors_than_tiles_of_heads_still_take_a_whole_query() -> None:
    assert slicing(WIDE, 1).slices == head_tiles(WIDE) == 2


@pytest.mark.parametrize("bytes_", [SLICED_BYTES, 2**20])
@pytest.mark.parametrize("n", [ONE, Sizes(5, 200, 65, 576, 512, 7)], ids=str)
def test_the_scratch_is_cut_without_overlap(monkeypatch: pytest.MonkeyPatch, n: Sizes, bytes_: int) -> None:
    monkeypatch.setattr(cudnn_workspace, "SLICED_BYTES", bytes_)
    cut = slicing(n, MULTIPROCESSORS)
    s = cudnn_sliced.Scratch.of(n, cut, torch.device("cpu"))
    parts = [part for part in (s.D, s.lse_log2, s.words, s.lengths, s.slots) if part.numel()]
    ends = [part.data_ptr() + part.numel() * 4 for part in parts]
    assert all(start.data_ptr() >= end for start, end in zip(parts[1:], ends, strict=False))
    assert ends[-1] - parts[0].data_ptr() <= sliced_scratch(n, cut)
    assert all(part.data_ptr() % 16 == parts[0].data_ptr() % 16 for part in parts), "vector loads rely on it"
    assert (cut.tiles > 1) == bool(s.slots.numel())


@interpreted
def test_a_tile_gets_the_live_slots_that_list_its_rows_in_order() -> None:
    index = torch.tensor([[5, -1, 7, 4, 9, 5], [4, 5, 6, 7, 4, 4]], dtype=torch.int32)
    length = torch.tensor([6, 5], dtype=torch.int32)
    slots, lengths = torch.full((2, 6), -9, dtype=torch.int32), torch.empty(2, dtype=torch.int32)
    sums.sparse_mla_tile_slots[(2,)](index, length, slots, lengths, 4, 3, 9, 6, HAS_LENGTH=True)
    assert lengths.tolist() == [3, 4]
    assert slots[0, :3].tolist() == [1, 0, 1]
    assert slots[1, :4].tolist() == [0, 1, 2, 0], "the sixth slot is past the length"
    assert bool((slots[0, 3:] == -9).all())


@interpreted
def test_slices_are_added_in_their_order() -> None:
    """(1 + 2^-24) + 2^-24 is 1 in FP32, where 1 + (2^-24 + 2^-24) is not."""
    words = torch.full((3, 1500), 2.0**-24)
    words[0] = 1.0
    sums.sparse_mla_add_slices[(2,)](words, 1500, 3)
    assert bool((words[0] == 1.0).all())


CASE = named(7, 2, 2, 4, 4, 3, indices="one_row")


@interpreted
def test_a_slice_a_cta_holds_and_one_that_tiles_of_heads_share_is_caught() -> None:
    from kernels.sparse_mla import faults

    shared = next(f for f in faults.FAULTS if f.spec.name.endswith("slices_shared_by_head_tiles"))
    assert bitwise.judge(faults.SLICED, CASE, QUICK).held
    assert accuracy.judge(faults.SLICED, CASE, QUICK).held
    found = bitwise.judge(shared.spec, CASE, QUICK)
    assert not found.held
    assert not found.outputs["d_kv"].status.held
    one_tile = named(7, 2, 1, 4, 4, 3, indices="one_row")
    assert bitwise.judge(shared.spec, one_tile, QUICK).held, "with one tile of heads the maps are the same"
