"""Grouped rows: which expert a row of a grouped GEMM belongs to, and how a Case's rows are shared out.

A buffer of M rows holds the tokens of E experts one after the other. `offsets` (E,) says where each expert's rows
end, padding included; `tokens` (E,) how many of its first rows are tokens. What is left of an expert's rows, and rows
past the last offset, are padding: they belong to nobody, whatever they hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numcheck.case import Case
from numcheck.sample import Counter

if TYPE_CHECKING:
    from torch import Tensor

# How the rows are shared out. full: every row is a token. padded: experts end in padding and some have no token.
# last empty: all rows are the first expert's but for padding at the end. none: padding alone.
PATTERNS = ("full", "padded", "last empty", "none")


def owners(tokens: Tensor, offsets: Tensor, rows: int) -> Tensor:
    """The expert of each row as int64 (rows,), -1 for padding."""
    import torch

    row = torch.arange(rows, device=offsets.device)
    expert = torch.bucketize(row, offsets.long(), right=True)
    known = expert < offsets.numel()
    expert = torch.where(known, expert, 0)
    starts = torch.cat([offsets.new_zeros(1), offsets[:-1]]).long()
    return torch.where(known & (row - starts[expert] < tokens.long()[expert]), expert, -1)


def ends(case: Case) -> list[int]:
    """Where each expert's rows end: E - 1 cuts of the M rows, drawn, and M."""
    rows, experts = case["M"], case["E"]
    if case.fact("rows", "full") == "last empty":
        return [rows] * experts
    cuts = Counter(case.seed, "offsets").indices((experts - 1,), 0, rows).sort().values.tolist()
    return [*cuts, rows]


def counts(case: Case) -> list[int]:
    """How many tokens each expert has."""
    stops = ends(case)
    spans = [stop - start for start, stop in zip([0, *stops], stops, strict=False)]
    pattern = case.fact("rows", "full")
    if pattern == "none":
        return [0] * len(spans)
    if pattern == "full":
        return spans
    # At least one row of padding in every second expert, and none but padding in some.
    shares = Counter(case.seed, "tokens").indices((len(spans),), 0, 3).tolist()
    return [span * share // 3 for span, share in zip(spans, shares, strict=True)]


def offsets_fill(case: Case, name: str) -> Tensor:
    """`offsets` of a Case, as int64."""
    import torch

    return torch.tensor(ends(case), dtype=torch.int64)


def tokens_fill(case: Case, name: str) -> Tensor:
    """`tokens` of a Case, as int64."""
    import torch

    return torch.tensor(counts(case), dtype=torch.int64)
