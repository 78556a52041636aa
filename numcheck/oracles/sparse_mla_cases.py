"""The Cases of sparse MLA: how indices, lengths, sinks and values are drawn, and which Cases there are.

Facts, most teeth first:

indices  one_row        every slot lists the same row
         duplicates     few rows, so that a query lists one several times, and queries share them
         random         any rows
         distinct       no query lists a row twice
         holes          as duplicates, and every third slot or so is -1
         hole_blocks    as random, and every second run of up to 64 slots is -1
         dead_rows      as random, and every second query lists nothing
         out_of_range   as random, and every third slot or so lists S_k, INT_MIN, INT_MAX, ...
         nothing        no slot of any query is live
length   none, partial (0 to topk), beyond (below 0, 0, 1, and above topk too)
sink     finite (near the logits), none, -inf; by turns with finite ones +inf, or +-2.4e38 (huge: beyond FP32 in base 2)
d_kv     data, fp32: the dtype of d_kv
logits   1, 4, 16: factor on q; 64: most rows saturate
d_out    plain, decades: each head's cotangent times a power of two of its own, over six decades
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from numcheck.case import Case, Fact
from numcheck.oracle import CaseSpace
from numcheck.sample import Counter, cotangent, data

INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
# A kernel's tile of slots on Hopper.
BLOCK = 64
# One slot in so many is dead where holes are interspersed.
SPARSITY = 3
# q and kv of the `wide` regime are spread over 2^-8 to 2^8, with a root mean square near 2^6. This brings kv to 1 and q
# to less, so that not every softmax over their heavy-tailed products is decided by one slot.
WIDE = {"kv": 2.0**-6, "q": 2.0**-9}
# Six decades, kept within FP16: the smallest is its least normal number, and the largest leaves room for sums.
DECADES = (-14, 6)
# The largest FP32 sink that times log2(e) no longer is one is near 2.36e38 (cudnn-frontend issue 1048).
HUGE = float(torch.tensor(2.4e38, dtype=torch.float32))


def scalars(case: Case) -> Mapping[str, Fact]:
    """softmax_scale 1 / sqrt(D) as FP32 holds it, value_dim, and d_kv_dtype where it is not the data's."""
    scale = float(torch.tensor(max(case["D"], 1) ** -0.5, dtype=torch.float32))
    usual: dict[str, Fact] = {"softmax_scale": scale, "value_dim": case["D_v"]}
    return usual if d_kv_dtype(case) == case.dtype else {**usual, "d_kv_dtype": "fp32"}


def wrong(case: Case) -> Mapping[str, tuple[Fact, ...]]:
    """A scale that is no finite number; a value_dim that is no integer from 1 to D; a d_kv_dtype of no name."""
    widths = (0, case["D"] + 1, float(case["D_v"]), True)
    return {"softmax_scale": (math.nan, math.inf, "1"), "value_dim": widths, "d_kv_dtype": ("fp64",)}


def legal(case: Case) -> str | None:
    """Why the problem has no such Case, or None."""
    if not 1 <= case["D_v"] <= case["D"]:
        return f"D_v={case['D_v']}, but a value is the first features of a key, 1 to D={case['D']}"
    return None


def d_kv_dtype(case: Case) -> str:
    """FP32 where the Case asks for it, else the data's."""
    return "fp32" if case.fact("d_kv", "data") == "fp32" else case.dtype


def has_lengths(case: Case) -> bool:
    """Whether topk_length is given."""
    return case.fact("length", "none") != "none"


def has_sink(case: Case) -> bool:
    """Whether a sink is given."""
    return case.fact("sink", "none") != "none"


def query_data(case: Case, name: str) -> Tensor:
    """q: the Case's regime, times its logits fact."""
    return key_data(case, name) * float(case.fact("logits", 1))


def key_data(case: Case, name: str) -> Tensor:
    """kv, and q before its factor: the Case's regime, brought to unit size where that is spread out."""
    shape = (case["S_k"], case["D"]) if name == "kv" else (case["S_q"], case["H"], case["D"])
    return data(case, name, shape) * (WIDE[name] if case.regime == "wide" else 1.0)


def out_cotangent(case: Case, name: str) -> Tensor:
    """d_out: signed and generic; with `decades` each head of a query has a size of its own, over six decades."""
    shape = (case["S_q"], case["H"], case["D_v"])
    if case.fact("d_out", "plain") == "plain":
        return cotangent(case, name, shape)
    counter = Counter(case.seed, name)
    return counter.normal(shape) * counter.powers((*shape[:-1], 1), *DECADES)


def indices(case: Case, name: str) -> Tensor:
    """topk_idxs (S_q, topk) for the Case's pattern, int64."""
    queries, slots, rows = case["S_q"], case["topk"], case["S_k"]
    counter, shape = Counter(case.seed, name), (queries, slots)
    pattern = case.fact("indices", "one_row")
    if rows == 0 or pattern == "nothing":
        return torch.full(shape, -1)
    any_row = counter.indices(shape, 0, rows - 1)
    order = counter.permutation(rows)
    # At most half of the rows are listed, so that some are not, and a third of the slots, so that slots repeat.
    few = order[any_row % max(1, min(rows // 2, slots // 3))]
    query, slot = torch.arange(queries)[:, None], torch.arange(slots)[None, :]
    hole = Counter(case.seed, f"{name}/hole").indices(shape, 0, SPARSITY - 1) == 0
    match pattern:
        case "one_row":
            return order[:1].expand(shape).clone()
        case "duplicates":
            return few
        case "random":
            return any_row
        case "distinct":
            return torch.where(slot < rows, order[(query * slots + slot) % rows], -1)
        case "holes":
            return torch.where(hole, -1, few)
        case "hole_blocks":
            run = max(1, min(BLOCK, slots // SPARSITY))
            return torch.where((slot // run + query) % 2 == 0, any_row, -1)
        case "dead_rows":
            return torch.where(query % 2 == 0, any_row, -1)
        case "out_of_range":
            outside = torch.tensor([rows, rows + 1, INT_MIN, INT_MAX, -2, -rows - 1])
            return torch.where(hole, outside[(query + slot) % len(outside)], any_row)
    raise ValueError(f"fact indices={pattern!r}, but it must be one of {', '.join((*PATTERNS, 'nothing'))}")


def lengths(case: Case, name: str) -> Tensor:
    """topk_length (S_q), int64: 0 to topk, or beyond that at both ends."""
    queries, slots = case["S_q"], case["topk"]
    if case.fact("length", "none") == "partial":
        return Counter(case.seed, name).indices((queries,), 0, slots)
    ends = torch.tensor([slots + 1, 1, -3, slots, 0, INT_MAX, INT_MIN])
    return ends[(torch.arange(queries) + case.seed) % len(ends)]


def sinks(case: Case, name: str) -> Tensor:
    """sink (H), FP64: near the logits, infinite, or finite and beyond FP32 once it is in base 2."""
    heads = case["H"]
    usual = 2.0 * Counter(case.seed, name).normal((heads,))
    head = torch.arange(heads)
    match case.fact("sink", "none"):
        case "-inf":
            return torch.full((heads,), -math.inf, dtype=torch.float64)
        case "+inf":
            return torch.where(head % 2 == 1, math.inf, usual)
        case "huge":
            return torch.where(head % 3 == 1, HUGE, torch.where(head % 3 == 2, -HUGE, usual))
    return usual


def live(case: Case, tensors: Mapping[str, Tensor]) -> Tensor:
    """Which slots count: bool (S_q, topk)."""
    topk_idxs, length = tensors["topk_idxs"], tensors.get("topk_length")
    inside = (topk_idxs >= 0) & (topk_idxs < case["S_k"])
    return inside if length is None else inside & (torch.arange(topk_idxs.shape[1]) < length[:, None])


def ignored(case: Case, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """KV rows that no live slot lists, and what slots past the length list."""
    listed = torch.zeros(case["S_k"], dtype=torch.bool)
    listed[tensors["topk_idxs"][live(case, tensors)]] = True
    masks = {"kv": ~listed[:, None]}
    length = tensors.get("topk_length")
    if length is not None:
        masks["topk_idxs"] = torch.arange(case["topk"]) >= length[:, None]
    return masks


def unspecified(case: Case, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The lse of dead rows: +inf in FlashMLA and cuDNN, and -inf has as good a claim."""
    return {"lse": ~live(case, tensors).any(-1)[:, None]}


# A value listed several times is drawn as often: sinks that take all and logits that saturate leave little to judge.
PATTERNS = ("one_row", "duplicates", "random", "distinct", "holes", "hole_blocks", "dead_rows", "out_of_range")
FACTS: Mapping[str, tuple[Fact, ...]] = {
    "indices": PATTERNS,
    "length": ("none", "none", "partial", "beyond"),
    "sink": ("finite", "finite", "finite", "none", "-inf", "+inf", "huge"),
    "d_kv": ("data", "fp32"),
    "logits": (1, 1, 1, 4, 16, 64),
    "d_out": ("plain", "decades"),
}


def named(S_q: int, S_k: int, H: int, D: int, D_v: int, topk: int, **rest: Any) -> Case:
    """A Case with these sizes; what is no field of a Case is a fact."""
    fields = {key: value for key, value in rest.items() if key in ("dtype", "regime", "layout", "offset", "seed")}
    facts = {name: rest.get(name, values[0]) for name, values in FACTS.items()}
    return Case.of(S_q=S_q, S_k=S_k, H=H, D=D, D_v=D_v, topk=topk, facts=facts, **fields)


# Sizes small enough that a program a query in Triton's interpreter stays cheap.
_SMALL = (1, 2, 3, 4, 5)
_SCENES: Mapping[str, tuple[Fact, ...]] = {
    "indices": ("one_row", "duplicates", "holes", "dead_rows", "out_of_range"),
    "length": ("none", "partial", "beyond"),
    "sink": ("finite", "none", "huge"),
    "logits": (1, 4, 16, 64),
}

# Nothing is exact behind an exp, so that integers say nothing of their own; zeros and ones are edges.
REGIMES = ("wide", "normal", "mean4", "cancelling")
_EDGES = (
    named(0, 5, 2, 16, 16, 3, sink="finite"),
    named(2, 0, 2, 16, 16, 3, sink="finite"),
    named(2, 5, 2, 16, 16, 0, sink="finite", dtype="bf16"),
    named(1, 1, 1, 1, 1, 1),
    named(3, 1, 2, 16, 16, 65, length="beyond", dtype="bf16", d_kv="fp32"),
    named(3, 9, 2, 16, 8, 3, indices="nothing", sink="finite", layout="strided"),
    named(4, 9, 3, 24, 16, 65, indices="hole_blocks", length="beyond", sink="huge", dtype="bf16", offset=3),
    named(5, 9, 2, 24, 16, 64, indices="dead_rows", sink="+inf", dtype="fp16", layout="strided", offset=1),
    named(5, 9, 2, 17, 16, 63, indices="out_of_range", length="partial", sink="-inf", regime="normal", logits=16),
    named(2, 40, 1, 24, 16, 65, indices="distinct", regime="mean4", logits=64, offset=2),
    named(
        7, 6, 2, 16, 16, 8, indices="holes", length="beyond", sink="finite", d_out="decades", d_kv="fp32", dtype="bf16"
    ),
    # More heads than a block of 16 has, and than a tile of 32.
    named(2, 3, 17, 16, 8, 3, indices="duplicates", sink="finite", d_kv="fp32"),
    named(2, 3, 33, 24, 16, 3, indices="holes", sink="finite", dtype="bf16"),
    # More KV rows and more features than a tile of 64, and a value that ends with one.
    named(2, 66, 2, 72, 64, 65, indices="out_of_range", sink="finite", length="partial", seed=4),
    # More slots, over all queries, than the 1024 threads that a block can have.
    named(17, 5, 1, 2, 2, 65, indices="holes", sink="finite"),
    # Every logit far below zero, beside holes: exp of a hole's score, which is 0, would be infinite there.
    named(2, 4, 1, 3, 3, 4, indices="holes", logits=64, sink="none", regime="normal"),
    # The widest features: 16 heads and 64 slots of 1024 + 128 of them are 212 KiB of shared memory to the byte, which
    # the Triton kernels take; of 2048, fewer slots fit.
    named(1, 2, 1, 1152, 1024, 64, dtype="bf16", regime="normal"),
    named(1, 2, 1, 2048, 2048, 64, dtype="bf16", regime="normal"),
    named(3, 5, 2, 4, 4, 5, indices="duplicates", sink="finite", regime="zeros"),
    named(3, 5, 2, 4, 4, 5, indices="duplicates", sink="finite", regime="ones", dtype="bf16"),
)
_TINY = (
    named(1, 1, 1, 1, 1, 1),
    named(2, 3, 2, 3, 2, 4, indices="duplicates", sink="finite", regime="normal", seed=1),
    named(2, 4, 2, 4, 4, 5, indices="out_of_range", length="beyond", sink="+inf", regime="normal", seed=2),
    named(2, 3, 1, 2, 1, 3, indices="holes", length="partial", sink="-inf", regime="mean4", dtype="bf16", seed=3),
    named(2, 4, 1, 3, 3, 4, indices="dead_rows", sink="finite", regime="normal", logits=16, d_out="decades", seed=4),
    named(1, 3, 2, 2, 2, 3, indices="random", sink="huge", seed=5),
    named(1, 4, 1, 3, 2, 4, indices="distinct", regime="normal", logits=16, seed=6),
    named(2, 2, 1, 2, 2, 3, regime="integers", seed=7),
    named(1, 2, 1, 2, 2, 2, indices="nothing", sink="finite", seed=8),
)
# In full on a CPU too, once each; 127 and 128 queries at reduced heads and features.
_ONCE = (
    named(127, 40, 2, 24, 16, 5, indices="holes", sink="finite"),
    named(128, 40, 2, 24, 16, 5, indices="duplicates", length="partial", dtype="bf16"),
    named(64, 40, 64, 512, 512, 6, indices="holes", dtype="bf16", regime="normal"),
    named(129, 40, 128, 576, 512, 6, indices="holes", sink="finite", dtype="bf16", regime="normal", d_kv="fp32"),
    named(257, 40, 64, 576, 512, 6, indices="holes", length="partial", dtype="bf16", regime="normal"),
)
_REDUCED = (
    "on a CPU heads and features are reduced (H up to 4, D 16 and 24 for 512 and 576), 64 queries or more are rare; "
    "(S_q, H, D) = (64, 64, 512), (129, 128, 576), (257, 64, 576) run once each in full under the edges law"
)
# Long context at the widest deployed keys; a workspace formula is read there.
_MAXIMA = {"S_q": 16384, "S_k": 524288, "H": 128, "D": 576, "D_v": 512, "topk": 2048}

ON_CUDA = CaseSpace(
    sizes={"S_q": (1, 257), "S_k": (1, 1000), "H": (1, 128), "D": (512, 576), "D_v": (512, 512), "topk": (1, 128)},
    choices={
        "S_q": (1, 2, 3, 64, 127, 128, 129, 257),
        "H": (2, 3, 63, 64, 65, 128),
        "D": (512, 576),
        "D_v": (512,),
        "topk": (1, 2, 3, 63, 64, 65, 128),
    },
    facts=FACTS,
    dtypes=("fp32", "bf16", "fp16"),
    regimes=REGIMES,
    grid={
        "S_q": (1, 64, 127, 128, 129, 257),
        "S_k": (64, 1000),
        "H": (64, 128),
        "D": (512, 576),
        "D_v": (512,),
        "topk": (1, 63, 64, 65),
        "dtype": ("fp32", "bf16", "fp16"),
        "regime": ("wide", "normal", "mean4"),
        **_SCENES,
    },
    edges=tuple(edge.but(H=max(2, edge["H"]), D=512 if edge["D"] == edge["D_v"] else 576, D_v=512) for edge in _EDGES),
    tiny=_TINY,
    maxima=_MAXIMA,
    legal=legal,
    light=("S_k", "D", "D_v"),
)

SPACE = CaseSpace(
    sizes={"S_q": (1, 257), "S_k": (1, 40), "H": (1, 4), "D": (1, 24), "D_v": (1, 16), "topk": (1, 65)},
    choices={
        # The launch boundaries are drawn too, about one time in fifty.
        "S_q": (*_SMALL * 32, 64, 129, 257),
        "H": (1, 2, 3, 4),
        "D": (1, 2, 4, 8, 16, 24),
        "D_v": (1, 2, 4, 8, 16),
        "topk": (1, 2, 3, 5, 8, 63, 64, 65),
    },
    facts=FACTS,
    dtypes=("fp32", "bf16", "fp16"),
    regimes=REGIMES,
    grid={
        "S_q": (5, 3, 1),
        "S_k": (7, 40),
        "H": (2, 3),
        "D": (16, 24),
        "D_v": (16,),
        "topk": (3, 65, 1),
        "dtype": ("fp32", "bf16", "fp16"),
        "regime": ("wide", "normal", "mean4"),
        "layout": ("contiguous", "strided"),
        **_SCENES,
    },
    edges=_EDGES,
    tiny=_TINY,
    maxima=_MAXIMA,
    legal=legal,
    light=("S_k", "D_v"),
    once=_ONCE,
    note=_REDUCED,
    elsewhere={"cuda": ON_CUDA},
)
