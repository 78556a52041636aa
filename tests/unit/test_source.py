"""Where a kernel's code stands: forward and vjp where they are defined, and each function that must run."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from kernels import ALL
from numcheck import KernelSpec
from numcheck.source import sources

ROOT = Path(__file__).resolve().parents[2]
SPECS = {spec.name: spec for spec in ALL}


def line(place: str) -> str:
    """The line that a place names, or the one after it, where a decorator stands first."""
    file, number = place.rsplit(":", 1)
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1 :]
    return next(text for text in lines if not text.startswith("@"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "mhc_post.triton",
            {
                "forward": "def forward(",
                "vjp": "def vjp(",
                "must run mhc_post_forward": "def mhc_post_forward(",
                "must run mhc_post_backward": "def mhc_post_backward(",
            },
        ),
        # No kernel of its own.
        ("mhc_post.eager", {"forward": "def forward(", "vjp": "def vjp("}),
    ],
)
def test_it_is_the_function_that_a_reviewer_opens(name: str, expected: dict[str, str]) -> None:
    found = sources(SPECS[name])
    assert {what: line(place)[: len(expected[what])] for what, place in found.items()} == expected


def test_a_partial_is_where_its_function_is() -> None:
    spec = SPECS["mhc_post.triton"]
    assert spec.vjp is not None
    assert sources(spec.but(vjp=functools.partial(spec.vjp))) == sources(spec)


def test_installed_code_and_code_without_a_file_have_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SPECS["mhc_post.eager"]
    typed: dict[str, object] = {}
    exec("def forward(**inputs): ...", typed)
    assert sources(spec.but(forward=typed["forward"], vjp=None)) == {}
    installed = functools.wraps(pytest.fixture)(lambda **inputs: {})
    assert sources(spec.but(forward=installed, vjp=None)) == {}


def test_a_function_that_wraps_itself_ends(tmp_path: Path) -> None:
    def forward(**inputs: object) -> dict[str, object]:
        return {}

    forward.__wrapped__ = forward  # type: ignore[attr-defined]
    spec: KernelSpec = SPECS["mhc_post.eager"].but(forward=forward, vjp=None)
    assert sources(spec) == {}
