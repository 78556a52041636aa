"""Grouped dSReLU on a GPU: graph replay with other inputs, and the two ways to add up d_prob and d_bias in time.

    python docs/measurements/grouped_srelu.py OUT        into OUT/grouped.jsonl

Each row is one JSON object with its kind: environment, replay, time (with every raw pair).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from docs.measurements.replay import captured, interleaved, line, summary, writer
from kernels.grouped_srelu import SPECS
from numcheck import Case, KernelSpec
from numcheck.environment import environment
from numcheck.sample import sample
from numcheck.ulp import digest

BY_NAME = {spec.name: spec for spec in SPECS}
SLOTS, ATOMIC, EAGER = (BY_NAME[f"grouped_srelu.{name}"] for name in ("triton_slots", "triton_atomic", "eager"))
# Experts, rows, features, hidden columns: a few tokens, what one device of a large model has, and many row tiles.
SIZES = ((4, 300, 1024, 64), (8, 4096, 1024, 512), (8, 8192, 2048, 1024), (32, 16384, 1024, 1024))
# The smallest takes tens of microseconds, the largest milliseconds.
REPLAYS = 20


def step(spec: KernelSpec, given: dict[str, Any]) -> dict[str, Tensor]:
    """The backward of one spec."""
    assert spec.vjp is not None
    return dict(spec.vjp(**spec.oracle.for_vjp(given, {})))


def replay(write: Callable[..., None]) -> None:
    """A graph replayed with other values, experts' tokens and offsets has the bits of plain calls."""
    for dtype in ("bf16", "fp32"):
        for E, M, N, H in SIZES[:2]:
            facts = {"rows": "padded", "onto": "data", "prob": "mixed"}
            case = Case.of(E=E, M=M, N=N, H=H, dtype=dtype, regime="wide", facts=facts)
            static = sample(SLOTS.oracle, case, device="cuda")
            graph, results = captured(lambda static=static: step(SLOTS, static.given))
            equal = []
            for seed in (1, 2, 3, 1):
                new = sample(SLOTS.oracle, case.but(seed=seed), device="cuda")
                for tensor, value in zip(static.tensors.values(), new.tensors.values(), strict=True):
                    tensor.copy_(value)
                graph.replay()
                torch.cuda.synchronize()
                equal.append({n: digest(results[n]) == digest(t) for n, t in step(SLOTS, new.given).items()})
            write("replay", spec=SLOTS.name, case=case.to_json(), equal=equal)
            print(f"replay {dtype} {(E, M, N, H)}: {'equal' if all(all(e.values()) for e in equal) else equal}")


def times(write: Callable[..., None]) -> None:
    """Interleaved pairs by graph replay: atomics over slots, onto buffers that hold something."""
    for dtype, sizes in (("bf16", SIZES), ("fp32", SIZES[:2])):
        for E, M, N, H in sizes:
            case = Case.of(E=E, M=M, N=N, H=H, dtype=dtype, regime="normal", facts={"rows": "full", "onto": "data"})
            given = sample(SLOTS.oracle, case, device="cuda").given
            slots, atomic = (captured(lambda s=s, given=given: step(s, given))[0] for s in (SLOTS, ATOMIC))
            found = summary(interleaved(slots, atomic, replays=REPLAYS))
            print(line(f"{dtype} {(E, M, N, H)} atomic / slots", found), flush=True)
            write("time", case=case.to_json(), what="atomic / slots", **found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the rows")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "grouped.jsonl").open("w") as file, torch.no_grad():
        write = writer(file)
        write("environment", **environment("cuda"))
        replay(write)
        times(write)


if __name__ == "__main__":
    main()
