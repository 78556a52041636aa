"""The memory law: bytes beyond the outputs, measured by call, against the Contract's formula."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import kernels
from numcheck import Case, Contract, KernelSpec
from numcheck.laws.memory import MEMORY, SHAPES, largest
from numcheck.profile import QUICK
from numcheck.verdict import Status, Verdict

MHC_POST = [spec for spec in kernels.ALL if spec.oracle.name == "mhc_post"]
SPECS = {spec.name: spec for spec in MHC_POST}
EAGER, ORDERED = SPECS["mhc_post.eager"], SPECS["mhc_post.triton_split_ordered"]
CASE = Case.of(S=2, H=4, D=257)


def judge(spec: KernelSpec, case: Case = CASE) -> Verdict:
    return MEMORY.judge(spec, case, QUICK)


def promising(spec: KernelSpec, contract: Contract) -> KernelSpec:
    return spec.but(contract=contract)


@pytest.mark.parametrize("spec", MHC_POST, ids=lambda s: s.name)
@pytest.mark.parametrize("case", [CASE, CASE.but(dtype="bf16", H=1), Case.of(S=1, H=8, D=1, dtype="bf16")], ids=str)
def test_the_formulas_of_the_kernels_are_exact(spec: KernelSpec, case: Case) -> None:
    verdict = judge(spec, case)
    assert verdict.status is Status.PASS
    assert verdict.figures["measured"] == spec.contract.workspace(case)


@pytest.mark.parametrize("layout", ["contiguous", "strided"])
def test_layout_and_offset_cost_nothing(layout: str) -> None:
    assert judge(EAGER, CASE.but(layout=layout, offset=3)).figures["measured"] == EAGER.contract.workspace(CASE)


def test_one_byte_too_many_fails() -> None:
    exact = EAGER.contract.workspace
    tight = replace(EAGER.contract, workspace=lambda case: exact(case) - 1)
    verdict = judge(promising(EAGER, tight))
    assert verdict.status is Status.FAIL
    assert verdict.outputs["d_x"].status is Status.FAIL
    # The forward needs less than the vjp, and less than this.
    assert verdict.outputs["out"].status is Status.PASS


def test_a_temporary_of_all_streams_at_once_fails() -> None:
    def broadcast(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> dict[str, Tensor]:
        mix = (comb[..., None] * residual.float()[:, :, None]).sum(1)
        return {"out": (post[:, :, None] * x.float()[:, None] + mix).to(residual.dtype)}

    verdict = judge(EAGER.but(forward=broadcast), CASE.but(H=8))
    assert verdict.outputs["out"].status is Status.FAIL
    assert "forward:" in verdict.outputs["out"].why


def test_a_workspace_that_the_kernel_allocates_itself_is_counted() -> None:
    verdict = judge(promising(ORDERED, replace(ORDERED.contract, workspace=lambda case: 0)))
    assert verdict.outputs["d_post"].status is Status.FAIL
    assert str(ORDERED.contract.workspace(CASE)) in verdict.outputs["d_post"].why


def test_outputs_that_no_allocation_made_are_an_error() -> None:
    kept: dict[str, Tensor] = {}

    def remembers(**inputs: Tensor) -> dict[str, Tensor]:
        forward = EAGER.forward
        assert forward is not None
        kept.update(kept or forward(**inputs))
        return dict(kept)

    spec = EAGER.but(forward=remembers, vjp=None)
    judge(spec)
    verdict = judge(spec)
    assert verdict.status is Status.ERROR
    assert "nothing was measured" in verdict.outputs["out"].why


def test_there_are_four_shapes_for_each_dtype_and_the_pool_says_what_they_foretell() -> None:
    cases = MEMORY.cases(EAGER)
    for dtype in EAGER.dtypes:
        assert len({case.sizes for case in cases if case.dtype == dtype}) >= SHAPES
    assert not MEMORY.drawn
    pooled = MEMORY.pool(EAGER, [(case, judge(EAGER, case)) for case in cases])
    assert pooled is not None
    assert pooled.status is Status.PASS
    assert pooled.figures["residual_bytes"] == 0
    (first, second) = largest(EAGER)
    assert (first["S"], first["H"], first["D"]) == (4, 8, 4096)
    assert pooled.figures["declared_maxima"][second.line()] == EAGER.contract.workspace(second)


def test_fewer_shapes_prove_no_formula() -> None:
    pooled = MEMORY.pool(EAGER, [(CASE, judge(EAGER))])
    assert pooled is not None
    assert pooled.status is Status.VACUOUS


def test_a_formula_that_allows_anything_proves_nothing() -> None:
    generous = promising(EAGER, replace(EAGER.contract, workspace=lambda case: 10**9))
    pooled = MEMORY.pool(generous, [(case, judge(generous, case)) for case in MEMORY.cases(generous)])
    assert pooled is not None
    assert pooled.status is Status.VACUOUS
    assert "more than twice" in pooled.outputs["out"].why


def test_a_case_over_the_formula_fails_the_pool() -> None:
    tight = promising(EAGER, replace(EAGER.contract, workspace=lambda case: 0))
    pooled = MEMORY.pool(tight, [(case, judge(tight, case)) for case in MEMORY.cases(tight)])
    assert pooled is not None
    assert pooled.status is Status.FAIL


def test_an_exception_is_an_error() -> None:
    def out_of_memory(**inputs: Tensor) -> dict[str, Tensor]:
        raise torch.OutOfMemoryError("no room")

    assert judge(EAGER.but(forward=out_of_memory)).status is Status.ERROR
