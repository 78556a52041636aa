"""The evidence law: what was meant to run did run, and a determinism request is honoured or refused, never dropped."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from numcheck.case import Case
from numcheck.difference import difference
from numcheck.execute import Run, execute
from numcheck.laws.arguments import message_of
from numcheck.laws.law import Judged, Law, covered
from numcheck.laws.measured import everywhere, found, hashes, saved_alone, unjudged
from numcheck.order import Order, orders
from numcheck.profile import Profile
from numcheck.sample import Sample, sample
from numcheck.spec import KernelSpec
from numcheck.verdict import OutputVerdict, Status, Verdict

NAME = "evidence"
# More programs than are enumerated, so that the orders are the reversed one and shuffles whatever a launch's size.
PROGRAMS = 8

# What torch launches on a device to fill or copy a tensor, as its profiler names it. A wrapper that launches nothing
# still has a result to make, of zeros for example; in the interpreter torch's operators are no launches either.
FILLS = ("*::FillFunctor<*", "Memset *", "Memcpy *")

Saved = Mapping[str, Tensor] | None


def judge(spec: KernelSpec, case: Case, profile: Profile) -> Verdict:
    """The Verdict of one Case: kernels seen, outputs returned, determinism requests answered."""
    blank = Verdict(spec.name, NAME, _claim(spec, case), {})
    nothing = unjudged(spec, case, profile, blank)
    if nothing is not None:
        return nothing
    drawn = sample(spec.oracle, case, device=profile.device)
    alone = saved_alone(spec, drawn)
    run = execute(spec, drawn, device=profile.device, saved=alone)
    if run.error:
        return everywhere(spec, case, blank, Status.ERROR, run.error, run)
    status, why = route(spec, case, run)
    outputs = dict.fromkeys(spec.judged_for(case), OutputVerdict(status, why))
    request = "not asked: no output of this Case is promised in any order"
    if status is Status.PASS:
        request, refused = _request(spec, drawn, profile, alone)
        outputs |= refused
    seen = Counter(launch.kernel for launch in run.evidence.launches)
    mattered = _mattered(spec, drawn, profile, run, alone) if status is Status.PASS else {}
    return Verdict(
        spec.name,
        NAME,
        blank.claim,
        found(run, outputs),
        hashes=hashes(run),
        evidence=run.evidence,
        figures={"launches": dict(seen), "operators": len(run.evidence.operators), "determinism": request} | mattered,
    )


def _claim(spec: KernelSpec, case: Case) -> str:
    if not spec.launches(case):
        return f"{spec.name} launches nothing for this Case"
    names = ", ".join(pattern_of(kernel) for kernel in spec.must_run) or "torch operators"
    return f"{spec.name} ran {names}"


def route(spec: KernelSpec, case: Case, run: Run) -> tuple[Status, str]:
    """Whether the kernels that the spec names were seen; missing evidence is an ERROR, whatever the outputs say."""
    seen = [launch.kernel for launch in run.evidence.launches]
    if not spec.launches(case):
        own = [kernel for kernel in seen if not any(fnmatch.fnmatchcase(kernel, fill) for fill in FILLS)]
        if own:
            named = ", ".join(dict.fromkeys(own))
            return Status.FAIL, f"the spec says that this Case launches nothing, but {named} ran"
        return Status.PASS, "launches nothing, as the spec says"
    told = ", ".join(dict.fromkeys(seen)) or "no kernel"
    missing = [p for p in map(pattern_of, spec.must_run) if not fnmatch.filter(seen, p)]
    if missing:
        return Status.ERROR, f"must run {', '.join(missing)}, but {told} was seen: another route computed the outputs"
    if not spec.must_run and not seen and not run.evidence.operators:
        return Status.ERROR, "nothing was seen running, neither kernels nor torch operators"
    return Status.PASS, ""


def _mattered(spec: KernelSpec, drawn: Sample, profile: Profile, run: Run, alone: Saved) -> dict[str, object]:
    """For each kernel that must run, whether any output changes once its launches do nothing.

    Only the interpreter can leave a launch out. A kernel that is launched on dummy data while the outputs come from
    elsewhere is seen running all the same; that nothing depends on it gives it away.
    """
    if run.evidence.backend != "interpreter" or not spec.launches(drawn.case):
        return {}
    mattered = {}
    for pattern in map(pattern_of, spec.must_run):
        without = execute(spec, drawn, device=profile.device, silent=pattern, saved=alone)
        mattered[pattern] = bool(without.error) or hashes(without) != hashes(run)
    return {"mattered": mattered} if mattered else {}


def pool(spec: KernelSpec, judged: Judged) -> Verdict | None:
    """Over all Cases: each kernel that must run is one on which some output of some Case depends.

    One Case proves nothing, as a kernel may rightly have nothing to do there.
    """
    rows = [v.figures["mattered"] for _, v in judged if "mattered" in v.figures]
    if not rows:
        return None
    cases = {p: sum(row[p] for row in rows) for p in map(pattern_of, spec.must_run)}
    idle = [pattern for pattern, count in cases.items() if not count]
    why = (
        f"{', '.join(idle)} ran, but in none of {len(rows)} Cases does any output change when its launches do nothing: "
        "another route computed the outputs"
    )
    found = OutputVerdict(Status.ERROR, why) if idle else OutputVerdict(Status.PASS)
    claim = f"{spec.name}: the outputs depend on each kernel that must run"
    return Verdict(
        spec.name, NAME, claim, dict.fromkeys(covered(spec, judged), found), figures={"mattered": cases}, pooled=True
    )


def pattern_of(kernel: Any) -> str:
    """The name pattern of an entry of `must_run`: a string is one, a Triton function is named by its source."""
    while not isinstance(kernel, str):
        # Autotuners and jitted functions both keep what they wrap as `fn`.
        kernel = kernel.__name__ if hasattr(kernel, "__name__") else kernel.fn
    return kernel


def _request(spec: KernelSpec, drawn: Sample, profile: Profile, alone: Saved) -> tuple[str, dict[str, OutputVerdict]]:
    """Ask for determinism where an output comes in any order: what the kernel answered, and what that makes of it."""
    case = drawn.case
    free = [name for name in spec.judged_for(case) if spec.contract.order_of(name, case) == "any"]
    if not free or not spec.launches(case):
        return "not asked: no output of this Case is promised in any order", {}
    with _requesting():
        asked = execute(spec, drawn, device=profile.device, saved=alone)
        if asked.error:
            return _refusal(spec, case, asked.error)
        tried = _orders(case, profile)
        others = [execute(spec, drawn, device=profile.device, order=order, saved=alone) for order in tried]
    dropped = {name: _dropped(name, asked, others) for name in free}
    found_out = {name: OutputVerdict(Status.FAIL, why, where) for name, (why, where) in dropped.items() if why}
    return "dropped" if found_out else f"honoured in {len(others)} orders", found_out


@contextmanager
def _requesting() -> Iterator[None]:
    """A determinism request by torch's flag, which `numcheck.determinism` reads for kernels; taken back at the end."""
    before, soft = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=soft)


def _refusal(spec: KernelSpec, case: Case, error: str) -> tuple[str, dict[str, OutputVerdict]]:
    """A refusal says that determinism is what it cannot give; any other exception is a crash."""
    if "determinis" in error.lower():
        return f"refused: {message_of(error)}", {}
    why = f"raised under a determinism request, without a word of determinism: {error}"
    return "crashed", dict.fromkeys(spec.judged_for(case), OutputVerdict(Status.ERROR, why))


def _orders(case: Case, profile: Profile) -> tuple[Order, ...]:
    return orders(case.key, PROGRAMS, profile.orders)


def _dropped(name: str, asked: Run, others: list[Run]) -> tuple[str, str]:
    for run in others:
        if run.error:
            return f"a determinism request was answered once and then raised: {run.error}", ""
        differs = difference(run.outputs.get(name), asked.outputs[name], f"order {run.order}")
        if differs:
            why = f"determinism was requested, neither honoured nor refused: {differs}"
            return why, differs.where(name)
    return "", ""


def cases(spec: KernelSpec) -> tuple[Case, ...]:
    """The problem's edges for which the spec says that it launches nothing."""
    edges = spec.oracle.space.edges
    return tuple(case for case in edges if spec.illegal(case) is None and not spec.launches(case))


EVIDENCE = Law(
    NAME,
    "the intended kernel ran; a determinism request is honoured or refused loudly, never dropped",
    judge=judge,
    pool=pool,
    cases=cases,
)
