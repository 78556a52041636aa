"""Each operator makes the mistake that it is named for, and none where there is nothing to mistake."""

from __future__ import annotations

import ast
import textwrap
from typing import NamedTuple

import pytest

from numcheck.mutate.operators import OPERATORS, edits
from numcheck.mutate.reach import Function
from numcheck.mutate.sites import Scope

KERNEL = '''
def kernel(x, out, sums, D, x_s, x_d, EPS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr):
    """Not: d < D."""
    s = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    total = tl.zeros([BLOCK], tl.float32)
    for block in range(1, BLOCKS):
        d = block * BLOCK + tl.arange(0, BLOCK)
        inside = (d < D) & (d >= 0)
        row = tl.load(x + s * x_s + d * x_d, mask=inside, other=0.0).to(tl.float32)
        total += row * row
    mean = tl.sum(total, axis=0) / D
    scale = tl.exp(mean - 0.5) + EPS
    tl.atomic_add(sums + part, scale, mask=part == 0)
    tl.store(out + s * D + d, tl.where(inside, scale[:, None], 0.0), mask=inside)
'''
HOST = """
def forward(x: Tensor, weight, residual):
    if x.dim() != 2 or x.dtype != torch.float32:
        raise ValueError("d < D")
    out = torch.zeros(x.shape, dtype=x.dtype)
    sums = torch.empty(x.shape[0])
    sums.zero_()
    grid = (x.shape[0], 1)
    kernel[grid](x, out, sums, x.shape[1], *x.stride(), BLOCK=triton.cdiv(x.shape[1], 2))
    other[(x.shape[0],)](x.contiguous(), x.stride(0), -(-x.shape[1] // 4))
    total = weight[:, 0] * x.float()
    total += residual
    return {"out": (total.sum(0) if x.numel() else -total)}
"""
SIZES = """
def blocks(D: int, block: int):
    return max(1, D + 1 - block)
"""


def made(source: str, jitted: bool, module: str = "m") -> dict[str, set[tuple[str, str]]]:
    """Operator -> (before, after) of all it makes of a function."""
    tree = ast.parse(textwrap.dedent(source))
    (node,) = (n for n in tree.body if isinstance(n, ast.FunctionDef))
    found: dict[str, set[tuple[str, str]]] = {}
    for edit in edits(Scope.of(Function(module, node.name, node, jitted)), source):
        assert source[edit.start : edit.end] == edit.before
        found.setdefault(edit.operator, set()).add((" ".join(edit.before.split()), " ".join(edit.after.split())))
    return found


IN_KERNEL = made(KERNEL, jitted=True)
ON_HOST = made(HOST, jitted=False)
LOAD = "tl.load(x + s * x_s + d * x_d, mask=inside, other=0.0)"
STORE = "tl.store(out + s * D + d, tl.where(inside, scale[:, None], 0.0), mask=inside)"


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("drop-mask", LOAD, "tl.load(x + s * x_s + d * x_d)"),
        ("drop-mask", STORE, STORE.replace(", mask=inside)", ")")),
        ("drop-conjunct", "(d < D) & (d >= 0)", "(d < D)"),
        ("drop-conjunct", "(d < D) & (d >= 0)", "(d >= 0)"),
        ("drop-other", LOAD, "tl.load(x + s * x_s + d * x_d, mask=inside)"),
        ("wrong-bound", "d < D", "(d <= D)"),
        ("wrong-bound", "d >= 0", "(d > 0)"),
        ("opposite", "part == 0", "(part != 0)"),
        ("off-by-one", "d < D", "(d < D - 1)"),
        ("off-by-one", "range(1, BLOCKS)", "range(1 + 1, BLOCKS)"),
        ("drop-last-tile", "range(1, BLOCKS)", "range(1, BLOCKS - 1)"),
        ("ignore-program", "tl.program_id(0)", "(tl.program_id(0) * 0)"),
        ("swap-program", "tl.program_id(0)", "tl.program_id(1)"),
        ("swap-program", "tl.program_id(1)", "tl.program_id(0)"),
        ("swap-strides", "x + s * x_s + d * x_d", "(x + s * x_d + d * x_s)"),
        ("swap-axes", "scale[:, None]", "scale[None, :]"),
        (
            "atomic-to-store",
            "tl.atomic_add(sums + part, scale, mask=part == 0)",
            "tl.store(sums + part, tl.load(sums + part, mask=part == 0) + scale, mask=part == 0)",
        ),
        (
            "atomic-to-store",
            "tl.atomic_add(sums + part, scale, mask=part == 0)",
            "tl.store(sums + part, scale, mask=part == 0)",
        ),
        ("drop-store", STORE, "pass"),
        ("drop-upcast", f"{LOAD}.to(tl.float32)", LOAD),
        ("drop-width", "tl.program_id(0).to(tl.int64)", "tl.program_id(0)"),
        ("narrow-sum", "total += row * row", "total = (total + (row * row)).to(tl.bfloat16).to(tl.float32)"),
        ("narrow-sum", "tl.sum(total, axis=0)", "tl.sum(total.to(tl.bfloat16).to(tl.float32), axis=0)"),
        ("sum-to-mean", "tl.sum(total, axis=0)", "(tl.sum(total, axis=0) / (total).shape[0])"),
        ("wrong-sign", "total += row * row", "total -= row * row"),
        ("wrong-sign", "mean - 0.5", "(mean + 0.5)"),
        ("round-product", "row * row", "(row * row).to(tl.bfloat16).to(tl.float32)"),
        ("drop-factor", "row * row", "row"),
        ("drop-factor", "tl.sum(total, axis=0) / D", "tl.sum(total, axis=0)"),
        ("wrong-eps", "tl.exp(mean - 0.5) + EPS", "tl.exp(mean - 0.5)"),
        ("wrong-eps", "tl.exp(mean - 0.5) + EPS", "(tl.exp(mean - 0.5) + EPS * 2.0)"),
        ("wrong-function", "tl.exp(mean - 0.5)", "tl.exp2(mean - 0.5)"),
        ("wrong-axis", "tl.sum(total, axis=0)", "tl.sum(total, axis=1)"),
        ("wrong-constant", "0.5", "1.0"),
        ("wrong-constant", "0.0", "1.0"),
        ("drop-select", "tl.where(inside, scale[:, None], 0.0)", "scale[:, None]"),
    ],
)
def test_an_operator_makes_its_mistake_in_a_kernel(operator: str, before: str, after: str) -> None:
    assert (before, after) in IN_KERNEL[operator]


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("drop-check", 'if x.dim() != 2 or x.dtype != torch.float32: raise ValueError("d < D")', "pass"),
        ("drop-conjunct", "x.dim() != 2 or x.dtype != torch.float32", "(x.dim() != 2)"),
        ("opposite", "x.dim() != 2", "(x.dim() == 2)"),
        ("unset-memory", "torch.zeros(x.shape, dtype=x.dtype)", "torch.empty(x.shape, dtype=x.dtype)"),
        ("unset-memory", "sums.zero_()", "pass"),
        ("drop-last-program", "(x.shape[0], 1)", "((x.shape[0] - 1, 1))"),
        ("drop-last-program", "(x.shape[0],)", "((x.shape[0] - 1,))"),
        ("drop-last-tile", "triton.cdiv(x.shape[1], 2)", "(x.shape[1] // 2)"),
        ("drop-last-tile", "-(-x.shape[1] // 4)", "(x.shape[1] // 4)"),
        ("wrong-strides", "x.stride()", "x.contiguous().stride()"),
        ("wrong-strides", "x.stride(0)", "x.contiguous().stride(0)"),
        ("wrong-strides", "x.stride(0)", "x.stride(1)"),
        ("swap-index", "weight[:, 0]", "weight[0, :]"),
        ("forget-method", "x.contiguous()", "x"),
        ("drop-upcast", "x.float()", "x"),
        ("narrow-sum", "total += residual", "total = (total + (residual)).bfloat16().float()"),
        ("sum-to-mean", "total.sum(0)", "total.mean(0)"),
        ("wrong-sign", "-total", "total"),
        ("other-branch", "x.numel()", "(not x.numel())"),
    ],
)
def test_an_operator_makes_its_mistake_on_the_host(operator: str, before: str, after: str) -> None:
    assert (before, after) in ON_HOST[operator]


def test_every_operator_is_shown_here() -> None:
    # TF32 and barriers show on a device alone.
    assert set(OPERATORS) - {"dot-precision", "drop-barrier"} == set(IN_KERNEL) | set(ON_HOST)


def test_a_bound_that_every_lane_keeps_is_let_be() -> None:
    """arange(0, N) < N gives a mask its shape; N is a power of two, so there is nothing that it leaves out."""
    source = (
        "def kernel(x, D, N):\n    h = tl.arange(0, N)\n    d = tl.arange(0, 8)\n    m = (h[:, None] < N) & (d < D)\n"
    )
    found = made(source, jitted=True)
    assert found["wrong-bound"] == {("d < D", "(d <= D)")}
    assert found["drop-conjunct"] == {("(h[:, None] < N) & (d < D)", "(h[:, None] < N)")}
    assert ("h[:, None] < N", "(h[:, None] < N - 1)") in found["off-by-one"]


def test_an_upcast_that_another_makes_needless_is_let_be() -> None:
    """A bf16 factor of an FP32 one is promoted, exactly; dropping the upcast of one of two changes nothing."""
    source = "def kernel(a, b):\n    x = tl.load(a).to(tl.float32)\n    y = tl.load(b).to(tl.float32)\n    z = x * y\n"
    assert "drop-upcast" not in made(source, jitted=True)
    assert "drop-upcast" in made(source.replace("x * y", "x * x + y"), jitted=True)


def test_a_branch_that_only_some_builds_have_is_known_by_its_start() -> None:
    """Its condition reads compile-time parameters alone, so that another build does not contain it."""
    source = textwrap.dedent("""
        def kernel(x, n, FAST: tl.constexpr, WIDE: tl.constexpr):
            y = n - 1 if FAST else n - 2
            if FAST and not WIDE:
                z = n - 3
                z = n - 4
            elif WIDE:
                z = n - 5
            else:
                z = n - 6
            if n > 0:
                z = n - 7
    """)
    (node,) = (n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef))
    found = {}
    for edit in edits(Scope.of(Function("m", "kernel", node, True)), source):
        if edit.operator == "wrong-sign":
            found[edit.before] = source[slice(*edit.branch)] if edit.branch else None
    assert found == {
        "n - 1": "n - 1",
        "n - 2": "n - 2",
        "n - 3": "z = n - 3",
        "n - 4": "z = n - 3",
        "n - 5": "z = n - 5",
        "n - 6": "z = n - 6",
        "n - 7": None,
    }


def test_what_only_a_device_shows() -> None:
    source = "def kernel(a, b):\n    tl.debug_barrier()\n    c = tl.dot(a, b, input_precision='ieee')\n"
    found = made(source, jitted=True)
    assert found["drop-barrier"] == {("tl.debug_barrier()", "pass")}
    assert found["dot-precision"] == {("tl.dot(a, b, input_precision='ieee')", "tl.dot(a, b, input_precision='tf32')")}


def test_a_sign_in_an_address_is_let_be() -> None:
    """It leaves the tensor, and any test finds it."""
    assert not any("x_s" in before and "x -" in after for before, after in IN_KERNEL["wrong-sign"])


def test_messages_docstrings_and_types_are_let_be() -> None:
    before = {b for made_ in (IN_KERNEL, ON_HOST) for pairs in made_.values() for b, _ in pairs}
    assert '"d < D"' not in before
    assert "tl.constexpr" not in before


def test_arithmetic_on_sizes_alone_is_let_be() -> None:
    """A block of another size is another way to be right."""
    assert not {"wrong-sign", "drop-factor", "narrow-sum"} & set(made(SIZES, jitted=False))


def test_an_edit_counts_characters_not_bytes() -> None:
    source = 'def kernel(x, D):\n    d = "µµ", tl.arange(0, 4) < D\n'
    assert made(source, jitted=True)["wrong-bound"] == {("tl.arange(0, 4) < D", "(tl.arange(0, 4) <= D)")}


def test_how_many_warps_run_a_kernel_is_let_be() -> None:
    found = made(
        "def launch(x, rows):\n    kernel[(rows * 4,)](x, num_warps=rows * 2, num_stages=rows * 3)\n", jitted=False
    )
    assert {before for before, _ in found["drop-factor"]} == {"rows * 4"}


class Extents(NamedTuple):
    """Sizes and nothing else."""

    S: int
    D: int


def test_a_named_tuple_of_sizes_is_sizes() -> None:
    source = "def bytes_of(n: Extents, element: int):\n    return n.S * element + 4\n"
    assert "drop-factor" in made(source, jitted=False)
    assert "drop-factor" not in made(source, jitted=False, module=__name__)


def test_a_branch_may_compare_with_a_constant_of_the_module() -> None:
    """backward_kv's add_block asks MODE == ATOMIC, where ATOMIC is a tl.constexpr of its module."""
    from kernels.sparse_mla import backward_kv

    source = "def add(x, MODE: tl.constexpr):\n    if MODE == ATOMIC:\n        tl.store(x, 1.0)\n"
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef)
    for module, known in (("m", False), (backward_kv.__name__, True)):
        found = edits(Scope.of(Function(module, "add", tree, True)), source)
        assert {edit.branch is not None for edit in found if edit.operator == "drop-store"} == {known}
