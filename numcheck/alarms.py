"""Alarms: judge clean Cases and count what the accuracy gates accuse, by gate, output and size.

A clean Case is one of a spec that is right, so every alarm is false. Ceiling, match, exact and the bitwise law must
never alarm; band and bias may as often as Student's t foretells. Every Case is judged for accuracy, and of the small
ones a share by the bitwise law too, which runs the kernel many times over.
"""

from __future__ import annotations

import math
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numcheck.capability import Available
from numcheck.case import Case
from numcheck.chance import binomial_tail, clopper_pearson, student_tail
from numcheck.errors import InvalidSpec
from numcheck.judge import FEWEST, Z_LIMIT
from numcheck.laws.accuracy import ACCURACY
from numcheck.laws.bitwise import BITWISE
from numcheck.pool import pooled_ratio
from numcheck.profile import QUICK, Profile
from numcheck.verdict import Status

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numcheck.spec import KernelSpec
    from numcheck.verdict import Verdict

# Sizes are products over the Case's dims, log-uniform up to the first figure, and for large Cases between the two.
SMALL_SIZE, LARGE_SIZE = 1_000, 200_000
# Interpreted kernels cost ten times a torch Case and more, so they get one Case for so many of a torch spec's.
TORCH_SHARE = 8
# Small Cases, by their seed, of which one is judged by the bitwise law too.
BITWISE_SHARE = 8
# Gates whose limits are worst cases, or chances so small that no run of this size may show one.
NEVER = ("exact", "ceiling", "match", "bitwise", "error")
# Pooled measured over predicted relL2 of 16-bit outputs: what the noise model has to reach.
POOL_LOW, POOL_HIGH = 0.9, 1.1
# Alarms of band and bias beyond what Student's t foretells at this chance are not luck.
LUCK = 1e-3
DECADES = ((1, 10), (11, 100), (101, SMALL_SIZE), (SMALL_SIZE + 1, LARGE_SIZE))


@dataclass(frozen=True)
class Row:
    """How often one gate of one output judged at one size, and how often it accused."""

    gate: str
    output: str
    size: str
    judged: int
    alarms: int

    @property
    def interval(self) -> tuple[float, float]:
        """Exact 95 % interval of the false-alarm rate."""
        return clopper_pearson(self.alarms, self.judged)


@dataclass(frozen=True)
class Beyond:
    """How many standardised figures lie beyond Z_LIMIT, and how many Student's t foretells.

    judged: whether a gate rests on them; those of fewer errors are shown and not held against anything.
    """

    statistic: str
    figures: int
    beyond: int
    foretold: float
    worst: float
    judged: bool = True

    @property
    def luck(self) -> float:
        """The chance of at least this many, were each figure Student's t."""
        rate = self.foretold / self.figures if self.figures else 0.0
        return binomial_tail(self.beyond, self.figures, rate) if self.beyond else 1.0


@dataclass(frozen=True)
class Alarm:
    """One false alarm, with what it takes to replay it."""

    spec: str
    case: str
    gate: str
    output: str
    value: float
    limit: float


@dataclass(frozen=True)
class Alarms:
    """The outcome.

    pools: "spec output" -> pooled measured over predicted relL2, and over how many errors, of 16-bit outputs.
    statuses: status -> Cases. seconds: wall clock.
    """

    cases: int
    large: int
    draws: int
    seed: int
    seconds: float
    by_spec: dict[str, int]
    rows: tuple[Row, ...]
    beyond: tuple[Beyond, ...]
    pools: dict[str, tuple[float, float]]
    pooled: float
    alarms: tuple[Alarm, ...]
    statuses: dict[str, int] = field(default_factory=dict)

    @property
    def complaints(self) -> tuple[str, ...]:
        """What does not hold."""
        never = Counter(a.gate for a in self.alarms if a.gate in NEVER)
        found = [f"{count} alarm(s) from {gate}, which must never alarm" for gate, count in never.items()]
        if self.pools and not POOL_LOW <= self.pooled <= POOL_HIGH:
            found.append(f"pooled measured/predicted {self.pooled:.3f} is outside {POOL_LOW} to {POOL_HIGH}")
        found += [
            f"{b.beyond} {b.statistic} figures beyond {Z_LIMIT:g}, {b.foretold:.2g} foretold (chance {b.luck:.2g})"
            for b in self.beyond
            if b.judged and b.luck < LUCK
        ]
        return tuple(found)

    @property
    def held(self) -> bool:
        """No complaint."""
        return not self.complaints

    def to_json(self) -> dict[str, Any]:
        """A plain JSON object."""
        return {
            "cases": self.cases,
            "large": self.large,
            "draws": self.draws,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "by_spec": self.by_spec,
            "statuses": self.statuses,
            "held": self.held,
            "complaints": list(self.complaints),
            "rows": [{**r.__dict__, "interval": list(r.interval)} for r in self.rows],
            "beyond": [{**b.__dict__, "luck": b.luck} for b in self.beyond],
            "pooled": self.pooled,
            "pools": {key: {"ratio": ratio, "weight": weight} for key, (ratio, weight) in self.pools.items()},
            "alarms": [{**a.__dict__, "value": str(a.value), "limit": str(a.limit)} for a in self.alarms],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.cases} Cases of up to {SMALL_SIZE} elements a tensor and {self.large} of up to {LARGE_SIZE}, "
            f"{self.draws} noise draws each, seed {self.seed}, {self.seconds:.0f} s",
            "by spec: " + ", ".join(f"{name} {count}" for name, count in self.by_spec.items()),
            "by status: " + ", ".join(f"{name} {count}" for name, count in self.statuses.items()),
            "",
            f"{'gate':8} {'output':12} {'size':>14} {'judged':>8} {'alarms':>7}   rate, exact 95 % interval",
        ]
        for r in self.rows:
            low, high = r.interval
            lines.append(f"{r.gate:8} {r.output:12} {r.size:>14} {r.judged:8} {r.alarms:7}   {low:.2e} .. {high:.2e}")
        freedom = self.draws - 1
        lines += [
            "",
            f"standardised figures beyond {Z_LIMIT:g}; Student's t with {freedom} degrees of freedom foretells",
        ]
        lines += [
            f"{b.statistic:32} {b.figures:8} figures, {b.beyond} beyond, {b.foretold:.3g} foretold, worst {b.worst:.2f}"
            for b in self.beyond
        ]
        lines += ["", f"pooled measured/predicted relL2 of 16-bit outputs: {self.pooled:.4f}"]
        lines += [f"  {key:44} {ratio:.4f} over {weight:.0f} errors" for key, (ratio, weight) in self.pools.items()]
        lines += ["", f"{len(self.alarms)} alarm(s)"]
        lines += [f"  {a.gate} {a.output} {a.value:.6g} beyond {a.limit:.6g}: {a.spec} {a.case}" for a in self.alarms]
        lines += ["", *(self.complaints or ("held",))]
        return "\n".join(lines)


Judged = tuple[str, int, Case, tuple["Verdict", ...]]


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
    work = [*_work(runnable, cases, seed, large=False), *_work(runnable, large, seed, large=True)]
    rows: list[Judged] = []
    for judged in _all_judged(runnable, work, profile, workers):
        rows.append(judged)
        if tick is not None:
            tick(1)
    return _count(rows, profile, seed, len(work) - large, large, time.perf_counter() - start)


def clean_case(spec: KernelSpec, rng: random.Random, smallest: int, largest: int) -> Case:
    """A Case that `spec` promises, its sizes' product log-uniform from `smallest` to `largest` where dims allow.

    Raises InvalidSpec where a hundred draws in a row are outside the promise.
    """
    space = spec.oracle.space
    for _ in range(100):
        facts = {name: rng.choice(values) for name, values in space.facts.items()}
        case = Case.of(
            dtype=rng.choice(spec.dtypes),
            regime=rng.choice(space.regimes),
            layout=rng.choice(space.layouts),
            offset=rng.choice(space.offsets),
            facts=facts,
            seed=rng.randrange(2**31),
            **_sizes(spec, rng, smallest, largest),
        )
        if spec.illegal(case) is None:
            return case
    raise InvalidSpec(f"spec {spec.name}: none of 100 drawn Cases is inside its promise; see its Contract's `legal`")


def _sizes(spec: KernelSpec, rng: random.Random, smallest: int, largest: int) -> dict[str, int]:
    space = spec.oracle.space
    room = math.exp(rng.uniform(math.log(smallest), math.log(largest)))
    found: dict[str, int] = {}
    names = [*space.choices, *(n for n in space.sizes if n not in space.choices)]
    rng.shuffle(names)
    for position, name in enumerate(names):
        if name in space.choices:
            fitting = [v for v in space.choices[name] if 1 <= v <= room]
            found[name] = rng.choice(fitting) if fitting else max(1, min(space.choices[name]))
        else:
            low, high = space.sizes[name]
            low, high = max(1, low), max(1, low, min(high, int(room)))
            last = position == len(names) - 1
            found[name] = high if last else round(math.exp(rng.uniform(math.log(low), math.log(high))))
        room = max(1.0, room / found[name])
    return {name: found[name] for name in (*space.sizes, *space.choices) if name in found}


def _work(specs: Sequence[KernelSpec], count: int, seed: int, *, large: bool) -> list[tuple[int, Case]]:
    """(index of the spec, Case), torch specs first in number."""
    shares = [1 if spec.must_run else TORCH_SHARE for spec in specs]
    turns = [index for index, share in enumerate(shares) for _ in range(share)]
    low, high = (SMALL_SIZE + 1, LARGE_SIZE) if large else (1, SMALL_SIZE)
    found = []
    for k in range(count):
        index = turns[k % len(turns)]
        rng = random.Random(f"{seed}/{'large' if large else 'small'}/{specs[index].name}/{k}")
        found.append((index, clean_case(specs[index], rng, low, high)))
    return found


def _all_judged(
    specs: Sequence[KernelSpec], work: Sequence[tuple[int, Case]], profile: Profile, workers: int
) -> Iterator[Judged]:
    if workers <= 1:
        yield from _judged(specs, work, profile)
        return
    # fork: specs hold closures and Triton functions, which do not pickle.
    context = multiprocessing.get_context("fork")
    pipes = []
    for worker in range(workers):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(specs, work[worker::workers], profile, sender))
        process.start()
        sender.close()
        pipes.append((receiver, process))
    for receiver, process in pipes:
        while True:
            try:
                yield receiver.recv()
            except EOFError:
                break
        process.join()
        if process.exitcode:
            raise RuntimeError(f"a worker ended with exit code {process.exitcode}; --workers 1 shows its error")


def _send(specs: Sequence[KernelSpec], work: Sequence[tuple[int, Case]], profile: Profile, sender: Connection) -> None:
    for judged in _judged(specs, work, profile):
        sender.send(judged)
    sender.close()


def _judged(specs: Sequence[KernelSpec], work: Iterable[tuple[int, Case]], profile: Profile) -> Iterator[Judged]:
    for index, case in work:
        spec = specs[index]
        size = math.prod(size for _, size in case.sizes)
        repeated = size <= SMALL_SIZE and case.seed % BITWISE_SHARE == 0
        laws = (ACCURACY, BITWISE) if repeated else (ACCURACY,)
        yield spec.name, size, case, tuple(law.judge(spec, case, profile) for law in laws)


def _count(rows: Sequence[Judged], profile: Profile, seed: int, cases: int, large: int, seconds: float) -> Alarms:
    judged: Counter[tuple[str, str, int]] = Counter()
    accused: Counter[tuple[str, str, int]] = Counter()
    found: list[Alarm] = []
    shares: dict[str, list[dict[str, Any]]] = {}
    scores: dict[tuple[str, bool], list[float]] = {}
    for spec, size, case, verdicts in rows:
        decade = next(i for i, (_, high) in enumerate(DECADES) if size <= high or i == len(DECADES) - 1)
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
        tuple(Row(k[0], k[1], _label(k[2]), judged[k], accused[k]) for k in sorted(judged)),
        tuple(_beyond(*key, scores[key], profile.draws) for key in sorted(scores)),
        pools,
        pooled_ratio(everything)[0] if everything else 1.0,
        tuple(found),
        dict(Counter(f"{v.law} {v.status.name}" for row in rows for v in row[3])),
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


def _label(decade: int) -> str:
    low, high = DECADES[decade]
    return f"{low}..{high}"
