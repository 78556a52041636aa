"""A run calls forward and vjp by name, checks what they return, records what ran, and leaves nothing behind."""

# ruff: noqa: E402
from __future__ import annotations

from numcheck import interpreter

interpreter.enable()

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from numcheck.adapter import adapter
from numcheck.execute import execute
from numcheck.order import Order
from tests.interpreter import small
from tests.run.problem import doubling, sample, saving, spec


def forward(x):
    out = torch.empty_like(x)
    small.double[(-(-len(x) // 16),)](x, out, len(x), BLOCK=16, SPILL=0)
    return {"out": out}


def eager(x):
    return {"out": x * 2}


def vjp(x, d_out):
    return {"d_x": d_out * 2}


def test_a_good_kernel_runs_forward_and_backward():
    given = sample()
    run = execute(spec(forward, vjp), given, order=Order("reversed"), measure=True)
    assert (run.error, run.findings) == ("", ())
    assert torch.equal(run.outputs["out"], 2 * given.inputs["x"])
    assert torch.equal(run.outputs["d_x"], 2 * given.cotangents["d_out"])
    assert run.order == Order("reversed")
    assert run.evidence.backend == "interpreter"
    assert [(launch.kernel, launch.grid) for launch in run.evidence.launches] == [("double", (4, 1, 1))]
    assert run.evidence.footprints["out"].writers == 1
    assert "bf16-casts" in run.evidence.repairs
    assert run.evidence.operators == ("aten.empty_like.default", "aten.mul.Tensor")
    assert run.evidence.to_json()["launches"] == [["double", [4, 1, 1]]]


def test_torch_operators_are_the_evidence_of_a_torch_spec():
    run = execute(spec(eager), sample())
    assert run.evidence.backend == "torch"
    assert run.evidence.operators == ("aten.mul.Tensor",)
    assert run.evidence.launches == ()
    assert run.evidence.repairs == ()


def test_zero_elements_launch_nothing():
    run = execute(spec(forward), sample(0))
    assert run.error == ""
    assert [launch.grid for launch in run.evidence.launches] == [(0, 1, 1)]


def test_saved_outputs_reach_the_vjp_and_can_be_given():
    def with_total(x):
        return {"out": x * 2, "lse": x.sum()[None]}

    def reading(x, lse, d_out):
        return {"d_x": 2 * d_out + 0 * lse}

    given = sample()
    run = execute(spec(with_total, reading, oracle=saving), given)
    assert run.error == ""
    assert torch.equal(run.saved["lse"], given.inputs["x"].sum()[None])
    told = torch.tensor([float("inf")])
    run = execute(spec(None, reading, oracle=saving), given, saved={"lse": told})
    assert run.outputs["d_x"].isnan().all()
    run = execute(spec(None, reading, oracle=saving), given)
    assert "pass them as saved=" in run.error


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda x: {}, "did not return out"),
        (lambda x: x * 2, "returned Tensor; it returns a dict of out"),
        (lambda x: {"out": x * 2, "extra": x}, "returned 'extra'; doubling has out"),
        (lambda x: {"out": x[:-1] * 2}, "returned out of shape (49,), not (50,)"),
        (lambda x: {"out": (x * 2).double()}, "returned out as float64, not float32"),
        (lambda x: {"out": None}, "returned out as NoneType, not a tensor"),
    ],
)
def test_what_breaks_the_calling_convention_is_an_error(returned, message):
    run = execute(spec(returned), sample())
    assert run.error.startswith("CallingConvention: ")
    assert message in run.error


def test_an_exception_of_the_kernel_is_a_run_with_its_place():
    def failing(x):
        raise ValueError("no such luck")

    run = execute(spec(failing), sample())
    assert run.error.startswith("ValueError: no such luck (at ")
    assert "test_execute.py" in run.error
    assert run.error.endswith("in failing)")
    assert run.outputs == {}


def test_an_exception_inside_an_interpreted_kernel_is_unwrapped():
    def overflowing(x):
        large = torch.full((1,), 2**20, dtype=torch.int32)
        small.overflowing[(1,)](large, large.clone())
        return {"out": x * 2}

    run = execute(spec(overflowing), sample(), check_overflow=True)
    assert run.error.startswith("AssertionError: int32 overflow")
    assert "small.py" in run.error


def test_a_user_who_stops_the_program_is_obeyed():
    """Ctrl-C; an exit is what a kernel may call, with code 0 too (tests/meta/test_attacks.py)."""

    def stopped(x):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(spec(stopped), sample())
    assert execute(spec(forward), sample()).error == ""


def test_global_settings_come_back_and_the_change_is_reported():
    def careless(x):
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(3)
        torch.use_deterministic_algorithms(True)
        return {"out": x * 2}

    threads = torch.get_num_threads()
    run = execute(spec(careless), sample())
    assert torch.get_default_dtype() is torch.float32
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert len(run.findings) == (3 if threads != 3 else 2)
    assert "changed the default dtype from torch.float32 to torch.float64" in run.findings[0]
    assert execute(spec(eager), sample()).findings == ()


def test_no_graph_is_built_or_returned():
    weight = torch.ones(50, requires_grad=True)
    run = execute(spec(lambda x: {"out": x * 2 * weight}), sample())
    assert not run.outputs["out"].requires_grad
    assert torch.is_grad_enabled()


def test_an_autotuned_spec_runs_pinned_config_by_config():
    def tuned(x):
        out = torch.empty_like(x)
        small.tuned[lambda meta: (-(-len(x) // meta["BLOCK"]),)](x, out, len(x))
        return {"out": out}

    free = spec(tuned)
    assert "has 2 configs" in execute(free, sample()).error
    grids = [execute(s, sample()).evidence.launches[0].grid for s in free.pinned(small.tuned)]
    assert grids == [(4, 1, 1), (2, 1, 1)]
    assert len(small.tuned.configs) == 2


def test_a_differentiable_function_behind_the_adapter():
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, d_out):
            return d_out * 2

    given = sample(strided=True)
    run = execute(spec(*adapter(lambda x: Doubling.apply(x), doubling)), given)
    assert (run.error, run.findings) == ("", ())
    assert torch.equal(run.outputs["out"], 2 * given.inputs["x"])
    assert torch.equal(run.outputs["d_x"], 2 * given.cotangents["d_out"])
    assert not given.inputs["x"].requires_grad


def test_a_gradient_that_does_not_flow_is_missing_not_zero():
    run = execute(spec(*adapter(lambda x: x.detach() * 2, doubling)), sample())
    assert "did not return d_x" in run.error


def test_a_kernel_imported_without_the_interpreter_is_refused_not_crashed():
    code = """
        import torch, triton, triton.language as tl
        from numcheck.execute import execute
        from tests.interpreter import small
        from tests.run.problem import sample, spec
        def forward(x):
            out = torch.empty_like(x)
            small.double[(4,)](x, out, 50, BLOCK=16, SPILL=0)
            return {"out": out}
        print(execute(spec(forward), sample()).error)
    """
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    out = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True, check=True
    )
    assert out.stdout.startswith("Refused: kernel double is compiled for a GPU")
    assert "TRITON_INTERPRET=1" in out.stdout
