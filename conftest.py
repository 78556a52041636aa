"""Next to nothing: device and interpreter are chosen by the plugin, before any kernel is imported."""

from __future__ import annotations

pytest_plugins = ["pytester"]
