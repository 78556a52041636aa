"""Kernels, spec files and machines that would escape judgement, each of which has to be caught, and said."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from numcheck import Case, Contract, KernelSpec
from numcheck.errors import InvalidSpec, RecordsLost
from numcheck.execute import execute
from numcheck.explore import explore
from numcheck.laws.evidence import EVIDENCE
from numcheck.load import load
from numcheck.profile import QUICK
from numcheck.record import Writer, read
from numcheck.sample import sample
from numcheck.verdict import Status
from tests.meta.row_sum import BLOCK, ORDERED, add_slots, ordered, row_sum, spec, store_slots

CASE = Case.of(S=2, D=33, seed=2)
NAMES = (store_slots, add_slots)
Outputs = dict[str, Tensor]


def judged(forward: Callable[[Tensor], Any]) -> KernelSpec:
    return spec(forward.__name__, forward, "fixed", NAMES)


def decoy() -> None:
    """The kernels that must run, on data that nobody reads."""
    slots, out = torch.empty(1, 1), torch.empty(1)
    store_slots[(1, 1)](torch.ones(1, BLOCK), slots, BLOCK, BLOCK=BLOCK, BLOCKS=1)
    add_slots[(1,)](slots, out, BLOCKS=1)


def beside_a_decoy(x: Tensor) -> Outputs:
    decoy()
    return {"out": x.to(torch.float64).sum(1).to(torch.float32)}


def half_a_decoy(x: Tensor) -> Outputs:
    """The first kernel is honest; torch adds what it stored, and the second runs for show."""
    decoy()
    x = x.contiguous()
    blocks = -(-x.shape[1] // BLOCK)
    slots = torch.empty(x.shape[0], blocks)
    store_slots[(x.shape[0], blocks)](x, slots, x.shape[1], BLOCK=BLOCK, BLOCKS=blocks)
    return {"out": slots.sum(1)}


def test_kernels_that_run_on_data_that_nobody_reads_are_not_evidence() -> None:
    found = explore(EVIDENCE, judged(beside_a_decoy), QUICK, seed=1)
    assert found.status is Status.ERROR
    assert found.pooled is not None
    assert "store_slots, add_slots ran, but in none of" in found.pooled.outputs["out"].why


def test_each_kernel_that_must_run_has_to_matter() -> None:
    found = explore(EVIDENCE, judged(half_a_decoy), QUICK, seed=1)
    assert found.status is Status.ERROR
    assert found.pooled is not None
    assert found.pooled.outputs["out"].why.startswith("add_slots ran, but in none of")


def test_kernels_that_compute_the_outputs_matter() -> None:
    found = explore(EVIDENCE, ORDERED, QUICK, seed=1)
    assert found.status is Status.PASS
    assert found.pooled is not None
    assert all(found.pooled.figures["mattered"].values())


def leaves(x: Tensor) -> Outputs:
    sys.exit(0)


def closes(x: Tensor) -> Outputs:
    raise GeneratorExit


class Closed(dict[str, Tensor]):
    def __getitem__(self, name: str) -> Tensor:
        sys.exit(0)


def returns_an_exit(x: Tensor) -> Outputs:
    return Closed(ordered(x))


def leaves_at_once(x: Tensor) -> Outputs:
    child = os.fork()
    if not child:
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    os._exit(0)


@pytest.mark.parametrize("forward", [leaves, closes, returns_an_exit, leaves_at_once])
def test_a_kernel_that_ends_the_process_is_an_error_of_the_kernel(forward: Callable[[Tensor], Outputs]) -> None:
    found = explore(EVIDENCE, judged(forward), QUICK, seed=1)
    assert found.status is Status.ERROR
    assert "Exit: " in found.findings[0].verdict.outputs["out"].why
    assert "AssertionError" not in found.findings[0].verdict.outputs["out"].why


def restores(x: Tensor) -> Outputs:
    x.mul_(2.0)
    x.mul_(0.5)
    return ordered(x)


def restores_through_a_view(x: Tensor) -> Outputs:
    kept = x.clone()
    torch.neg(x, out=x[:])
    x.copy_(kept)
    return ordered(x)


@pytest.mark.parametrize("forward", [restores, restores_through_a_view])
def test_an_input_that_is_changed_and_put_back_was_changed(forward: Callable[[Tensor], Outputs]) -> None:
    run = execute(judged(forward), sample(row_sum, CASE))
    assert any("wrote into an input" in finding for finding in run.findings)


def test_writing_into_ones_own_memory_is_no_finding() -> None:
    assert execute(judged(lambda x: ordered(x.clone().mul_(2.0).mul_(0.5))), sample(row_sum, CASE)).findings == ()


SETTINGS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "the default device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "the default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "autocast on the CPU": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda: torch.set_autocast_enabled("cpu", True),
    ),
    "the flushing of subnormals": (
        lambda: torch.full((), 5e-324, dtype=torch.float64).mul(1.0).item(),
        lambda: torch.set_flush_denormal(True),
    ),
    "torch's fill": (
        lambda: torch.utils.deterministic.fill_uninitialized_memory,
        lambda: setattr(torch.utils.deterministic, "fill_uninitialized_memory", False),
    ),
    "cuDNN's benchmarking": (
        lambda: torch.backends.cudnn.benchmark,
        lambda: setattr(torch.backends.cudnn, "benchmark", True),
    ),
    "oneDNN's use": (
        lambda: torch.backends.mkldnn.enabled,
        lambda: setattr(torch.backends.mkldnn, "enabled", False),
    ),
    "the recursion limit": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 1)),
    "the current folder": (os.getcwd, lambda: os.chdir("/")),
    "the choice of Triton's interpreter": (
        lambda: os.environ.get("TRITON_INTERPRET"),
        lambda: os.environ.update(TRITON_INTERPRET="0"),
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_that_outlives_the_call_is_said_and_put_back(name: str) -> None:
    now, change = SETTINGS[name]
    before = now()

    def forward(x: Tensor) -> Outputs:
        found = ordered(x)
        change()
        return found

    run = execute(judged(forward), sample(row_sum, CASE))
    assert any(f"the kernel changed {name}" in finding for finding in run.findings)
    assert now() == before


def test_settings_that_are_left_alone_are_no_finding() -> None:
    assert execute(ORDERED, sample(row_sum, CASE)).findings == ()


SLIPS: dict[str, tuple[Callable[[], object], str]] = {
    "a kernel for a tuple": (lambda: ORDERED.but(must_run=store_slots), "give a tuple"),
    "a string for a tuple": (lambda: ORDERED.but(must_run="store_slots"), "give a tuple"),
    "a number for a kernel": (lambda: ORDERED.but(must_run=(3,)), "must_run holds 3"),
    "a number for a name": (lambda: ORDERED.but(name=3), "a name is printable text"),
    "a terminal's escape in a name": (lambda: ORDERED.but(name="a\x1b[31m"), "a name is printable text"),
    "a name for an oracle": (lambda: ORDERED.but(oracle="row_sum"), "give a numcheck.Oracle"),
    "no contract": (lambda: ORDERED.but(contract=None), "give a numcheck.Contract"),
    "text for a forward": (lambda: ORDERED.but(forward="ordered"), "give a function"),
    "text for a cap": (lambda: ORDERED.but(caps={"out": "3e-3"}), "give a relL2 above 0"),
    "NaN for a cap": (lambda: ORDERED.but(caps={"out": float("nan")}), "give a relL2 above 0"),
    "a number for rounds": (lambda: Contract(rounds=3), "give a dict by name"),  # type: ignore[arg-type]
    "a number for a rounding": (lambda: Contract(rounds={"out": 3}), "numcheck.Rounding"),  # type: ignore[dict-item]
    "a promise for all outputs": (lambda: Contract(order="any"), "give a dict by name"),  # type: ignore[arg-type]
    "a sum of an unknown dtype": (lambda: Contract(accumulate="fp8"), "a sum accumulates in 'fp8'"),
    "text for dtypes": (lambda: Contract(dtypes="fp32"), "give a tuple of"),  # type: ignore[arg-type]
    "text for a workspace": (lambda: Contract(workspace=8), "give a function of the Case"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_in_a_spec_is_said_where_it_is_made(name: str) -> None:
    make, words = SLIPS[name]
    with pytest.raises(InvalidSpec, match=words):
        make()


def raising(question: object) -> Any:
    raise ZeroDivisionError("by the spec")


CALLABLES: dict[str, tuple[KernelSpec, str]] = {
    "legal raises": (
        ORDERED.but(contract=replace(ORDERED.contract, legal=raising)),
        "contract.legal raised ZeroDivisionError: by the spec",
    ),
    "legal answers yes": (
        ORDERED.but(contract=replace(ORDERED.contract, legal=lambda case: True)),
        "contract.legal gave True; it gives None where a Case is inside the promise",
    ),
    "capability raises": (ORDERED.but(capability=raising), "capability raised ZeroDivisionError: by the spec"),
    "capability answers nothing": (ORDERED.but(capability=lambda device: None), "capability gave None; it gives Avail"),
    "rounds raises": (ORDERED.but(contract=replace(ORDERED.contract, order=raising)), "ZeroDivisionError: by the spec"),
}


@pytest.mark.parametrize("name", CALLABLES)
def test_a_callable_of_the_spec_that_fails_is_an_error_with_its_name(name: str) -> None:
    wrong, words = CALLABLES[name]
    found = explore(EVIDENCE, wrong, QUICK, seed=1)
    assert found.status is Status.ERROR
    said = found.reason or next(iter(found.findings[0].verdict.outputs.values())).why
    assert words in said


@pytest.mark.parametrize(
    "line",
    [
        "import sys; sys.exit(0)",
        "import pytest; pytest.skip('x', allow_module_level=True)",
        "raise KeyboardInterrupt",
    ],
)
def test_a_spec_file_that_leaves_or_skips_has_no_kernels(tmp_path: Path, line: str) -> None:
    path = tmp_path / "leaves.py"
    path.write_text(line, encoding="utf-8")
    with pytest.raises(InvalidSpec, match="importing it raised"):
        load(str(path))


def test_a_row_that_the_disk_takes_in_part_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "records.jsonl", os.write
    writer = Writer(path, "run")

    def full(file: int, data: bytes) -> int:
        if len(data) < 20:
            raise OSError(28, "No space left on device")
        return write(file, data[: len(data) - 10])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RecordsLost, match="No space left on device; make room and run again"):
            writer.row("note")
    writer.end()
    found = read(path)
    assert [row["kind"] for row in found.rows] == ["run", "end"]
    assert [problem.line for problem in found.problems] == [2]
