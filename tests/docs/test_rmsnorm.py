"""The tutorial's second problem: its oracle starts UNCERTIFIED and ends certified."""

from __future__ import annotations

from pathlib import Path

from numcheck.certify import certify
from numcheck.load import find

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "rmsnorm.py"


def test_the_draft_is_uncertified_and_the_twin_certifies_it() -> None:
    draft = certify(find(str(EXAMPLE), "rmsnorm_draft").oracle)
    certified = certify(find(str(EXAMPLE), "rmsnorm").oracle)
    assert draft.status == "UNCERTIFIED"
    assert certified.status == "CERTIFIED"
    assert 0 < certified.worst <= certified.limit
