"""`numcheck run`: judge kernels and write records and a report, by the same tests that pytest generates."""

from __future__ import annotations

import argparse
import os
import sys

from numcheck.commands.child import run
from numcheck.commands.common import DEFAULT_SPECS
from numcheck.errors import InvalidSpec

# pytest's own exit codes: 0 all passed, 1 some failed; the others are misuse or an interruption.
FAILED = 1


def main(options: argparse.Namespace) -> int:
    """Run the generated tests in a pytest of their own, so that the interpreter is chosen before any import."""
    from numcheck.laws import NAMES

    unknown = [law for law in options.laws if law not in NAMES]
    if unknown:
        raise InvalidSpec(f"no law {unknown[0]!r}; there is {', '.join(NAMES)}")
    if options.at:
        from numcheck.commands.at import judged_at

        return judged_at(options, command)
    return exit_code(run(command(options), env=variables(options)))


def exit_code(code: int) -> int:
    """pytest's exit code as numcheck's."""
    return code if code in (0, FAILED) else 2


def variables(options: argparse.Namespace) -> dict[str, str]:
    """The environment of the tests: workers share the cores, unless it says otherwise.

    Torch's threads spin while they wait for one another, so two workers of two threads on two cores take two to four
    times as long as two of one.
    """
    share = max(1, (os.cpu_count() or 1) // options.workers) if options.workers else 0
    return {**({"OMP_NUM_THREADS": str(share)} if share else {}), **os.environ}


def command(options: argparse.Namespace) -> list[str]:
    """The pytest command line that judges what was asked for."""
    line = [sys.executable, "-m", "pytest", "-p", "numcheck.plugin", "--rootdir", ".", "-c", "/dev/null"]
    # A run takes minutes: -v says after each test how far it is, and the header names the device and the versions.
    line += ["-p", "no:cacheprovider", "--import-mode=importlib", "-v"]
    for source in options.specs or DEFAULT_SPECS:
        line += ["--numcheck-specs", source]
    line += ["--numcheck-profile", options.profile, "--numcheck-device", options.device]
    for name in ("records", "report", "require", "baseline", "helpers"):
        value = getattr(options, name)
        if value:
            line += [f"--numcheck-{name}", str(value)]
    if options.laws:
        line += ["-m", " or ".join(options.laws)]
    if options.keyword:
        line += ["-k", options.keyword]
    if getattr(options, "seed", None) is not None:
        line += [f"--hypothesis-seed={options.seed}"]
    if options.workers:
        line += ["-n", str(options.workers)]
    return line
