"""The `numcheck` command. This file only parses; each command lives in `numcheck.commands` and loads when asked for.

Exit codes: 0 held, 1 did not hold, 2 used wrongly.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numcheck.errors import NumcheckError

# 1, "did not hold", is for the commands to say.
HELD, MISUSED = 0, 2
# As a shell says it of what Ctrl-C ended.
INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """A subcommand: what it does in a line, an example, and its arguments."""

    name: str
    doc: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]


def _count(text: str) -> int:
    """A number of things to do, none included."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text}, but it must be at least 0")
    return number


def _some(text: str) -> int:
    """A number of things to do, at least one."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}, but it must be at least 1")
    return number


def _filled(text: str) -> str:
    """A value that asks for a check: an empty one, as an unset shell variable gives, would leave the check out."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; give a value, or leave the option out (is a variable unset?)")
    return text


def _specs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--specs",
        action="append",
        metavar="MODULE[:NAME]|PATH",
        help="where the kernels are; may be given again (default: kernels, this repository's own)",
    )


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: auto")


def _profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--profile", choices=("quick", "ci", "deep"), default="quick", help="default: quick")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON for a program to read")


def _doctor(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _device(parser)
    _json(parser)


def _list(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _device(parser)
    _json(parser)


def _run(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _device(parser)
    _profile(parser)
    parser.add_argument("laws", nargs="*", metavar="LAW", help="laws to judge (default: all)")
    parser.add_argument("-k", dest="keyword", metavar="TEXT", help="only kernels whose name matches, as pytest -k")
    parser.add_argument("-n", dest="workers", type=_count, default=0, metavar="N", help="workers (pytest-xdist)")
    parser.add_argument("--helpers", type=_count, default=0, metavar="N", help="processes for the Cases of a test")
    parser.add_argument("--records", metavar="FILE", help="write the records here (JSONL)")
    parser.add_argument("--report", metavar="FILE", help="write the report here (.html or .md)")
    parser.add_argument("--require", metavar="TIER", help="cpu, gpu, sm90 or sm100: what cannot run there is an error")
    parser.add_argument("--baseline", type=_filled, metavar="FILE", help="compare with this baseline, or these records")
    parser.add_argument(
        "--at",
        type=_filled,
        metavar="REV",
        help="judge the kernels of this git revision too: what fails there must hold here",
    )


def _one_case(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _device(parser)
    _profile(parser)
    _json(parser)
    parser.add_argument("spec", metavar="SPEC", help="the kernel's name, as `numcheck list` prints it")
    parser.add_argument("law", metavar="LAW", help="the law's name")
    parser.add_argument("case", metavar="CASE", help="the Case, as one line of JSON")


def _certify(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _json(parser)
    parser.add_argument("--records", metavar="FILE", help="append the certificates to this records file")


def _faults(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _device(parser)
    _profile(parser)
    _json(parser)
    parser.add_argument("-k", dest="keyword", metavar="TEXT", help="only faults whose kernel or id has TEXT")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--declared", dest="only", action="store_const", const="declared", help="declared faults alone")
    which.add_argument("--mutants", dest="only", action="store_const", const="mutants", help="source mutants alone")
    parser.add_argument("--workers", type=_count, default=0, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--all-laws", action="store_true", help="ask every law of every fault, also past the first kill"
    )
    parser.add_argument(
        "--largest", type=_some, metavar="N", help="most elements of a tensor in a mutant's Case (default: 8192)"
    )
    parser.add_argument("--list", action="store_true", help="print the faults and run none")
    parser.add_argument("--records", metavar="FILE", help="append the scores to this records file (JSONL)")
    parser.add_argument("--report", metavar="FILE", help="write the report here (.html or .md)")
    # What a worker of this command is started with.
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)


def _alarms(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _json(parser)
    parser.add_argument("--cases", type=_count, default=10_000, metavar="N", help="clean small cases (default: 10000)")
    parser.add_argument("--large", type=_count, default=500, metavar="N", help="clean large cases (default: 500)")
    parser.add_argument("--seed", type=_count, default=0, help="first seed (default: 0)")
    parser.add_argument("--workers", type=_some, default=1, metavar="N", help="processes (default: 1)")


def _render(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", metavar="RECORDS", help="records files (JSONL)")
    parser.add_argument("-o", "--output", default="report.html", metavar="FILE", help=".html or .md")
    parser.add_argument("--brief", action="store_true", help="of .md: only what fits a comment on a pull request")
    parser.add_argument("--github", action="store_true", help="also print annotations for GitHub Actions")
    parser.add_argument("--baseline", type=_filled, metavar="FILE", help="compare with this baseline, or these records")


def _merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", metavar="RECORDS", help="records files, or a folder of them")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="the merged file")


def _compare(parser: argparse.ArgumentParser) -> None:
    _json(parser)
    parser.add_argument("base", metavar="BASE", help="records, or a baseline that `numcheck accept` wrote")
    parser.add_argument("head", metavar="HEAD", help="records, or a baseline")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write the head's report with the comparison (.html, .md)"
    )


def _accept(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("records", nargs="+", metavar="RECORDS", help="records files of the run to accept")
    parser.add_argument(
        "--reason", required=True, metavar="TEXT", help="why these results are the ones to compare with"
    )
    parser.add_argument(
        "--baseline",
        type=_filled,
        default="numcheck-baseline.json",
        metavar="FILE",
        help="default: numcheck-baseline.json",
    )


def _bench(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    _device(parser)
    _profile(parser)
    _json(parser)
    parser.add_argument("-k", dest="keyword", metavar="TEXT", default="", help="only kernels whose name has TEXT")
    parser.add_argument("--cases", type=_some, default=8, metavar="N", help="grid Cases, and drawn ones (default: 8)")
    parser.add_argument("--ab", nargs=2, metavar="SPEC", help="time two kernels against each other, interleaved")
    parser.add_argument("--case", metavar="CASE", help="the Case that --ab times")
    parser.add_argument("--records", metavar="FILE", help="append what --ab found to this records file")
    parser.add_argument("--pairs", type=_some, default=30, metavar="N", help="interleaved pairs of --ab (default: 30)")


def _init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", nargs="?", default="my_mhc.py", metavar="FILE", help="default: my_mhc.py")


COMMANDS = (
    Command("doctor", "what can run here, what cannot, and why", "numcheck doctor --json", _doctor),
    Command("list", "kernels, their promises, and the laws that judge them", "numcheck list --specs my_mhc.py", _list),
    Command("run", "judge kernels and write records and a report", "numcheck run --specs my_mhc.py bitwise", _run),
    Command(
        "replay",
        "judge one Case again; exit 1 where it does not hold",
        """numcheck replay mhc_post.triton bitwise '{"sizes":{"S":1,"H":1,"D":33}}'""",
        _one_case,
    ),
    Command(
        "shrink",
        "find the smallest Case that fails like this one",
        """numcheck shrink --specs mine.py mine bitwise '{"sizes":{"S":4,"H":4,"D":257}}'""",
        _one_case,
    ),
    Command("certify", "oracles against their mpmath twins at 50 digits", "numcheck certify", _certify),
    Command(
        "faults", "which law catches which broken kernel, and what survives", "numcheck faults --declared", _faults
    ),
    Command(
        "alarms", "judge clean cases and count false alarms by gate", "numcheck alarms --cases 50 --large 0", _alarms
    ),
    Command(
        "bench",
        "cases a second by law, or two kernels interleaved",
        "numcheck bench -k triton_split_ordered --cases 1",
        _bench,
    ),
    Command("render", "records to an HTML or Markdown report", "numcheck render reports/numcheck.jsonl", _render),
    Command(
        "merge",
        "one records file from many",
        "numcheck merge reports/gpu.jsonl reports/cpu.jsonl -o reports/both.jsonl",
        _merge,
    ),
    Command(
        "compare",
        "two runs side by side: did bits change, did accuracy or coverage fall, what was not run",
        "numcheck compare numcheck-baseline.json reports/numcheck.jsonl -o reports/numcheck.html",
        _compare,
    ),
    Command(
        "accept",
        "make a run the baseline that later ones are compared with",
        'numcheck accept reports/numcheck.jsonl --reason "FP32 coefficients, as the pull request says"',
        _accept,
    ),
    Command("init", "write a runnable spec file to start from", "numcheck init my_mhc.py", _init),
)


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(prog="numcheck", description="Judge compute kernels against FP64 oracles.")
    top.add_argument("--version", action="store_true", help="print the version")
    sub = top.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        one = sub.add_parser(
            command.name,
            help=command.doc,
            description=command.doc[0].upper() + command.doc[1:] + ".",
            epilog=f"example:\n  {command.example}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(one)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and prints misuse in one line, with what to do."""
    options = parser().parse_args(argv)
    if options.version:
        from numcheck import __version__

        print(__version__)
        return HELD
    if options.command is None:
        parser().print_help()
        return MISUSED
    module = importlib.import_module(f"numcheck.commands.{options.command}")
    try:
        code = int(module.main(options))
        # Now, while it can still be said: at its end Python would only grumble.
        sys.stdout.flush()
        return code
    except NumcheckError as error:
        from numcheck.harmless import one_line

        # Of several lines each is kept, and none may read as a command.
        said = f"numcheck {options.command}: {error}".splitlines()
        print("\n".join(map(one_line, said)), file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        print(f"numcheck {options.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read this has left before all was said, the verdict too: that is not "held".
        _silence()
        return MISUSED
    except OSError as error:
        where = error.filename
        if where is None:
            # Without a file it is a fault, whose traceback is wanted, unless what we print to is full.
            if error.errno != errno.ENOSPC:
                raise
            _silence()
            where = "the output"
        print(f"numcheck {options.command}: {where}: {error.strerror or error}", file=sys.stderr)
        return MISUSED


def _silence() -> None:
    """Let nothing more be written to an output that takes nothing: what is buffered would be an error at the end."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
