"""cudnn_sliced without its GPU: how a call is cut, its scratch, the kernels around it, and its map against another."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.sparse_mla import cudnn_arguments, cudnn_sliced, cudnn_workspace, eager
from kernels.sparse_mla.arguments import Sizes
from kernels.sparse_mla.cudnn_workspace import (
    ALIGNED_QUERIES,
    MULTIPROCESSORS,
    SLICED_BYTES,
    head_tiles,
    sliced_scratch,
    slicing,
)
from numcheck.execute import execute
from numcheck.laws import accuracy, bitwise
from numcheck.laws.measured import saved_alone
from numcheck.oracles import sparse_mla
from numcheck.oracles.sparse_mla_cases import named
from numcheck.profile import QUICK
from numcheck.sample import sample

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
    wider = cut.slices + ALIGNED_QUERIES * head_tiles(n)
    assert cut.queries == n.S_q or wider > MULTIPROCESSORS, "none that could run beside is left out"
    assert cut.rows * cut.tiles >= n.S_k > cut.rows * (cut.tiles - 1)
    assert cut.slices * cut.rows * n.D * 4 <= SLICED_BYTES


def test_deployed_sizes_take_one_tile_and_long_context_several() -> None:
    assert slicing(DEPLOYED, MULTIPROCESSORS).tiles == slicing(WIDE, MULTIPROCESSORS).tiles == 1
    assert slicing(LONGEST, MULTIPROCESSORS).tiles > 1


@pytest.mark.parametrize("topk", [1, 2, 63])
@pytest.mark.parametrize("heads", [64, 65, 128])
def test_every_launch_begins_at_an_address_that_the_kernel_takes(heads: int, topk: int) -> None:
    """Two tiles of heads make 66 queries a launch on an H200, and slot 66 of one each lies at byte 264."""
    cut = slicing(Sizes(257, 1000, heads, 576, 512, topk), MULTIPROCESSORS)
    assert cut.queries < 257
    assert cut.queries * topk * 4 % 16 == cut.queries * 4 % 16 == 0


def test_fewer_multiprocessors_than_a_step_of_queries_still_take_a_step() -> None:
    assert slicing(WIDE, 1).queries == ALIGNED_QUERIES


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


@interpreted
def test_the_map_of_slices_is_what_the_interpreter_measures() -> None:
    """To what a slice holds, one CTA of a launch adds; under the shared map every tile of heads does."""
    from kernels.sparse_mla import faults

    shared = next(f for f in faults.FAULTS if f.spec.name.endswith("slices_shared_by_head_tiles"))
    drawn = sample(sparse_mla, CASE)
    for spec, ctas in ((faults.SLICED, 1), (shared.spec, CASE["H"])):
        run = execute(spec, drawn, saved=saved_alone(spec, drawn), measure=True)
        assert run.evidence.footprints["d_kv"].addends == 1 + ctas, spec.name


class Front:
    """The CuTe kernels in torch, called as the compiled ones are; launches: the kind and CTAs of each."""

    def __init__(self) -> None:
        self.launches: list[tuple[str, int]] = []

    def main_kernel(self, dtype: torch.dtype, D: int, D_v: int, H: int, topk: int, has_length: bool, kind: str) -> Any:
        def run(
            q: Tensor, kv: Tensor, d_out: Tensor, lse_log2: Tensor, dots: Tensor, d_q: Tensor, words: Tensor,
            index: Tensor, length: Tensor | None, scale: float, stream: object,
        ) -> None:  # fmt: skip
            tiles = -(-H // 64)
            self.launches.append((kind, q.shape[1] * tiles))
            slices = words.view(q.shape[1] * tiles, -1) if kind != "queries" else words
            for t in range(q.shape[1]):
                rows = index[0, t, : topk if length is None else int(length[0, t].clamp(0, topk))].long()
                rows = rows[(rows >= 0) & (rows < kv.shape[1])]
                keys, Q, dO = kv[0, rows, 0].float(), q[0, t].float(), d_out[0, t].float()
                P = torch.exp2(Q @ keys.T * scale * math.log2(math.e) - lse_log2[0, t, :, None])
                dS = P * (dO @ keys[:, :D_v].T - dots[0, t, :, None]) * scale
                if kind != "adds":
                    d_q[0, t] = (dS @ keys).to(dtype)
                for h in range(tiles if kind != "queries" else 0):
                    some = slice(64 * h, 64 * h + 64)
                    share = dS[some].T @ Q[some]
                    share[:, :D_v] += P[some].T @ dO[some]
                    slices[t * tiles + h].view(-1, D).index_add_(0, rows, share)

        return run

    def preprocess(self, dtype: torch.dtype, D_v: int) -> Any:
        def run(
            out: Tensor, d_out: Tensor, dots: Tensor, lse: Tensor, lse_log2: Tensor, sink: Tensor, *rest: object
        ) -> None:
            dots[:, : out.shape[1]] = (out.float() * d_out.float()).sum(-1)
            lse_log2[:, : out.shape[1]] = torch.logaddexp(lse, sink) * math.log2(math.e)

        return run

    def postprocess(self, dtype: torch.dtype, D: int) -> Any:
        def run(words: Tensor, d_kv: Tensor, rows: int, stream: object) -> None:
            d_kv[0, :, 0] = words.view(-1, D)[:rows].to(dtype)

        return run


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Front:
    made = Front()
    driver: Any = ModuleType("driver")
    driver.CUstream = lambda stream: stream
    modules = {"cuda": ModuleType("cuda"), "cuda.bindings": ModuleType("cuda.bindings"), "cuda.bindings.driver": driver}
    modules["cuda.bindings"].driver = driver  # type: ignore[attr-defined]
    for name in ("cudnn_sliced_kernel", "cudnn_fixed_kernel"):
        module = modules[f"kernels.sparse_mla.{name}"] = ModuleType(name)
        vars(module).update({part: getattr(made, part) for part in ("main_kernel", "preprocess", "postprocess")})
        monkeypatch.setattr(sys.modules["kernels.sparse_mla"], name, module, raising=False)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(cudnn_arguments, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: type("Stream", (), {"cuda_stream": 0}))
    monkeypatch.setattr(cudnn_workspace, "MULTIPROCESSORS", 5)
    return made


@interpreted
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("tiles", [1, 3])
def test_launches_and_tiles_make_up_the_whole_gradient(
    front: Front, monkeypatch: pytest.MonkeyPatch, tiles: int, lengths: bool
) -> None:
    """5 queries of 65 heads in launches of four and of one, over 150 rows in one tile or three."""
    n = Sizes(5, 150, 65, 512, 512, 9)
    if tiles > 1:
        monkeypatch.setattr(cudnn_workspace, "SLICED_BYTES", 8 * 64 * 512 * 4)
    g = torch.Generator().manual_seed(0)
    index = torch.randint(-1, n.S_k, (n.S_q, n.topk), generator=g, dtype=torch.int32)
    index[:, 3] = index[:, 1]
    data = {name: torch.randn(*shape, generator=g).bfloat16() for name, shape in (
        ("q", (n.S_q, n.H, n.D)), ("kv", (n.S_k, n.D)), ("d_out", (n.S_q, n.H, n.D_v)))}  # fmt: skip
    given: dict[str, Any] = data | {"topk_idxs": index, "softmax_scale": 0.04, "value_dim": n.D_v}
    given |= {"topk_length": torch.tensor([9, 0, 5, 12, 7], dtype=torch.int32) if lengths else None}
    given |= {"sink": torch.randn(n.H, generator=g)}
    saved = eager.forward(**{k: v for k, v in given.items() if k != "d_out"})
    found, exact = cudnn_sliced.vjp(**given, **saved), eager.vjp(**given, **saved)
    for name, tensor in exact.items():
        # Both round the same FP32 numbers once, summed in other orders: apart by at most one step of bf16, 2^-7 of a
        # value, and by FP32's own errors in sums whose terms are below the largest one.
        near = tensor.float().abs() * 2.0**-7 + 2.0**-20 * float(tensor.float().abs().max())
        assert bool(((found[name].float() - tensor.float()).abs() <= near).all()), name
    adding = [ctas for kind, ctas in front.launches if kind == ("both" if tiles == 1 else "adds")]
    assert adding == [8, 2] * tiles, "two CTAs a query, four queries a launch"
    assert [kind for kind, _ in front.launches].count("queries") == (tiles > 1), "d_q is written once"
