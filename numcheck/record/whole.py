"""Whole files: a file is replaced in one step, so that an interrupted write leaves it as it was."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

# Of a file's mode: who may read and write it, which a new version leaves as it is.
PERMISSIONS = 0o777


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write `path` in one step: killed, or on a full disk, it is what it was. A device or pipe is written to.

    Raises OSError, which names `path`.
    """
    try:
        _whole(path, lines)
    except OSError as error:
        # A write that finds the disk full knows of no file.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None


def _whole(path: Path, lines: Iterable[str]) -> None:
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        return
    # What a link points to is replaced, not the link.
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            beside.chmod(target.stat().st_mode & PERMISSIONS)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
