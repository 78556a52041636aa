"""Peak memory against the Contract's formula, and the formula read at the declared maxima."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from numcheck.harmless import clean
from numcheck.report import axes
from numcheck.report.text import count, number, short
from numcheck.selection import Judged

LAW = "memory"


@dataclass(frozen=True)
class Memory:
    """A kernel's workspace: the picture, the largest distance of a Case from the formula, and what the maxima need."""

    cases: int
    beyond: int
    residual: str
    largest: str
    maxima: list[tuple[str, str]]
    picture: Markup


def memory(rows: Iterable[tuple[int, Judged]], pooled: Iterable[Judged]) -> Memory | None:
    """From the memory law's verdicts; None where it measured nothing."""
    seen = [b for at, judged in rows if judged.law == LAW and (b := _bytes(judged.row, at)) is not None]
    if not seen:
        return None
    maxima = list(_maxima(pooled))
    drawn = [*seen, *(axes.Bytes(_elements(case), None, formula) for case, formula in maxima)]
    distance = max(abs((b.measured or 0) - b.formula) for b in seen)
    beyond = sum((b.measured or 0) > b.formula for b in seen)
    largest = max(b.measured or 0 for b in seen)
    told = f"bytes by elements: {count(len(seen), 'Case')} measured, {beyond} beyond the formula, at most "
    told += f"{axes.size(largest)}; at the declared maxima {', '.join(axes.size(f) for _, f in maxima) or 'not read'}"
    return Memory(
        len(seen),
        beyond,
        axes.size(distance),
        axes.size(largest),
        [(short(case), axes.size(formula)) for case, formula in maxima],
        axes.memory(drawn, clean(told)),
    )


def _bytes(row: Mapping[str, Any], at: int) -> axes.Bytes | None:
    measured, formula = (number(row.get("figures", {}).get(name, "nan")) for name in ("measured", "formula"))
    if not (0 <= measured < math.inf and 0 <= formula < math.inf):
        return None
    return axes.Bytes(_elements(row["case"]), int(measured), int(formula), at)


def _maxima(pooled: Iterable[Judged]) -> Iterable[tuple[Mapping[str, Any], int]]:
    """Each declared maximum as a Case, and the bytes that the formula gives it; what is no Case is left out."""
    for judged in pooled:
        declared = judged.row.get("figures", {}).get("declared_maxima", {}) if judged.law == LAW else {}
        for line, formula in declared.items() if isinstance(declared, Mapping) else ():
            case, value = _case(line), number(formula)
            if case is not None and 0 <= value < math.inf:
                yield case, int(value)


def _case(line: str) -> Mapping[str, Any] | None:
    try:
        case = json.loads(line)
    except ValueError:
        return None
    sizes = case.get("sizes") if isinstance(case, dict) else None
    if not isinstance(sizes, dict) or not all(type(v) is int and v >= 0 for v in sizes.values()):
        return None
    return case if isinstance(case.get("facts", {}), dict) else None


def _elements(case: Mapping[str, Any]) -> int:
    sizes: Sequence[int] = list(case["sizes"].values())
    return math.prod(sizes)
