"""`numcheck init`: write a runnable spec file to start from."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path

from numcheck.errors import InvalidSpec
from numcheck.record import write_whole

TEMPLATE = "my_mhc.py"


def main(options: argparse.Namespace) -> int:
    """Write the file and say how to run it; never overwrites."""
    path = Path(options.path)
    if path.exists():
        raise InvalidSpec(f"{path} exists; name another file, or move it away first")
    if not path.parent.is_dir():
        raise InvalidSpec(f"no folder {path.parent} to write {path.name} in; make it first")
    write_whole(path, [template()])
    print(f"wrote {path}; judge it with:\n  pytest --numcheck-specs {path} -m bitwise")
    return 0


def template() -> str:
    """The spec file that `init` writes: the first example of the tutorial."""
    return files("numcheck.commands").joinpath("templates", TEMPLATE).read_text(encoding="utf-8")
