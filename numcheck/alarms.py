"""Alarms: judge clean Cases and count what the accuracy gates accuse, by gate, output and size.

A clean Case is one of a spec that is right, so every alarm is false. Ceiling, match, exact and the bitwise law must
never alarm; band and bias may as often as Student's t foretells. Every Case is judged for accuracy, and of the small
ones a share by the bitwise law too, which runs the kernel many times over.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from numcheck.capability import Available
from numcheck.case import Case
from numcheck.chance import student_tail
from numcheck.clean import SMALL_SIZE, clean_cases
from numcheck.errors import InvalidSpec
from numcheck.judge import FEWEST, Z_LIMIT
from numcheck.laws.accuracy import ACCURACY
from numcheck.laws.bitwise import BITWISE
from numcheck.pool import pooled_ratio
from numcheck.profile import QUICK, Profile
from numcheck.tally import Alarm, Alarms, Beyond, Row, decade_label, decade_of
from numcheck.verdict import Status

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numcheck.spec import KernelSpec
    from numcheck.verdict import Verdict

# Small Cases, by their seed, of which one is judged by the bitwise law too.
BITWISE_SHARE = 8

Judged = tuple[str, Case, tuple["Verdict", ...]]


def alarms(
    specs: Sequence[KernelSpec],
    *,
    cases: int = 10_000,
    large: int = 500,
    seed: int = 0,
    workers: int = 1,
    profile: Profile = QUICK,
    tick: Callable[[int], None] | None = None,
) -> Alarms:
    """Judge that many clean Cases of the specs that can run here, shared out by cost; `tick(1)` after each.

    Raises InvalidSpec where none of the specs can run.
    """
    start = time.perf_counter()
    runnable = [s for s in specs if isinstance(s.available(profile.device), Available)]
    if not runnable:
        raise InvalidSpec("no spec can run here, so there is nothing to count; see `numcheck doctor`")
    work = [*clean_cases(runnable, cases, seed, large=False), *clean_cases(runnable, large, seed, large=True)]
    rows: list[Judged] = []
    for judged in _all_judged(runnable, work, profile, workers):
        rows.append(judged)
        if tick is not None:
            tick(1)
    return _count(rows, profile, seed, len(work) - large, large, time.perf_counter() - start)


def _all_judged(
    specs: Sequence[KernelSpec], work: Sequence[tuple[int, Case]], profile: Profile, workers: int
) -> Iterator[Judged]:
    if workers <= 1:
        yield from _judged(specs, work, profile)
        return
    # fork: specs hold closures and Triton functions, which do not pickle.
    context = multiprocessing.get_context("fork")
    running = {}
    for worker in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(specs, work[worker::workers], profile, sender))
        process.start()
        sender.close()
        running[receiver] = process
    # Whoever has something to say is heard: a worker whose pipe is full would wait for its turn and judge nothing.
    while running:
        ready = wait(list(running))
        for receiver in [r for r in running if r in ready]:
            try:
                yield receiver.recv()
            except EOFError:
                process = running.pop(receiver)
                process.join()
                if process.exitcode:
                    raise RuntimeError(
                        f"a worker ended with exit code {process.exitcode}; --workers 1 shows its error"
                    ) from None


def _send(specs: Sequence[KernelSpec], work: Sequence[tuple[int, Case]], profile: Profile, sender: Connection) -> None:
    import torch

    # A forked child of a process that has used OpenMP's threads hangs when it enters a parallel region itself.
    torch.set_num_threads(1)
    for judged in _judged(specs, work, profile):
        sender.send(judged)
    sender.close()


def _judged(specs: Sequence[KernelSpec], work: Iterable[tuple[int, Case]], profile: Profile) -> Iterator[Judged]:
    for index, case in work:
        spec = specs[index]
        repeated = case.elements <= SMALL_SIZE and case.seed % BITWISE_SHARE == 0
        laws = (ACCURACY, BITWISE) if repeated else (ACCURACY,)
        yield spec.name, case, tuple(law.judge(spec, case, profile) for law in laws)


def _count(rows: Sequence[Judged], profile: Profile, seed: int, cases: int, large: int, seconds: float) -> Alarms:
    judged: Counter[tuple[str, str, int]] = Counter()
    accused: Counter[tuple[str, str, int]] = Counter()
    found: list[Alarm] = []
    shares: dict[str, list[dict[str, Any]]] = {}
    scores: dict[tuple[str, bool], list[float]] = {}
    for spec, case, verdicts in rows:
        decade = decade_of(case.elements)
        for kind, output, alarm in (row for verdict in verdicts for row in _judgements(spec, case, verdict)):
            judged[kind, output, decade] += 1
            accused[kind, output, decade] += alarm is not None
            found += [] if alarm is None else [alarm]
        for name, figures in verdicts[0].figures.get("outputs", {}).items():
            _gather(shares, scores, f"{spec} {name}", figures)
    pools = {key: (pooled_ratio(s)[0], sum(x["weight"] for x in s)) for key, s in sorted(shares.items())}
    everything = [x for s in shares.values() for x in s]
    return Alarms(
        cases,
        large,
        profile.draws,
        seed,
        seconds,
        dict(Counter(row[0] for row in rows)),
        tuple(Row(k[0], k[1], decade_label(k[2]), judged[k], accused[k]) for k in sorted(judged)),
        tuple(_beyond(*key, scores[key], profile.draws) for key in sorted(scores)),
        pools,
        pooled_ratio(everything)[0] if everything else 1.0,
        tuple(found),
        dict(Counter(f"{v.law} {v.status.name}" for row in rows for v in row[2])),
    )


def _judgements(spec: str, case: Case, verdict: Verdict) -> Iterator[tuple[str, str, Alarm | None]]:
    """(gate, output, alarm or None) of all that could have failed."""
    for gate in verdict.gates:
        if not gate.held:
            yield gate.kind, gate.output, Alarm(spec, case.line(), gate.kind, gate.output, gate.value, gate.limit)
        elif not gate.vacuous:
            yield gate.kind, gate.output, None
    accused = {gate.output for gate in verdict.gates if not gate.held}
    for name, output in verdict.outputs.items():
        gated = verdict.law == ACCURACY.name
        kind = "error" if gated else verdict.law
        if not output.status.held and name not in accused:
            yield kind, name, Alarm(f"{spec}: {output.why}", case.line(), kind, name, math.nan, math.nan)
        elif not gated and output.status is not Status.VACUOUS:
            yield kind, name, None


def _gather(
    shares: dict[str, list[dict[str, Any]]], scores: dict[tuple[str, bool], list[float]], key: str, figures: Any
) -> None:
    share = figures.get("pool")
    if share and share["rounded"] and share["weight"]:
        shares.setdefault(key, []).append(share)
    for statistic, z in (figures.get("z") or {}).items():
        scores.setdefault((statistic, figures["independent"] >= FEWEST), []).append(z)


def _beyond(statistic: str, judged: bool, values: Sequence[float], draws: int) -> Beyond:
    count = sum(not abs(v) <= Z_LIMIT for v in values)
    worst = max((abs(v) for v in values), default=0.0)
    label = f"{statistic}, {f'from {FEWEST} errors on' if judged else f'below {FEWEST}, not judged'}"
    return Beyond(label, len(values), count, len(values) * student_tail(Z_LIMIT, draws - 1), worst, judged)
