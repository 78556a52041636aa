"""A stranger's project: a spec file, and laws that are pure functions of the Case, so that no test waits for torch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SPECS = """
from numcheck import CaseSpace, Contract, Input, KernelSpec, Oracle, Output, Unavailable

space = CaseSpace(sizes={"D": (1, 64)}, dtypes=("fp32",), grid={"D": (8, 33)})
problem = Oracle("scale", (Input("x", ("D",)),), (Output("out", ("D",)),), lambda read, x: {"out": x}, space)

good = KernelSpec("good", problem, forward=lambda x: {"out": x})
bad = good.but(name="bad")
raises = good.but(name="raises")
vacuous = good.but(name="vacuous")
dependent = good.but(name="dependent")
deadly = good.but(name="deadly")
absent = good.but(name="absent", capability=lambda device: Unavailable("no sm_90 here", "sm90"))
"""

LAWS = """
import os, signal
import numcheck.laws
from numcheck.evidence import Evidence
from numcheck.gate import Gate
from numcheck.laws.law import Law
from numcheck.verdict import OutputVerdict, Status, Verdict

SAYS = {"bad": Status.FAIL, "raises": Status.ERROR, "vacuous": Status.VACUOUS, "dependent": Status.ORDER_DEPENDENT}

def law(name, **fields):
    def judge(spec, case, profile):
        if spec.name == "deadly" and case["D"] == 33:
            os.kill(os.getpid(), signal.SIGKILL)
        status = SAYS.get(spec.name, Status.PASS)
        status = status if case["D"] > 12 else Status.PASS if status >= Status.FAIL else status
        gates = (Gate("ceiling", "out", 2.0 if status == Status.FAIL else 0.5, 1.0, "the reason of the limit"),)
        output = OutputVerdict(status, f"said {status.name}", "out got=1 expected=2 at (0,)")
        return Verdict(spec.name, name, f"{spec.name} is {name}", {"out": output}, gates)
    return Law(name, "a fake", judge, **fields)

numcheck.laws.LAWS = (law("bitwise"), law("memory", applies=lambda s: "not for it" if s.name == "vacuous" else None))
"""


# Importing torch takes longer than all the rest: only one test waits for the real Environment and certificate.
LIGHT = """
import sys, types
import numcheck.environment

numcheck.environment.environment = lambda device, **facts: {"id": "e0", "device": {"name": device}}
stub = sys.modules["numcheck.certify"] = types.ModuleType("numcheck.certify")
facts = {"oracle": "scale", "status": "UNCERTIFIED", "worst": 0.0, "by_output": {}, "cases": 0, "limit": 0.0, "vjp": ""}
stub.certify = lambda oracle: types.SimpleNamespace(status="UNCERTIFIED", to_json=lambda: facts)
stub = sys.modules["numcheck.interpreter.repairs"] = types.ModuleType("numcheck.interpreter.repairs")
stub.REPAIRS = ()
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with `kernels.py` and fake laws; pytest there sees this checkout and nothing of its configuration."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in [n for n in os.environ if n.startswith(("PYTEST_", "TRITON_INTERPRET"))]:
        monkeypatch.delenv(name)
    pytester.makepyfile(kernels=SPECS)
    pytester.makeconftest(LAWS + LIGHT)
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """pytest in a process of its own, with the plugin as it is when installed."""
    return project.runpytest_subprocess("-p", "numcheck.plugin", "-p", "no:cacheprovider", *arguments)
