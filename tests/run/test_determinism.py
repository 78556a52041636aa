"""Determinism requests: either knob asks, neither vetoes, and a kernel that cannot honour one says so."""

from __future__ import annotations

import pytest
import torch

from numcheck.determinism import NVTE, Flag, requested, require
from numcheck.errors import NotDeterministic


@pytest.fixture
def torch_asks():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_nobody_asks():
    assert not requested(NVTE, environ={})
    assert not requested(NVTE, environ={NVTE.name: "1"})
    assert not requested()
    require("stock", requested(NVTE, environ={}), remedy="unused")


@pytest.mark.parametrize(
    ("flag", "value", "asks"),
    [
        (NVTE, "0", True),
        (NVTE, "1", False),
        ("XTUNER_DETERMINISTIC", "true", True),
        ("XTUNER_DETERMINISTIC", "True", True),
        ("XTUNER_DETERMINISTIC", "0", False),
        (Flag("STRICT", asks=("yes",)), "1", False),
    ],
)
def test_a_framework_flag_asks_with_its_own_values(flag, value, asks):
    name = flag if isinstance(flag, str) else flag.name
    assert bool(requested(flag, environ={name: value})) is asks


@pytest.mark.usefixtures("torch_asks")
def test_either_knob_asks_and_neither_vetoes():
    assert requested(NVTE, environ={NVTE.name: "1"}).by == ("torch.use_deterministic_algorithms(True)",)
    assert requested(explicit=False)
    both = requested(NVTE, environ={NVTE.name: "0"}, explicit=True)
    assert both.by == ("deterministic=True", f"{NVTE.name}=0", "torch.use_deterministic_algorithms(True)")


def test_a_request_that_cannot_be_honoured_raises_with_the_remedy():
    asked = requested(NVTE, environ={NVTE.name: "0"})
    with pytest.raises(NotDeterministic, match=rf"stock gives other bits .*{NVTE.name}=0 asks.*use split_ordered"):
        require("stock", asked, remedy="use split_ordered")


def test_warn_only_warns_unless_somebody_else_asks_too():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.warns(UserWarning, match="use split_ordered"):
            require("stock", requested(), remedy="use split_ordered")
        with pytest.raises(NotDeterministic):
            require("stock", requested(NVTE, environ={NVTE.name: "0"}), remedy="use split_ordered")
    finally:
        torch.use_deterministic_algorithms(False)


def test_the_environment_is_read_at_each_call(monkeypatch):
    assert not requested(NVTE)
    monkeypatch.setenv(NVTE.name, "0")
    assert requested(NVTE)
