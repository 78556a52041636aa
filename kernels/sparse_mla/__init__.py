"""Sparse MLA: the implementations under test, each with its contract. See the README beside this file."""

from __future__ import annotations
