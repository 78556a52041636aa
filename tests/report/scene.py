"""Records as a real run writes them, made from the real dataclasses: what the report is developed and tested on."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from numcheck.case import Case
from numcheck.evidence import Backend, Evidence, Footprint, Launch
from numcheck.gate import Gate
from numcheck.record import Records, Writer
from numcheck.verdict import OutputVerdict, Rung, Status, Verdict

SPECS = "kernels"
OUTPUTS = ("out", "d_x", "d_residual", "d_post", "d_comb")
KERNELS = ("eager", "triton", "eager_bf16_rounding", "triton_split_atomic", "triton_split_ordered")
ANY = {"triton_split_atomic": ("d_post", "d_comb")}
SOURCES = {"forward": "kernels/mhc_post/fused.py:19", "vjp": "kernels/mhc_post/fused.py:41",
           "must run mhc_post_forward": "kernels/mhc_post/tiles.py:7"}  # fmt: skip
CLAIMS = {
    "bitwise": "the same Case gives the same bits, output by output, wherever the order promise is not `any`",
    "accuracy": "every output lies within the limits that its declared roundings derive",
    "cancellation": "a small exact result made of large terms survives",
    "invariance": "relations that hold exactly keep every bit",
    "edges": "empty, dead and boundary shapes are handled, and nothing else is written",
    "memory": "peak bytes stay within the Contract's formula",
    "evidence": "the intended kernel ran",
}
REASONS = {
    "ceiling": "largest |kernel - truth| over the Contract's worst case (radius), element by element",
    "match": "elements that differ from the emulated Contract, against the 1 - 1e-8 Poisson quantile of the flip rate",
    "band": "ln(measured relL2 / predicted): max(ln 1.5, 6.2 spreads of the noise draws)",
    "bias": "|mean signed error| in spreads of the noise draws; 6 keeps clean alarms at 2.4e-5",
    "exact": "elements whose bits differ; no point rounds here",
}


LARGEST = Case.of(S=4, H=4, D=2**22, dtype="bf16")
BENCH = {"a": "eager", "b": "triton", "case": LARGEST.to_json(), "pairs": 30, "ratio": 0.31, "low": 0.28, "high": 0.35,
         "decides": True}  # fmt: skip


class Clock:
    """A clock that moves by 40 ms a look, so that records are the same on every machine."""

    def __init__(self, start: datetime = datetime(2026, 3, 2, 9, 30, tzinfo=UTC)) -> None:
        self.now = start

    def __call__(self) -> datetime:
        self.now += timedelta(milliseconds=40)
        return self.now


def environment(device: str = "cpu") -> dict[str, object]:
    """The facts of one machine, as numcheck.environment gives them."""
    gpu = device == "cuda"
    return {
        "id": "e9a1c04d77b2" if gpu else "5b20f3a8de61",
        "backend": "device" if gpu else "interpreter",
        "device": {"kind": "cuda", "name": "NVIDIA H200", "capability": "sm90", "memory_bytes": 150_754_820_096,
                   "driver": "570.86.15", "cuda": "12.8", "cudnn": "91002"}
        if gpu
        else {"kind": "cpu", "name": "Intel(R) Xeon(R) Platinum 8468"},
        "cpu": {"model": "Intel(R) Xeon(R) Platinum 8468", "cores_count": 16 if gpu else 2, "machine": "x86_64"},
        "system": "Linux 6.8.0",
        "versions": {"numcheck": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cu128" if gpu else "2.13.0+cpu",
                     "triton": "3.9.0", "hypothesis": "6.170.17", "numpy": "2.4.6", "mpmath": "1.3.0",
                     "nvidia-cudnn-frontend": "1.32.0" if gpu else "not installed"},
        "flags": {"deterministic_algorithms": False, "float32_matmul_precision": "highest", "threads_count": 2},
        "repairs": [] if gpu else ["bf16 cast rounds to nearest", "masked loads fill with NaN"],
        "code": {"commit": "434979e5b0c1d2e3f4a5968778695a4b3c2d1e0f", "dirty": False},
    }  # fmt: skip


def cases(rng: random.Random, count: int) -> Iterator[Case]:
    for index in range(count):
        yield Case.of(
            S=rng.choice((1, 1, 2, 5)),
            H=rng.choice((1, 2, 4, 8)),
            D=rng.choice((31, 257, 2053, 4096)),
            dtype=rng.choice(("fp32", "bf16")),
            regime=rng.choice(("wide", "normal", "mean4", "cancelling")),
            layout=rng.choice(("contiguous", "strided")),
            offset=rng.randrange(4),
            seed=index,
        )


def evidence(spec: str, device: str, case: Case | None = None) -> Evidence:
    backend: Backend = "torch" if spec.startswith("eager") else "device" if device == "cuda" else "interpreter"
    if backend == "torch":
        return Evidence(operators=("aten::mul", "aten::add", "aten::sum"), peak_bytes=65536)
    blocks = -(-(case["D"] if case else 4096) // 1024)
    prints = {"d_post": Footprint(addends=blocks, atomic=True, multi=8)} if "atomic" in spec else {}
    return Evidence(
        (Launch("_forward", (1, blocks)), Launch("_backward", (1, blocks))),
        backend,
        footprints=prints,
        peak_bytes=65536,
    )


def hashes(spec: str, case: Case, outputs: tuple[str, ...] = OUTPUTS) -> dict[str, str]:
    return {o: f"{random.Random(f'{spec}/{case.key}/{o}').getrandbits(64):016x}" for o in outputs}


def bitwise(spec: str, case: Case, device: str = "cpu") -> Verdict:
    anyone, flips = ANY.get(spec, ()), case["D"] > 2048
    outputs, flipped = {}, {}
    for name in OUTPUTS:
        if name in anyone and flips:
            outputs[name] = OutputVerdict(Status.ORDER_DEPENDENT, "promised any; flipped in 3 of 6 orders")
            flipped[name] = 3
        elif name in anyone:
            outputs[name] = OutputVerdict(
                Status.VACUOUS, "one addend an address (measured); order matters from three on"
            )
        elif name in ("d_post", "d_comb") and case["D"] < 1024:
            outputs[name] = OutputVerdict(
                Status.VACUOUS, "two addends an address (oracle); order matters from three on"
            )
        else:
            outputs[name] = OutputVerdict(Status.PASS)
    seen = {o: (h,) for o, h in hashes(spec, case).items()}
    names = [("same process", 2), ("permuted order", 6), ("new allocation, dirty memory", 1)]
    names += [("other work on the device", 4), ("graph replay", 4)] if device == "cuda" else [("thread counts", 2)]
    rungs = [Rung(n, r, seen, flipped if n == "permuted order" else {}) for n, r in names]
    if case["S"] == 5 and case.seed % 3 == 0:
        rungs.append(Rung("fresh process", 1, seen))
    return Verdict(spec, "bitwise", CLAIMS["bitwise"], outputs, rungs=tuple(rungs),
                   hashes=hashes(spec, case), evidence=evidence(spec, device, case))  # fmt: skip


def gates(rng: random.Random, case: Case) -> Iterator[Gate]:
    for name in OUTPUTS:
        wide = name in ("d_post", "d_comb") or case.dtype == "fp32"
        yield Gate("ceiling", name, min(0.99, rng.lognormvariate(-2.2 if wide else -0.9, 0.5)), 1.0, REASONS["ceiling"])
        if wide:
            continue
        count = case["S"] * case["D"]
        exact = "nothing rounds in this Case" if case.regime == "zeros" else ""
        yield Gate("match", name, float(rng.random() < 0.1), 3.0 + count / 2000, REASONS["match"], 0.4, vacuous=exact)
        limit = max(math.log(1.5), 6.2 / math.sqrt(2 * count))
        few = "2 elements: the spread exceeds the statistic" if count < 40 else ""
        yield Gate("band", name, rng.gauss(0, limit / 7), limit, REASONS["band"], limit / 6, -limit, vacuous=few)
        yield Gate("bias", name, abs(rng.gauss(0, 1.1)), 6.0, REASONS["bias"], 1.0)


def accuracy(spec: str, case: Case, device: str = "cpu") -> Verdict:
    rng = random.Random(f"{spec}/{case.key}/{device}")
    outputs = {name: OutputVerdict(Status.PASS) for name in OUTPUTS}
    policy = "bf16 coefficients" if spec == "eager_bf16_rounding" else "fp32 coefficients"
    others = {"bf16 post*x": 1.31, "bf16 mix": 1.12}
    fingerprint = {
        "best": policy,
        "tied": [],
        "second": "bf16 mix",
        "gap": 280.0,
        "explained": True,
        "joint": {policy: 0.004, **others},
        "match": {policy: {"out": 0.004}},
    }
    return Verdict(spec, "accuracy", CLAIMS["accuracy"], outputs, tuple(gates(rng, case)), hashes=hashes(spec, case),
                   evidence=evidence(spec, device, case), figures={"fingerprint": fingerprint})  # fmt: skip


def plain(law: str, spec: str, case: Case, device: str = "cpu") -> Verdict:
    status = OutputVerdict(Status.PASS)
    if law == "cancellation" and spec == "eager_bf16_rounding":
        status = OutputVerdict(Status.VACUOUS, "this Contract does not promise survival: radius 0.0078, exact 0.003")
    gate = Gate("exact", "out", 0.0, 0.0, REASONS["exact"])
    if law == "memory":
        workspace = 4 * case["S"] * case["H"] * case["D"]
        figures = {"measured": workspace, "formula": workspace + 64}
        return Verdict(spec, law, CLAIMS[law], {"out": status}, (gate,), hashes=hashes(spec, case, ("out",)),
                       evidence=evidence(spec, device, case), figures=figures)  # fmt: skip
    return Verdict(spec, law, CLAIMS[law], {"out": status}, (gate,), hashes=hashes(spec, case, ("out",)),
                   evidence=evidence(spec, device, case))  # fmt: skip


def judge(law: str, spec: str, case: Case, device: str = "cpu") -> Verdict:
    if law == "bitwise":
        return bitwise(spec, case, device)
    return accuracy(spec, case, device) if law == "accuracy" else plain(law, spec, case, device)


def broken(spec: str, case: Case) -> Verdict:
    """A kernel that rounds its coefficients undeclared."""
    outputs = {name: OutputVerdict(Status.PASS) for name in OUTPUTS}
    where = "out got=0.00390625 expected=0.0030059814453125 at [0, 1, 17]"
    outputs["out"] = OutputVerdict(Status.FAIL, "match 61 beyond 4; ceiling 2.41 beyond 1", where)
    failed = (
        Gate("ceiling", "out", 2.41, 1.0, REASONS["ceiling"]),
        Gate("match", "out", 61.0, 4.0, REASONS["match"], 0.4),
    )
    rest = tuple(g for g in gates(random.Random(case.key), case) if g.output != "out")
    return Verdict(spec, "accuracy", CLAIMS["accuracy"], outputs, (*failed, *rest), hashes=hashes(spec + "!", case),
                   evidence=evidence(spec, "cpu", case))  # fmt: skip


def write(path: Path, *, count: int = 24, failing: bool = False, devices: tuple[str, ...] = ("cpu",)) -> Path:
    """A whole run: `count` Cases a kernel and law, on each device; `failing`: with failures, an error and a crash."""
    clock = Clock()
    for device in devices:
        run = f"20260302T0930{'01' if device == 'cuda' else '00'}Z-{'d41f07' if device == 'cuda' else '8c02ab'}"
        writer = Writer(path, run, "main", clock=clock, profile="ci", device=device, command="pytest -m bitwise")
        writer.environment(environment(device))
        for spec in KERNELS:
            says = {"roundings (bf16)": "out bf16", "order (bf16)": "out single"}
            writer.declared(SPECS, spec, says, oracle="mhc_post", sources=SOURCES)
            for law in CLAIMS:
                _claim(
                    writer, spec, law, count if law in ("bitwise", "accuracy") else max(2, count // 6), device, failing
                )
        for facts in certificates():
            writer.certificate(facts)
        writer.bench(SPECS, BENCH)
        if device == "cpu":
            writer.unavailable(SPECS, "cudnn_sm90", "", "no NVIDIA device here", "sm90")
            writer.unavailable(SPECS, "triton", "bitwise", "graph replay needs a GPU", "gpu")
        if failing and device == "cpu":
            writer.started(SPECS, "triton_split_atomic", "edges", Case.of(S=0, H=8, D=4096), "grid")
            writer.close()
            with path.open("a") as file:
                file.write('{"schema":1,"kind":"case","id":"torn')
        writer.end()
    return path


def moved(records: Records) -> Records:
    """The same run in which triton's `out` has other bits wherever D is 257 or more."""
    rows = []
    for row in records.rows:
        if row.get("spec") == "triton" and row["kind"] == "case" and row["case"]["sizes"]["D"] > 31:
            row = {**row, "hashes": {**row["hashes"], "out": "0" * 16}}
        rows.append(row)
    return Records(tuple(rows))


def failed(records: Records) -> Records:
    """The same run in which triton's `out` errs too far under accuracy in bf16: what a repair of it starts from."""
    wrong = {"status": "FAIL", "why": "ceiling 2.41 beyond 1", "where": "out got=0.1 expected=0.2 at [0]"}
    rows = []
    for row in records.rows:
        mine = (row.get("spec"), row.get("law"), row["kind"]) == ("triton", "accuracy", "case")
        if mine and row["case"]["dtype"] == "bf16":
            kept = [g for g in row["gates"] if (g["output"], g["kind"]) != ("out", "ceiling")]
            (ceiling,) = (g for g in row["gates"] if g not in kept)
            gates = [{**ceiling, "value": 2.41}, *kept]
            row = {**row, "status": "FAIL", "outputs": {**row["outputs"], "out": wrong}, "gates": gates}
        rows.append(row)
    return Records(tuple(rows))


def _claim(writer: Writer, spec: str, law: str, count: int, device: str, failing: bool) -> None:
    drawn = list(cases(random.Random(f"{spec}/{law}"), count))
    for index, case in enumerate(drawn):
        phase = "grid" if index < count // 2 else "draw"
        writer.started(SPECS, spec, law, case, phase)
        verdict = judge(law, spec, case, device)
        if failing and law == "accuracy" and spec == "triton" and device == "cpu" and index % 3 == 1:
            verdict = broken(spec, case)
        if failing and law == "edges" and spec == "eager" and index == 0:
            error = "RuntimeError: shape '[0, 8]' is invalid for input of size 8 (mhc_post.py:41)"
            verdict = Verdict(spec, law, CLAIMS[law], {"out": OutputVerdict(Status.ERROR, error)})
        writer.case(SPECS, case, verdict, phase, {"kernel": 0.053, "oracle": 0.012, "judge": 0.002})
    if failing and law == "accuracy" and spec == "triton" and device == "cpu":
        for size in (257, 31):
            small = Case.of(S=1, H=2, D=size, dtype="bf16", regime="normal", seed=0)
            writer.case(SPECS, small, broken(spec, small), "shrink")
        writer.case(SPECS, Case.of(S=1, H=1, D=1, dtype="bf16"), judge(law, spec, Case.of(S=1, H=1, D=1)), "shrink")
    pooled = tuple(
        Gate("band", name, 0.012, 0.095, "pooled ln(measured / predicted) of small Cases", 0.02, -0.095)
        for name in ("out", "d_x")
    )
    outputs = {name: OutputVerdict(Status.PASS) for name in OUTPUTS}
    figures = {"declared_maxima": {LARGEST.line(): 2**28 + 64}} if law == "memory" else {}
    gates = pooled if law == "accuracy" else ()
    writer.pooled(SPECS, Verdict(spec, law, CLAIMS[law], outputs, gates, figures=figures, pooled=True))


def certificates() -> Iterator[dict[str, object]]:
    common = {"limit": 1e-14, "cases": 8}
    by_output = {"out": 1.1e-16, "d_x": 2.2e-16, "d_residual": 1.7e-16, "d_post": 3.1e-16, "d_comb": 2.9e-16}
    known = {"worst": 3.1e-16, "vjp": "analytic", "by_output": by_output}
    yield {"oracle": "mhc_post", "status": "CERTIFIED", **common, **known}
    yield {"oracle": "rmsnorm", "status": "UNCERTIFIED", **common, "worst": "nan", "vjp": "autograd", "by_output": {}}
