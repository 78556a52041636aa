"""Each rung of the repeat ladder: what it catches, that it leaves the machine as it was, and when it cannot run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from numcheck import Case, KernelSpec, interpreter
from numcheck.load import load
from numcheck.order import Order
from numcheck.repeat import Subject, compiled, dirty_memory, fresh_process, permuted, same_process, threads
from numcheck.repeat_autograd import autograd_modes
from numcheck.repeat_cuda import busy_device, graph_replay, late_inputs, moved
from numcheck.sample import sample
from numcheck.verdict import flip_bound

interpreter.enable()

from tests.meta.row_sum import ATOMIC, ONE_PROGRAM, ORDERED, STALE, THREE_BLOCKS, TORCH, row_sum, spec  # noqa: E402

# The two orders of three addends that may differ from the first: (1, 2, 0) and (0, 2, 1).
ORDERS = (Order("exact", 3), Order("exact", 1))


def subject(kernel: KernelSpec, case: Case = THREE_BLOCKS) -> Subject:
    return Subject.of(kernel, sample(row_sum, case), "cpu")


def test_a_rung_keeps_hashes_flips_and_power() -> None:
    rung = same_process(subject(TORCH), 3).rung
    assert (rung.runs, rung.flips, len(rung.hashes["out"])) == (3, {"out": 0}, 1)
    assert rung.to_json()["flip_bound"] == flip_bound(3)


def doubled_where(asked: Callable[[Tensor], bool]) -> KernelSpec:
    """The honest kernel, but for twice its sum where autograd is in the mode that `asked` looks for."""

    def forward(x: Tensor) -> dict[str, Tensor]:
        out = honest(x)["out"]
        return {"out": 2 * out if asked(x) else out}

    honest = TORCH.forward
    assert honest is not None
    return TORCH.but(forward=forward)


@pytest.mark.parametrize(
    ("asked", "under"),
    [
        (lambda x: torch.is_grad_enabled(), "inputs that require gradients"),
        (lambda x: x.requires_grad, "inputs that require gradients"),
        (lambda x: torch.is_inference_mode_enabled(), "inference mode"),
    ],
)
def test_a_forward_that_is_another_one_in_training_or_inference(asked: Callable[[Tensor], bool], under: str) -> None:
    step = autograd_modes(subject(doubled_where(asked)))
    assert (step.rung.runs, step.rung.flips) == (2, {"out": 1})
    assert step.differences["out"].under == under
    for honest in (TORCH, ORDERED):
        rung = autograd_modes(subject(honest)).rung
        assert (rung.runs, rung.flips, rung.note) == (2, {"out": 0}, "")


def test_a_mode_that_a_forward_refuses_is_a_note_and_no_run() -> None:
    def picky(x: Tensor) -> dict[str, Tensor]:
        if x.requires_grad:
            raise RuntimeError("wrap me in an autograd.Function")
        return TORCH.forward(x)  # type: ignore[misc]

    rung = autograd_modes(subject(TORCH.but(forward=picky))).rung
    assert (rung.runs, rung.flips) == (1, {"out": 0})
    assert "refused under inputs that require gradients: RuntimeError: wrap me" in rung.note


def test_a_result_that_the_next_call_overwrites_is_told() -> None:
    kept: list[Tensor] = []

    def forward(x: Tensor) -> dict[str, Tensor]:
        out = TORCH.forward(x)["out"]  # type: ignore[misc]
        kept.append(out)
        return {"out": kept[0].copy_(out)}

    step = same_process(subject(TORCH.but(forward=forward)), 2)
    assert step.error == "repeat 1: " + (
        "output out comes in the memory of output out of an earlier call, whose result is overwritten"
    )


def test_permuted_order_tells_atomics_from_slots() -> None:
    assert permuted(subject(ATOMIC), ORDERS).rung.flips["out"] > 0
    assert permuted(subject(ORDERED), ORDERS).rung.flips["out"] == 0


def test_permuted_order_stops_when_told_that_it_is_enough() -> None:
    orders = tuple(Order("exact", k) for k in (5, 4, 3, 2, 1))
    assert permuted(subject(ATOMIC), orders, lambda flips: flips["out"] > 0).rung.runs < len(orders)


def test_torch_operators_have_no_order_to_permute() -> None:
    step = permuted(subject(TORCH), ORDERS)
    assert (step.rung.runs, step.differences) == (0, {})
    assert "only the interpreter" in step.rung.note


def test_an_error_in_one_order_ends_the_rung_and_names_the_order() -> None:
    calls = []

    def fragile(x: Tensor) -> dict[str, Tensor]:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("lost its lock")
        return ORDERED.forward(x)  # type: ignore[misc]

    step = permuted(subject(ORDERED.but(forward=fragile)), ORDERS)
    assert step.rung.runs == 1
    assert step.error.startswith(f"order {ORDERS[1]}: RuntimeError: lost its lock")


def test_dirty_memory_shows_what_was_never_zeroed() -> None:
    assert dirty_memory(subject(STALE), (1, 2)).rung.flips["out"] > 0
    assert dirty_memory(subject(ORDERED), (1, 2)).rung.flips["out"] == 0
    assert dirty_memory(subject(ONE_PROGRAM), (1, 2)).rung.flips["out"] == 0


def by_threads(x: Tensor) -> dict[str, Tensor]:
    return {"out": x.to(torch.float32).sum(1) + torch.get_num_threads()}


def test_thread_counts_show_and_are_restored() -> None:
    before = torch.get_num_threads()
    step = threads(subject(spec("by_threads", by_threads)))
    assert step.rung.flips["out"] == step.rung.runs > 0
    assert "threads" in step.differences["out"].under
    assert torch.get_num_threads() == before
    assert threads(subject(TORCH)).rung.flips["out"] == 0


@pytest.fixture
def located(tmp_path: Path) -> Path:
    """A specs file whose kernels are those of this problem, and one whose bits depend on the process."""
    path = tmp_path / "located.py"
    path.write_text(
        "import os\n"
        "from tests.meta.row_sum import ATOMIC, TORCH, spec\n"
        "started = os.getpid()\n"
        "def by_process(x):\n"
        "    return {'out': x.sum(1) + started}\n"
        "ALL = (ATOMIC, TORCH, spec('by_process', by_process))\n"
    )
    return path


def _load(path: Path) -> dict[str, KernelSpec]:
    return {kernel.name: kernel for kernel in load((str(path),))}


def test_a_fresh_process_computes_the_same_bits_from_the_same_spec(located: Path) -> None:
    kernels = _load(located)
    step = fresh_process(subject(kernels["atomic"]))
    assert (step.rung.runs, step.rung.flips, step.error) == (1, {"out": 0}, ""), step.rung.note
    step = fresh_process(subject(kernels["by_process"]))
    assert step.rung.flips == {"out": 1}
    assert "a fresh process" in str(step.differences["out"])


def test_a_fresh_process_is_not_asked_about_a_spec_that_it_cannot_find(located: Path) -> None:
    step = fresh_process(subject(TORCH))
    assert step.rung.runs == 0
    assert "origin" in step.rung.note
    variant = _load(located)["torch"].but(forward=by_threads)
    step = fresh_process(subject(variant))
    assert (step.rung.runs, step.differences) == (0, {})
    assert "another kernel under the name" in step.rung.note


def test_compiled_shows_that_a_compiled_sum_takes_another_tree() -> None:
    claim = TORCH.but(compiled=True)
    exact = compiled(subject(claim, THREE_BLOCKS.but(regime="integers")))
    assert (exact.rung.runs, exact.rung.flips) == (1, {"out": 0}), exact.rung.note
    assert compiled(subject(claim)).rung.flips == {"out": 1}


def test_compiled_is_for_specs_that_claim_it() -> None:
    assert "does not claim" in compiled(subject(TORCH)).rung.note
    assert "interpreted kernel" in compiled(subject(ATOMIC.but(compiled=True))).rung.note


@pytest.mark.parametrize("rung", [busy_device, moved, graph_replay, lambda subject, _: late_inputs(subject)])
def test_device_rungs_say_that_they_need_a_device(rung) -> None:
    step = rung(subject(TORCH), 2)
    assert step.rung.runs == 0
    assert "CUDA" in step.rung.note
