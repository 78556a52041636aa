"""Mutants are made from the author's source alone: they run, wherever their parts lie, and nothing else ever does."""

from __future__ import annotations

import linecache
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from numcheck import Case, KernelSpec, interpreter
from numcheck.execute import execute
from numcheck.load import find
from numcheck.mutate import Mutant, built, functions, mutants
from numcheck.mutate.copies import PREFIX
from numcheck.sample import sample
from numcheck.suspect import suspects

interpreter.enable()

from kernels import mhc_post  # noqa: E402
from kernels.mhc_post import blocks, fused, split, tuned  # noqa: E402
from tests.meta.row_sum import ATOMIC, ORDERED, add_slots, row_sum  # noqa: E402

RMSNORM = Path(__file__).resolve().parents[2] / "docs" / "examples" / "rmsnorm.py"
CASE = Case.of(S=2, D=33)
MHC = {spec.name: spec for spec in mhc_post.SPECS}


def only(spec: KernelSpec, function: str, operator: str, before: str = "") -> Mutant:
    """The first mutant of a function by an operator."""
    wanted = (m for m in mutants(spec) if m.function == function and m.operator == operator and before in m.before)
    return next(wanted)


def outputs(spec: KernelSpec, case: Case) -> dict[str, torch.Tensor]:
    run = execute(spec, sample(spec.oracle, case))
    assert not run.error
    return dict(run.outputs)


def test_a_mutated_kernel_is_seen_running_with_the_mistake_in_it() -> None:
    mutant = only(ORDERED, "add_slots", "wrong-sign")
    honest = outputs(ORDERED, CASE)["out"]
    with built(ORDERED, mutant) as broken:
        run = execute(broken, sample(row_sum, CASE))
        assert [launch.kernel for launch in run.evidence.launches] == ["store_slots", "add_slots"]
        assert not torch.equal(run.outputs["out"], honest)
        assert broken.must_run[1] is not add_slots


def test_the_original_is_as_it_was_and_nothing_is_left_behind() -> None:
    before, lines = dict(sys.modules), dict(linecache.cache)
    kept = {name: dict(vars(sys.modules[name])) for name in ("kernels.mhc_post.fused", "kernels.mhc_post.split")}
    spec = MHC["mhc_post.triton_split_ordered"]
    honest = outputs(spec, Case.of(S=1, H=2, D=33))
    with built(spec, only(spec, "mhc_post_sum_slots", "wrong-sign")) as broken:
        assert any(name.startswith(PREFIX) for name in sys.modules)
        outputs(broken, Case.of(S=1, H=2, D=33))
    assert {n for n in sys.modules if n.startswith(PREFIX)} == set()
    assert {n for n in linecache.cache if PREFIX in n} == set()
    assert all(sys.modules[name] is module for name, module in before.items())
    assert all(linecache.cache.get(name) == entry for name, entry in lines.items() if PREFIX in name)
    for name, members in kept.items():
        assert all(vars(sys.modules[name])[key] is value for key, value in members.items() if key != "__builtins__")
    assert spec.vjp is split.vjp_ordered
    assert all(torch.equal(again, honest[name]) for name, again in outputs(spec, Case.of(S=1, H=2, D=33)).items())


@pytest.mark.parametrize(
    ("name", "function", "operator"),
    [
        ("mhc_post.triton", "mhc_post_backward", "wrong-sign"),
        ("mhc_post.triton_tuned[0]", "mhc_post_backward", "wrong-sign"),
        ("mhc_post.triton_split_atomic", "mhc_post_forward", "wrong-sign"),
        ("mhc_post.triton_split_ordered", "blocks_of", "drop-last-tile"),
        ("mhc_post.eager_bf16_rounding", "feature_sum", "sum-to-mean"),
    ],
)
def test_a_mistake_reaches_the_modules_that_import_it(name: str, function: str, operator: str) -> None:
    """fused.py is imported by tuned.py and split.py, blocks.py by all of them, eager.py by eager_bf16_rounding.py."""
    spec, case = MHC[name], Case.of(S=1, H=2, D=33)
    sampled = sample(spec.oracle, case)
    honest = execute(spec, sampled)
    with built(spec, only(spec, function, operator)) as broken:
        run = execute(broken, sampled)
    assert any(not torch.equal(run.outputs[name], t) for name, t in honest.outputs.items())


def test_an_autotuned_kernel_stays_pinned_to_its_config() -> None:
    spec = MHC["mhc_post.triton_tuned[1]"]
    with built(spec, only(spec, "mhc_post_backward", "wrong-sign")) as broken:
        ((kernel, index),) = broken.pins
        assert index == 1
        assert kernel is not tuned.backward
        assert kernel.configs[1].kwargs == tuned.backward.configs[1].kwargs


def test_oracle_contract_and_probe_stay_the_honest_ones() -> None:
    spec = MHC["mhc_post.triton"]
    with built(spec, only(spec, "block_of", "drop-last-tile")) as broken:
        assert broken.contract is spec.contract
        assert broken.oracle is spec.oracle
        assert broken.capability is spec.capability
    assert blocks.block_of(33) == 32


def test_a_strangers_single_file() -> None:
    spec = find(str(RMSNORM), "rmsnorm")
    assert functions(spec) == (
        "rmsnorm._rmsnorm_fwd",
        "rmsnorm._rmsnorm_bwd",
        "rmsnorm.forward",
        "rmsnorm.vjp",
        "rmsnorm._check",
    )
    case = Case.of(S=2, D=5, dtype="bf16", regime="zeros")
    honest = outputs(spec, case)
    with built(spec, only(spec, "_rmsnorm_fwd", "wrong-eps")) as broken:
        assert not torch.equal(outputs(broken, case)["rstd"], honest["rstd"])


PACKAGE = {
    "__init__.py": "from strangers.host import forward\n",
    "base.py": """
        import torch
        SCALE = 2.0
        class Double(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x + x
            @staticmethod
            def backward(ctx, g):
                return g
        def twice(x):
            return x + x
        def unused(x):
            return x - 1
    """,
    "host.py": """
        import functools
        import strangers.base
        import strangers.base as renamed
        from . import base
        from .base import Double
        from strangers import base as absolute
        def dotted(x): return {"out": strangers.base.twice(x)}
        def as_name(x): return {"out": renamed.twice(x)}
        def relative(x): return {"out": base.twice(x)}
        def forward(x): return {"out": absolute.twice(x)}
        def inside(x):
            from strangers.base import twice
            return {"out": twice(x)}
        def apply(x): return {"out": Double.apply(x)}
        def made(twice):
            def forward(x): return {"out": twice(x)}
            return forward
        closure = [made(base.twice)][0]
        def within(module):
            def forward(x): return {"out": module.twice(x)}
            return forward
        enclosed = within(base)
        holder = {"f": made(base.twice), "g": lambda x: {"out": base.twice(x)}}
        def given(x, *, function): return {"out": function(x)}
        partial = functools.partial(given, function=base.twice)
        class Callable:
            def __init__(self, function): self.function = function
            def __call__(self, x): return {"out": self.function(x)}
        instance = Callable(base.twice)
        method = instance.__call__
    """,
}


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A package of a stranger, on the path."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "strangers").mkdir()
    for name, text in PACKAGE.items():
        (folder / "strangers" / name).write_text(textwrap.dedent(text))
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))
    for name in [n for n in sys.modules if n.partition(".")[0] == "strangers"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "name",
    [
        "dotted",
        "as_name",
        "relative",
        "forward",
        "inside",
        "apply",
        "closure",
        "enclosed",
        "partial",
        "instance",
        "method",
        "f",
        "g",
    ],
)
def test_every_way_to_reach_a_function_reaches_its_mutant(strangers: None, name: str) -> None:
    from strangers import host  # type: ignore[import-not-found]

    forward = host.holder[name] if name in host.holder else getattr(host, name)
    spec = KernelSpec("stranger", row_sum, forward=forward)
    where = "Double.forward" if name == "apply" else "twice"
    x = torch.tensor([1.0, 2.0])
    with built(spec, only(spec, where, "wrong-sign")) as broken:
        assert broken.forward is not None
        assert broken.forward(x)["out"].tolist() == [0.0, 0.0]
    assert forward(x)["out"].tolist() == [2.0, 4.0]


def test_a_function_that_no_kernel_uses_has_no_mutant(strangers: None) -> None:
    from strangers import host

    assert "base.unused" not in functions(KernelSpec("stranger", row_sum, forward=host.forward))


def test_ids_outlive_edits_elsewhere_in_the_file(tmp_path: Path) -> None:
    """Operator, function and the text of the line make an id; its number does not."""
    text = RMSNORM.read_text(encoding="utf-8")
    moved = tmp_path / "rmsnorm.py"
    moved.write_text(text.replace("EPS = 2.0**-20", "# A remark.\n\nEPS = 2.0**-20"), encoding="utf-8")
    here, there = (mutants(find(str(path), "rmsnorm")) for path in (RMSNORM, moved))
    assert [m.id for m in here] == [m.id for m in there]
    assert here[0].line + 2 == there[0].line
    assert len({m.id for m in here}) == len(here)


def test_a_kernel_that_left_its_reasons_behind_says_so(tmp_path: Path) -> None:
    copied = tmp_path / "rmsnorm.py"
    copied.write_bytes(RMSNORM.read_bytes())
    assert not suspects([find(str(RMSNORM), "rmsnorm")])[1]
    (note,) = suspects([find(str(copied), "rmsnorm")])[1]
    assert note.startswith(f"no equivalent.toml lies beside the source in {tmp_path}")


def test_mutants_are_the_same_on_every_run() -> None:
    assert mutants(ATOMIC) == mutants(ATOMIC)


def test_nothing_is_mutated_of_numcheck_or_torch() -> None:
    found = {m.module.partition(".")[0] for m in mutants(MHC["mhc_post.triton_split_atomic"])}
    assert found == {"kernels"}
    assert fused.__name__ in {m.module for m in mutants(MHC["mhc_post.triton_split_atomic"])}
