"""The errors that numcheck raises, each with what to do about it in its message."""

from __future__ import annotations

# What code under judgement may raise and still be judged: sys.exit(0) in a kernel must end no run, least of all well.
# Ctrl-C is not among them, nor are the outcomes of a test runner, which its own time limits raise.
RAISED = (Exception, SystemExit, GeneratorExit)


class NumcheckError(Exception):
    """Base of every error that numcheck raises on purpose."""


class InvalidCase(NumcheckError, ValueError):
    """A Case (or its JSON) that no problem could mean."""


class InvalidSpec(NumcheckError, ValueError):
    """A KernelSpec, Contract or Oracle that contradicts itself."""


class NotDeterministic(NumcheckError, RuntimeError):
    """A determinism request that a kernel cannot honour."""


class MissingDependency(NumcheckError, ImportError):
    """An optional package that the asked-for work needs is not installed."""


class Refused(NumcheckError, NotImplementedError):
    """An operation whose result would not be trustworthy, refused rather than returned."""


class WorkspaceExceeded(NumcheckError, MemoryError):
    """A kernel whose workspace does not fit: raised before anything is allocated."""


class BadRecords(NumcheckError, ValueError):
    """A records file that is not numcheck's, or of a schema newer than this version."""


class RecordsLost(NumcheckError, OSError):
    """A row that could not be written, on a full disk say: what was judged from here on is in no records file."""
