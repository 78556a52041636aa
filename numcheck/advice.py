"""Advice: the smallest change to a Case that would make a VACUOUS promise worth judging, tried before it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from numcheck.case import Case
from numcheck.errors import NumcheckError
from numcheck.evidence import ADDENDS
from numcheck.oracle import CaseSpace
from numcheck.sample import sample
from numcheck.spec import KernelSpec
from numcheck.vacuity import Proof, Terms, Vouched, prove_output, record, vouched

# How far above the Case's own size to look for one that the ownership map gives three writers.
SEARCHED = 4096
# Half of the one-address Cases of three spread addends are sensitive, so four seeds in a row miss one time in sixteen.
SEEDS = 4


def nearest(
    spec: KernelSpec, case: Case, lacking: Proof, terms_of: Callable[[Case], Terms] | None = None
) -> Case | None:
    """The Case with the fewest changed facts whose proof holds, or None where none of those tried does.

    terms_of: the addends of a neighbour, where they may be known from another output of `case`.
    """
    known = terms_of or neighbours(spec)
    for candidate in _candidates(spec, case, lacking):
        if candidate == case or spec.illegal(candidate) is not None:
            continue
        try:
            terms = known(candidate)
        except NumcheckError:
            # A problem may refuse sizes that its space does not rule out; then this neighbour is no advice.
            continue
        given = vouched(spec, candidate, lacking.output, None)
        if given is None and lacking.source == "measured":
            given = Vouched(max(ADDENDS, lacking.addends), "measured")
        if prove_output(spec, candidate, terms, lacking.output, given).proven:
            return candidate
    return None


def neighbours(spec: KernelSpec) -> Callable[[Case], Terms]:
    """The addends of Cases near one that lacks them; asked for again, they are not read again."""
    return cache(lambda candidate: record(spec, sample(spec.oracle, candidate)).terms)


def advice(spec: KernelSpec, case: Case, lacking: Proof, terms_of: Callable[[Case], Terms] | None = None) -> str:
    """The smallest change found that would make `lacking` hold, as one clause. terms_of: as in `nearest`."""
    found = nearest(spec, case, lacking, terms_of)
    if found is None:
        return f"no nearby Case is proven; where one program owns an address, claim {lacking.output}='single'"
    return "non-vacuous with " + ", ".join(_changes(case, found))


def _candidates(spec: KernelSpec, case: Case, lacking: Proof) -> Iterator[Case]:
    """Neighbours of `case`, the nearest first: sizes only where addends are lacking, then values."""
    for sized in _sized(spec, case.but(**{name: 1 for name, value in case.sizes if value == 0}), lacking):
        yield sized
        yield sized.but(regime="wide")
        most = sized.but(regime="wide", dtype="fp32")
        yield most
        # With few addresses even spread-out values may add exactly by chance.
        yield from (most.but(seed=case.seed + k) for k in range(1, SEEDS + 1))


def _sized(spec: KernelSpec, case: Case, lacking: Proof) -> Iterator[Case]:
    """`case` where it has addends enough, else with its summed size raised, or with each size raised by one step."""
    if lacking.terms == 0:
        return
    if lacking.addends >= ADDENDS:
        yield case
        return
    dims = spec.oracle.result(lacking.output).dims
    summed = [n for n, value in case.sizes if value == lacking.terms and (callable(dims) or n not in dims)]
    for name in summed or [n for n, _ in case.sizes]:
        wanted = _wanted(spec, case, lacking, name) if summed else case[name] + 1
        value = _at_least(spec.oracle.space, name, wanted)
        larger = case if value is None else case.but(**{name: value})
        if larger != case and spec.illegal(larger) is None:
            yield larger


def _wanted(spec: KernelSpec, case: Case, lacking: Proof, name: str) -> int:
    """The size that gives an address three addends: by the ownership map, the Contract's block, or a safe guess."""
    if spec.writers is not None:
        return _first(lambda value: _written(spec, case.but(**{name: value}), lacking.output), case[name])
    block = spec.contract.policy(case).sum_of(lacking.output).block
    # Unknown blocks that cut the terms in two have fewer than all of them each.
    return (ADDENDS - 1) * (block or max(1, lacking.terms + 1 - lacking.addends)) + 1


def _written(spec: KernelSpec, case: Case, output: str) -> bool:
    """Whether the ownership map gives an address of `output` three writers."""
    assert spec.writers is not None
    return spec.illegal(case) is None and spec.writers(case).get(output, 0) >= ADDENDS


def _first(holds: Callable[[int], bool], start: int) -> int:
    """A value above `start` for which `holds`: the first where it holds from there on; start + SEARCHED if none does.

    By doubled steps and then by halves, since a map may look at every row of a Case.
    """
    below, step = 0, 1
    while step < SEARCHED and not holds(start + step):
        below, step = step, 2 * step
    while step - below > 1:
        middle = (below + step) // 2
        below, step = (below, middle) if holds(start + middle) else (middle, step)
    return start + step


def _at_least(space: CaseSpace, name: str, wanted: int) -> int | None:
    """The smallest value of a size that the problem has and that is not below `wanted`."""
    if name in space.choices:
        return min((v for v in space.choices[name] if v >= wanted), default=None)
    return wanted if name in space.sizes and wanted <= space.sizes[name][1] else None


def _changes(case: Case, other: Case) -> Iterator[str]:
    before = {**dict(case.sizes), "dtype": case.dtype, "regime": case.regime, "seed": case.seed}
    after = {**dict(other.sizes), "dtype": other.dtype, "regime": other.regime, "seed": other.seed}
    return (f"{name}={after[name]} (now {before[name]})" for name in before if after[name] != before[name])
