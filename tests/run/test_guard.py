"""Guards: margins, unwritten cells, changed inputs, aliases, leftovers, and the bytes that a call holds at once."""

# ruff: noqa: E402
from __future__ import annotations

from numcheck import interpreter

interpreter.enable()

import pytest
import torch

from numcheck.execute import execute
from numcheck.guard import MARGIN_BYTES, Guard, poisoned
from numcheck.poison import FLOAT_BITS
from tests.interpreter import small
from tests.run.problem import sample, saving, spec


def doubling(spill):
    def forward(x):
        out = torch.empty_like(x)
        small.double[(-(-len(x) // 16),)](x.contiguous(), out, len(x), BLOCK=16, SPILL=spill)
        return {"out": out}

    return spec(forward)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("strided", [False, True])
def test_a_good_kernel_passes(dtype, strided):
    run = execute(doubling(0), sample(dtype=dtype, strided=strided))
    assert (run.error, run.findings) == ("", ())


def test_a_tail_written_beyond_the_end_is_caught():
    run = execute(doubling(1), sample())
    assert run.findings[0].endswith("up to 14 element(s) past the end of `out`, which is output out")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_one_unwritten_cell_is_caught(dtype):
    run = execute(doubling(-1), sample(dtype=dtype))
    assert run.findings == ("1 of 50 cell(s) of output out were never written, the first at (49,)",)


def test_a_margin_that_torch_code_overwrites_is_caught():
    def spilling(x):
        out = torch.empty_like(x)
        out.copy_(x * 2)
        address = out.data_ptr() + out.numel() * 4
        import ctypes

        ctypes.memset(address, 0, 14 * 4)
        return {"out": out}

    run = execute(spec(spilling), sample())
    assert run.findings == ("14 cell(s) written after output out (50,) float32, the nearest 1 from its end",)


def test_a_margin_of_a_workspace_that_is_long_gone_is_checked_too():
    def spilling(x):
        import ctypes

        work = torch.empty(8, device=x.device)
        ctypes.memset(work.data_ptr() - 4, 0, 4)
        del work
        return {"out": x * 2}

    run = execute(spec(spilling), sample())
    assert run.findings == ("1 cell(s) written before a workspace (8,) float32, the nearest 1 from its start",)


def test_an_honest_nan_is_not_unwritten():
    def nan(x):
        out = torch.empty_like(x)
        out.fill_(float("nan"))
        return {"out": out}

    assert execute(spec(nan), sample()).findings == ()


def test_reading_memory_that_nobody_wrote_shows():
    def sums_garbage(x):
        return {"out": x * 2 + torch.empty_like(x)}

    run = execute(spec(sums_garbage), sample())
    assert run.outputs["out"].isnan().all()


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int16]
)
def test_every_way_to_ask_for_empty_memory_is_poisoned(dtype):
    like = torch.zeros(3, 4, dtype=dtype)
    with Guard():
        made = [
            torch.empty(3, 4, dtype=dtype),
            torch.empty_like(like),
            like.new_empty(5),
            torch.empty_strided((3, 2), (1, 3), dtype=dtype),
            like.new_empty_strided((2, 2), (4, 1)),
            torch.empty_permuted((2, 3), (1, 0), dtype=dtype),
        ]
    for tensor in made:
        assert bool(poisoned(tensor).all())
        assert tensor.data_ptr() % 64 == 0
    assert made[3].stride() == (1, 3)
    assert made[4].stride() == (4, 1)


def test_zeros_and_clones_keep_their_values():
    with Guard() as guard:
        zeros, clone = torch.zeros(4), torch.ones(4).clone()
        new = clone.new_zeros(4)
    assert (zeros.sum(), clone.sum(), new.sum()) == (0, 4, 0)
    assert guard.allocations == []


def test_poison_is_a_quiet_nan_of_its_own():
    for name, bits in FLOAT_BITS.items():
        kind, integer = {
            "fp64": (torch.float64, torch.int64),
            "fp32": (torch.float32, torch.int32),
            "fp16": (torch.float16, torch.int16),
            "bf16": (torch.bfloat16, torch.int16),
        }[name]
        poison = torch.tensor([bits], dtype=integer).view(kind)
        assert poison.isnan().all()
        assert not poisoned(torch.tensor([float("nan")], dtype=kind)).any()
        assert poisoned(poison.clone()).all()


def test_changed_inputs_are_found_and_put_back():
    def greedy(x):
        out = x * 2
        x[3] = 7.0
        return {"out": out}

    given = sample()
    before = given.inputs["x"].clone()
    run = execute(spec(greedy), given)
    assert run.findings == ("input x was changed in 1 of 50 element(s), the first at (3,)",)
    assert torch.equal(given.inputs["x"], before)


def test_memory_between_and_around_input_elements_counts_too():
    def around(x):
        torch.as_strided(x, (1,), (1,), x.storage_offset() - 1).fill_(9.0)
        return {"out": x * 2}

    run = execute(spec(around), sample(strided=True))
    assert run.findings == ("memory around input x was changed, outside its elements",)


def test_a_changed_cotangent_is_found():
    def greedy(x, d_out):
        return {"d_x": d_out.mul_(2).clone()}

    assert "input d_out was changed" in execute(spec(None, greedy), sample()).findings[0]


def test_an_output_that_the_vjp_changes_is_found_and_put_back():
    def forward(x):
        return {"out": x * 2, "lse": x.sum()[None]}

    def greedy(x, lse, d_out):
        lse.zero_()
        return {"d_x": d_out * 2}

    given = sample()
    run = execute(spec(forward, greedy, oracle=saving), given)
    assert run.findings == ("output lse was changed in 1 of 1 element(s), the first at (0,)",)
    assert torch.equal(run.outputs["lse"], given.inputs["x"].sum()[None])


def test_an_output_that_is_an_input_is_found():
    run = execute(spec(lambda x: {"out": x}), sample())
    assert run.findings == ("output out shares its memory with input x",)


def test_dirty_memory_is_filled_with_leftovers_and_aligned_anew():
    seen, addresses = [], []

    def reads_fresh(x):
        fresh = torch.empty_like(x)
        seen.append(fresh[0].item())
        addresses.append(fresh.data_ptr() % 64)
        return {"out": x * 2 + 0 * fresh}

    for dirty in range(4):
        run = execute(spec(reads_fresh), sample(), dirty=dirty)
        assert run.error == ""
    assert len({str(value) for value in seen}) == 3
    assert addresses == [0, 16, 32, 48]


def test_peak_bytes_count_what_is_alive_at_once():
    def forward(x):
        first = torch.empty(1000)
        first.fill_(0)
        del first
        second = torch.zeros(500)
        third = second.clone()
        view = third.view(10, 50)
        return {"out": x * 2 + 0 * view.sum()}

    run = execute(spec(forward), sample())
    assert run.findings == ()
    # `first` alone is 1000 elements. At the last addition there are zeros, clone, a product, a scalar and the result.
    assert run.evidence.peak_bytes == 4 * (500 + 500 + 50 + 1 + 50)


def test_memory_of_the_caller_is_not_counted():
    run = execute(spec(lambda x: {"out": torch.mul(x.view(5, 10), 2).view(50)}), sample())
    assert run.evidence.peak_bytes == 200


def test_without_guards_the_call_is_left_alone():
    run = execute(doubling(-1), sample(), guard=False)
    assert run.findings == ()
    assert run.evidence.operators == ()
    assert run.evidence.peak_bytes == 0


def test_margins_are_wider_than_a_wide_block():
    assert MARGIN_BYTES >= 1024 * 4
