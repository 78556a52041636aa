"""False passes about order, exceptions, environment and skips, named by their rows in docs/explanation."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from numcheck import Contract, KernelSpec, Unavailable
from numcheck.capability import Device
from numcheck.explore import explore
from numcheck.laws.accuracy import ACCURACY
from numcheck.laws.bitwise import BITWISE
from numcheck.plugin.settings import Settings
from numcheck.profile import QUICK
from numcheck.verdict import Status
from tests.meta.row_sum import ATOMIC, ORDERED, THREE_BLOCKS, TWO_BLOCKS

ROOT = Path(__file__).resolve().parents[2]
FEW = replace(QUICK, grid=4, examples=4)


def test_row_9_minus_zero_is_not_zero() -> None:
    calls = iter(range(1000))

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        zero = 0.0 if next(calls) == 0 else -0.0
        return {"out": torch.full((x.shape[0],), zero)}

    verdict = BITWISE.judge(KernelSpec("signs", ORDERED.oracle, forward=forward), THREE_BLOCKS, QUICK)
    assert verdict.outputs["out"].status is Status.FAIL


def test_row_11_an_exception_of_the_strict_check_is_an_error_and_no_looser_check_decides() -> None:
    def raises(*_: object) -> None:
        raise ArithmeticError("the strict check broke")

    outcome = explore(replace(ACCURACY, judge=raises), ORDERED, FEW)
    assert outcome.status is Status.ERROR
    assert "the strict check broke" in outcome.findings[0].verdict.outputs["*"].why


def test_row_12_no_environment_variable_of_a_ci_loosens_a_verdict(tmp_path: Path) -> None:
    (tmp_path / "claims.py").write_text(
        "import kernels\n"
        "spec = next(s for s in kernels.ALL if s.name == 'mhc_post.triton_split_atomic').claiming(d_comb='fixed')\n"
    )
    # Seed 2 is one of those whose three partial sums do not add up alike in every order.
    case = '{"sizes":{"S":1,"H":2,"D":257},"seed":2}'
    command = [sys.executable, "-m", "numcheck", "replay", "--device", "cpu", "--specs", str(tmp_path / "claims.py")]
    loose = {"CI": "true", "GITHUB_ACTIONS": "true", "FLA_CI_ENV": "1", "NUMCHECK_LOOSE": "1", "PYTHONPATH": str(ROOT)}
    for environment in (os.environ, {**os.environ, **loose}):
        done = subprocess.run(
            [*command, "mhc_post.triton_split_atomic", "bitwise", case],
            cwd=ROOT,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1, done.stdout + done.stderr


def test_row_14_the_documented_defaults_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "pytest.md").read_text()
    defaults = Settings()
    assert f"(default {defaults.profile})" in page
    assert f"(default {defaults.device})" in page
    contract = Contract()
    assert contract.order_of("out", THREE_BLOCKS) == "fixed"
    assert not contract.policy(THREE_BLOCKS).rounds


@pytest.mark.parametrize("case", [TWO_BLOCKS, THREE_BLOCKS.but(regime="ones")], ids=["two addends", "exact sums"])
def test_row_15_data_on_which_order_cannot_show_is_vacuous(case) -> None:
    assert BITWISE.judge(ORDERED, case, QUICK).outputs["out"].status is Status.VACUOUS


def test_row_15_a_test_of_nothing_but_such_data_fails() -> None:
    judged = [(case, BITWISE.judge(ORDERED, case, QUICK)) for case in (TWO_BLOCKS, TWO_BLOCKS.but(seed=5))]
    pooled = BITWISE.pool(ORDERED, judged)
    assert pooled is not None
    assert pooled.outputs["out"].status is Status.FAIL


def test_row_16_repeatable_when_small_and_not_when_large() -> None:
    large = 64

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        kernel = ORDERED if x.shape[1] <= large else ATOMIC
        assert kernel.forward is not None
        return kernel.forward(x=x)

    spec = ORDERED.but(name="by_size", forward=forward, must_run=())
    outcome = explore(BITWISE, spec, FEW, seed=1)
    assert outcome.status is Status.FAIL
    assert outcome.shrunk is not None
    assert outcome.shrunk["D"] > large


def _nowhere(device: Device) -> Unavailable:
    return Unavailable("needs SM100", "sm100")


def test_row_18_a_skip_everywhere_is_no_pass() -> None:
    outcome = explore(BITWISE, ORDERED.but(capability=_nowhere), FEW)
    assert outcome.status is Status.UNAVAILABLE
    assert outcome.judged == 0
    assert outcome.missing[0].needs == "sm100"
