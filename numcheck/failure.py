"""How a failure reads: what was claimed, got and expected, each failed gate and why, the Cases, one line to replay."""

from __future__ import annotations

from numcheck.case import Case
from numcheck.verdict import Status, Verdict


def describe(verdict: Verdict, *, shrunk: Case | None = None, first: Case | None = None, replay: str = "") -> str:
    """The text of a verdict, worst output first; `shrunk` and `first` are the Cases to show side by side."""
    lines = [f"{verdict.status.name}: {verdict.spec} under {verdict.law}", f"  claimed: {verdict.claim}"]
    for name, output in sorted(verdict.outputs.items(), key=lambda item: -item[1].status):
        lines.append(f"  {name}: {output.status.name}{': ' + output.why if output.why else ''}")
        if output.where and output.status >= Status.FAIL:
            lines.append(f"    {output.where}")
        lines += [
            f"    {gate.kind} {gate.value:.6g}, allowed up to {gate.limit:.6g}: {gate.reason}"
            for gate in verdict.gates
            if gate.output == name and not gate.held
        ]
    if shrunk is not None:
        lines.append(f"  shrunk Case: {shrunk.line()}")
    if first is not None and first != shrunk:
        lines.append(f"  first failing Case: {first.line()}")
    if replay:
        lines.append(f"  replay: {replay}")
    return "\n".join(lines)
