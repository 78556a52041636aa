"""Heap: glibc takes every setting, and what is no glibc is left alone."""

from __future__ import annotations

import ctypes
import platform
from types import SimpleNamespace

import pytest

from numcheck import heap


def test_glibc_takes_every_setting() -> None:
    assert heap.keep() is (platform.libc_ver()[0] == "glibc")


def test_a_setting_that_is_refused_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = SimpleNamespace(gnu_get_libc_version=None, mallopt=lambda parameter, value: int(parameter != -1))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: refusing)
    assert heap.keep() is False


def test_another_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(mallopt=lambda *_: pytest.fail("asked")))
    assert heap.keep() is False
