"""Which room may import which: the rules of the architecture, read from the source of every file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Stages from left to right; a file may import its own stage and those to its left.
STAGES: tuple[tuple[str, ...], ...] = (
    ("errors", "clock", "heap", "cycles", "patience"),
    ("case", "contract", "oracle", "capability", "spec", "profile", "order", "evidence", "gate", "verdict"),
    ("ulp", "reading", "determinism", "load", "chance"),
    ("oracles", "sample", "far", "difference", "unspecified"),
    ("interpreter", "flags", "poison", "guard", "snapshot", "watch", "execute", "adapter"),
    ("tape", "certify", "advice", "vacuity", "fresh", "repeat", "repeat_autograd", "repeat_cuda"),
    ("distinct", "blocks", "figures", "residual", "judge", "stream", "pool", "fingerprint", "promise"),
    ("laws",),
    (
        "harmless",
        "schema",
        "coherent",
        "record",
        "environment",
        "finding",
        "failure",
        "clean",
        "tally",
        "alarms",
        "declared",
        "source",
    ),
    ("target", "selection", "baseline", "compare"),
    ("covering", "draw", "device", "regressions", "report"),
    ("explore", "shrink", "helpers"),
    ("mutate", "reasons", "usual", "trials", "suspect", "score", "crew"),
    ("bench",),
    ("plugin", "cli", "commands", "__main__"),
)
TORCH_FREE = (
    "case",
    "contract",
    "capability",
    "errors",
    "gate",
    "verdict",
    "record",
    "report",
    "baseline",
    "compare",
    "cli",
    "plugin",
)
# Imports that must not happen when the file itself is imported, only inside its functions.
HEAVY = ("torch", "triton", "hypothesis", "mpmath", "rich", "jinja2", "numpy")
HYPOTHESIS = ("draw", "explore", "shrink", "plugin")


def files(*folders: str) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def room(path: Path) -> str:
    """The room of a file in numcheck/: its module, or the package that it lies in."""
    return path.relative_to(ROOT / "numcheck").parts[0].removesuffix(".py")


def imported(path: Path, *, top_only: bool = False) -> set[str]:
    """Dotted names that a file imports; `top_only`: outside functions and TYPE_CHECKING blocks."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    nodes = _top(tree) if top_only else list(ast.walk(tree))
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return names


def _top(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        found += [child, *_top(child)]
    return found


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def stage(name: str) -> int:
    for index, members in enumerate(STAGES):
        if name in members:
            return index
    raise AssertionError(f"numcheck/{name} belongs to no stage; add it to STAGES, or put the code where it belongs")


@pytest.mark.parametrize("path", files("numcheck"), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_stage_imports_only_stages_to_its_left(path: Path) -> None:
    if path == ROOT / "numcheck" / "__init__.py":
        return
    mine = stage(room(path))
    for name in imported(path):
        parts = name.split(".")
        if parts[0] == "numcheck" and len(parts) > 1 and _is_module(parts[1]):
            assert stage(parts[1]) <= mine, f"{path.name} imports numcheck.{parts[1]}, which lies to its right"


def _is_module(name: str) -> bool:
    return (ROOT / "numcheck" / f"{name}.py").exists() or (ROOT / "numcheck" / name).is_dir()


@pytest.mark.parametrize("path", files("numcheck"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_judge_knows_no_implementation(path: Path) -> None:
    forbidden = {"kernels", "properties"}
    if room(path) != "plugin":
        forbidden.add("pytest")
    if room(path) not in HYPOTHESIS:
        forbidden.add("hypothesis")
    assert not roots(imported(path)) & forbidden


@pytest.mark.parametrize("path", [p for p in files("numcheck") if room(p) in TORCH_FREE], ids=lambda p: p.name)
def test_reading_and_rendering_records_needs_no_torch(path: Path) -> None:
    heavy = {"torch", "triton"} if room(path) == "report" else set(HEAVY)
    assert not roots(imported(path, top_only=True)) & heavy


@pytest.mark.parametrize("path", files("numcheck/oracles"), ids=lambda p: p.name)
def test_an_oracle_knows_no_implementation(path: Path) -> None:
    assert not roots(imported(path)) & {"triton", "cudnn", "kernels"}


@pytest.mark.parametrize("path", files("kernels"), ids=lambda p: str(p.relative_to(ROOT)))
def test_kernels_see_only_the_declare_stage_and_determinism(path: Path) -> None:
    allowed = {*STAGES[0], *STAGES[1], "oracles", "determinism"}
    for name in imported(path):
        parts = name.split(".")
        assert parts[0] not in {"pytest", "hypothesis", "properties"}
        if parts[0] == "numcheck" and len(parts) > 1 and _is_module(parts[1]):
            assert parts[1] in allowed, f"{path.name} imports numcheck.{parts[1]}"


@pytest.mark.parametrize(
    "path", files("numcheck", "kernels", "properties", "tests"), ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_environment_is_read_only_at_a_door_or_in_determinism(path: Path) -> None:
    allowed = {"plugin", "cli", "commands", "determinism", "device", "interpreter"}
    relative = path.relative_to(ROOT)
    if relative.parts[0] == "tests" or (relative.parts[0] == "numcheck" and room(path) in allowed):
        return
    text = path.read_text(encoding="utf-8")
    assert "os.environ" not in text
    assert "os.getenv" not in text
