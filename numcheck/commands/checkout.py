"""A temporary checkout of another revision: removed after use, or by the next run where this one was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from numcheck.errors import InvalidSpec
from numcheck.harmless import one_line

PREFIX, BASE, LOCK = "numcheck-at-", "base", "lock"
# What a lock of ours holds: a file of that name may be anybody's.
OURS = b"numcheck run --at\n"


@contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder, locked as long as this process lives: a lock that is free says that its owner was killed."""
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name:
        file = os.open(Path(name) / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.write(file, OURS)
            yield Path(name)
        finally:
            os.close(file)


@contextmanager
def checkout(rev: str, inside: Path) -> Iterator[Path]:
    """The folder that corresponds to the current one in a checkout of `rev` under `inside`, removed afterwards.

    Raises InvalidSpec outside a repository, for a revision that is none, and where git cannot check it out.
    """
    top = _git("rev-parse", "--show-toplevel", why="--at needs a git repository")
    commit = _git("rev-parse", "--verify", f"{rev}^{{commit}}", why=f"--at {rev}: no such revision")
    _tidy()
    target = inside / BASE
    try:
        _git("worktree", "add", "--detach", str(target), commit, why=f"--at {rev} could not be checked out")
        yield target / Path.cwd().resolve().relative_to(Path(top).resolve())
    finally:
        _remove(target)


def _tidy() -> None:
    """Remove the checkouts that runs which were killed have left in this repository."""
    listed = subprocess.run(["git", "worktree", "list", "--porcelain"], capture_output=True, text=True).stdout
    for line in listed.splitlines():
        target = Path(line.removeprefix("worktree "))
        ours = line.startswith("worktree ") and target.name == BASE and target.parent.name.startswith(PREFIX)
        if ours and _abandoned(target.parent):
            print(one_line(f"removing {target.parent}, which a run that was killed has left"))
            # The folder first: git refuses to remove a checkout that is half made, and then forgets what is gone.
            shutil.rmtree(target.parent, ignore_errors=True)
            _remove(target)


def _abandoned(left: Path) -> bool:
    """Whether the folder has an owner's lock that nobody holds, or is gone and known to git alone."""
    try:
        file = os.open(left / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return not left.exists()
    except OSError:
        return False  # another user's
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.read(file, len(OURS) + 1) == OURS
    except OSError:
        return False
    finally:
        os.close(file)


def _remove(target: Path) -> None:
    # Twice --force: git locks what it was still checking out. It also forgets a folder that is gone; `prune` would
    # forget the user's own worktrees too, where their disk is not mounted.
    subprocess.run(["git", "worktree", "remove", "--force", "--force", str(target)], capture_output=True)


def _git(*arguments: str, why: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise InvalidSpec(f"{why}: {done.stderr.strip() or 'git failed'}")
    return done.stdout.strip()
