"""Written reasons: what a file may say, and what it is refused for."""

from __future__ import annotations

from pathlib import Path

import pytest

from numcheck.errors import InvalidSpec
from numcheck.reasons import NAME, reasons

GOOD = """
[[mutant]]
ids = ["a:b:1", "a:b:2"]
claim = "equal"
why = \"\"\"Two lines
that are one sentence.\"\"\"

[[mutant]]
id = "a:c:3"
claim = "open"
why = "It would take a larger Case."
"""


def read(folder: Path, text: str) -> dict[str, str]:
    (folder / NAME).write_text(text)
    return {reason.id: reason.why for reason in reasons([str(folder / "fused.py"), str(folder / "split.py")])}


def test_one_reason_for_one_mutant_or_for_several(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD)
    assert set(found) == {"a:b:1", "a:b:2", "a:c:3"}
    assert found["a:b:1"] == found["a:b:2"] == "Two lines that are one sentence."


def test_without_a_file_there_are_none(tmp_path: Path) -> None:
    assert reasons([str(tmp_path / "fused.py")]) == ()


def test_a_reason_may_speak_of_some_kernels_alone(tmp_path: Path) -> None:
    text = '[[mutant]]\nid = "a"\nspecs = ["x", "y[0]"]\nclaim = "equal"\nwhy = "w"\n'
    read(tmp_path, text + text.replace('"x", "y[0]"', '"z"'))
    first, second = reasons([str(tmp_path / "fused.py")])
    assert [spec for spec in ("x", "y[0]", "z") if first.concerns("a", spec)] == ["x", "y[0]"]
    assert second.concerns("a", "z")
    assert not second.concerns("b", "z")
    with pytest.raises(InvalidSpec, match="twice"):
        read(tmp_path, text + text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[mutant]\n", "equivalent.toml"),
        ("[[mutants]]\n", "and nothing else"),
        ('[[mutant]]\nclaim = "equal"\nwhy = "x"\n', "give id"),
        ('[[mutant]]\nid = "a"\nclaim = "sure"\nwhy = "x"\n', "'sure'; give one of equal, allowed, device, open"),
        ('[[mutant]]\nid = "a"\nclaim = "equal"\nwhy = " "\n', "give the reason as a sentence"),
        (GOOD + '[[mutant]]\nid = "a:b:1"\nclaim = "open"\nwhy = "x"\n', "a:b:1 is there twice"),
    ],
)
def test_what_is_no_reason_is_refused_with_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        read(tmp_path, text)
