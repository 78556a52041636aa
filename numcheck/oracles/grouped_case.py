"""What the Cases of the grouped backwards have in common: inputs, outputs, facts, fills, edges and policies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numcheck.case import Case, Fact
from numcheck.contract import Rounding, Rounds
from numcheck.oracle import Dims, Input, Output, Relation
from numcheck.oracles import grouped_rows as rows
from numcheck.sample import SPREAD, Counter, coefficient, cotangent, data

if TYPE_CHECKING:
    from torch import Tensor

# A value that is listed several times is drawn as often: without prob or bias there is a sum less to judge.
FACTS: Mapping[str, tuple[Fact, ...]] = {
    "rows": ("full", "padded", "last empty"),
    "prob": ("mixed", "mixed", "mixed", "none"),
    "bias": (True, True, True, False),
    "onto": ("zeros", "data"),
}
# Drawn regimes; zeros and ones have nothing to sum, and stand among the edges.
REGIMES = ("wide", "normal", "mean4", "cancelling", "integers")
# One column off a tile of 256 either way, a tile and a half, four tiles.
WIDTHS = (255, 257, 384, 1024)
GRID: Mapping[str, tuple[Fact, ...]] = {
    "onto": ("zeros", "data"),
    "prob": ("mixed", "none"),
    "dtype": ("fp32", "bf16"),
    "layout": ("contiguous", "strided"),
    "offset": (0, 1, 2, 3),
}
# Features, or hidden columns, that fill two 16-byte lines or more in any dtype.
LINES = 32
# Of sixteen routing weights two are zero and four negative, so that few rows have both kinds.
SIXTEENTH, ZEROS, NEGATIVES = 16, 2, 4


def weighted(case: Case) -> bool:
    """Whether a Case has routing weights."""
    return case.fact("prob", "mixed") != "none"


def biased(case: Case) -> bool:
    """Whether d_bias is wanted."""
    return bool(case.fact("bias", True))


def preactivation(case: Case, name: str) -> Tensor:
    """c (M, N) in the Case's regime, with zeros of both signs among its values: an activation may kink there."""
    return with_zeros(case, name, (case["M"], case["N"]))


def with_zeros(case: Case, name: str, shape: tuple[int, ...]) -> Tensor:
    """Values in the Case's regime, one in sixteen of them 0.0 or -0.0."""
    import torch

    values = data(case, name, shape)
    kind = Counter(case.seed, f"{name}/zeros").indices(shape, 0, 2 * SIXTEENTH - 1)
    return torch.where(kind == 0, 0.0, torch.where(kind == 1, -0.0, values))


def routing(case: Case, name: str) -> Tensor:
    """prob: mostly in (0, 1), some zero and some negative."""
    import torch

    values = coefficient(case, name, (case["M"],), 1.0)
    kind = Counter(case.seed, f"{name}/kind").indices((case["M"],), 1, SIXTEENTH)
    return torch.where(kind <= ZEROS, 0.0, torch.where(kind <= ZEROS + NEGATIVES, -values, values))


def buffer(case: Case, shape: tuple[int, ...], name: str) -> Tensor:
    """What the caller's d_prob or d_bias holds already: zeros, or a gradient in the Case's regime.

    In the wide regime it is as large as the sums are, products of four or five values: a smaller one would be lost
    in them, and a sum onto it show no order.
    """
    import torch

    if case.fact("onto", "zeros") == "zeros":
        return torch.zeros(shape, dtype=torch.float64)
    values = cotangent(case, name, shape)
    return values * Counter(case.seed, name).powers(shape, 0, 4 * SPREAD) if case.regime == "wide" else values


def scaling(case: Case, name: str) -> Tensor:
    """alpha: on (0, 2), in the wide regime of magnitudes from 2^-8 to 2^8, so that experts differ in size."""
    shape = (case["E"],)
    values = coefficient(case, name, shape, 2.0)
    return values * Counter(case.seed, name).powers(shape, -SPREAD, SPREAD) if case.regime == "wide" else values


PROB = Input("prob", ("M",), "fp32", fill=routing, given=weighted, grad=False)
ALPHA = Input("alpha", ("E",), "fp32", fill=scaling, grad=False)
TOKENS = Input("tokens", ("E",), "int32", fill=rows.tokens_fill, grad=False)
OFFSETS = Input("offsets", ("E",), "int32", fill=rows.offsets_fill, grad=False)


def dims(first: str, width: int, *rest: str) -> Dims:
    """Dims (first, width * N, *rest)."""
    if width == 1:
        return (first, "N", *rest)
    return lambda case: (case[first], width * case["N"], *(case[name] for name in rest))


def outputs(width: int) -> tuple[Output, ...]:
    """The forward's outputs: out, and the identities whose cotangents are the caller's buffers."""

    def onto_prob(case: Case, name: str) -> Tensor:
        return buffer(case, (case["M"],), name)

    def onto_bias(case: Case, name: str) -> Tensor:
        return buffer(case, (case["E"], width * case["N"]), name)

    return (
        Output("out", ("M", "H")),
        Output("prob_onto", ("M",), "fp32", given=weighted, fill=onto_prob),
        Output("bias_onto", dims("E", width), "fp32", given=biased, fill=onto_bias),
    )


def gradients(width: int) -> tuple[Output, ...]:
    """What a backward returns."""
    return (
        Output("d_c", dims("M", width), cotangent=False),
        Output("d_prob", ("M",), "fp32", cotangent=False, given=weighted),
        Output("d_bias", dims("E", width), "fp32", cotangent=False, given=biased),
        Output("d_x", ("M", "H"), cotangent=False),
    )


def ignored(case: Case, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Padding rows of what has rows, and whatever belongs to an expert without tokens."""
    owner = rows.owners(tensors["tokens"], tensors["offsets"], case["M"])
    padding, idle = owner < 0, tensors["tokens"] == 0
    masks = {"c": padding[:, None], "d_out": padding[:, None], "prob": padding}
    masks |= {"alpha": idle, "beta": idle, "w1": idle[:, None, None], "w2": idle[:, None, None]}
    return {name: mask for name, mask in masks.items() if name in tensors}


def policies(*points: str) -> dict[str, Rounds]:
    """Alternative roundings for the policy fingerprint, the usual one first. points: the activation's own."""
    cast: dict[str, str | Rounding] = {"d_c": "data", "d_x": "data"}
    bf16 = {
        "R stored between GEMM and epilogue": ("dot",),
        "R": ("R",),
        "prob": ("prob",),
        "act": ("act",),
        **{point: (point,) for point in points},
        "d_prob products": ("d_prob.terms",),
        "d_bias of the stored d_c": ("d_bias.terms",),
        "sums stored in bf16": ("d_prob", "d_bias"),
    }
    named: dict[str, Rounds] = {name: {**cast, **dict.fromkeys(found, "bf16")} for name, found in bf16.items()}
    return {"fp32": cast, **named, "truncated outputs": {name: Rounding("data", "truncate") for name in cast}}


# Which axis of each tensor counts rows, and which features (of what has them in the activation's two halves, pairs).
_ROWS = ("c", "prob", "d_out", "d_prob_onto", "d_c", "d_prob", "d_x")
_FEATURES = {"c": 1, "w1": 1, "w2": 1, "d_bias_onto": 1, "d_c": 1, "d_bias": 1}


def turned_rows() -> Relation:
    """One expert's tokens in another order give the same rows in that order."""

    def turn(tensors: Mapping[str, Tensor], by: int) -> dict[str, Tensor]:
        return {name: t.roll(by, 0) if name in _ROWS else t for name, t in tensors.items()}

    def transform(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
        alone = case["E"] == 1 and case["M"] > 1 and rows.counts(case) == [case["M"]]
        return turn(tensors, 1) if alone else None

    return Relation("tokens in another order", transform, lambda case, found: turn(found, -1), exact=False)


def turned_features(width: int, block: int) -> Relation:
    """Features in another order, `block` of them at a time, give the same results in that order."""

    def turn(tensors: Mapping[str, Tensor], by: int) -> dict[str, Tensor]:
        steps = {name: by * block * (1 if name == "w2" else width) for name in _FEATURES}
        return {name: t.roll(steps[name], _FEATURES[name]) if name in steps else t for name, t in tensors.items()}

    def transform(case: Case, tensors: dict[str, Tensor]) -> dict[str, Tensor] | None:
        return turn(tensors, 1) if case["N"] > block else None

    return Relation("features in another order", transform, lambda case, found: turn(found, -1), exact=False)


def edges(widths: tuple[int, int, int, int], **facts: Fact) -> tuple[Case, ...]:
    """Empty, dead and boundary shapes. widths: the smallest, those of one tile and of three, one beyond 1024."""
    least, narrow, wide, widest = widths

    def case(M: int, N: int, H: int, E: int, dtype: str = "fp32", more: Mapping[str, Any] | None = None) -> Case:
        given = dict(more or {})
        plain = {name: given.pop(name) for name in ("regime", "layout", "offset", "seed") if name in given}
        return Case.of(E=E, M=M, N=N, H=H, dtype=dtype, facts=facts | given, **plain)

    return (
        case(0, narrow, 8, 2),
        case(0, narrow, 8, 2, "bf16", {"onto": "data", "layout": "strided", "offset": 1}),
        case(1, narrow, 1, 4),
        case(3, narrow, 8, 3, "bf16", {"rows": "none", "onto": "data"}),
        case(5, wide, 4, 2, "fp32", {"rows": "last empty", "onto": "data"}),
        case(9, narrow, 8, 4, "fp32", {"rows": "padded", "onto": "data", "seed": 2}),
        case(9, narrow, 8, 4, "bf16", {"rows": "padded", "prob": "none", "layout": "strided", "offset": 3, "seed": 3}),
        case(129, narrow, 4, 2, "fp32", {"rows": "padded", "prob": "none", "bias": False, "seed": 4}),
        case(4, wide, 4, 1, "bf16", {"bias": False, "offset": 2}),
        # More rows an expert than bf16 counts to, 256; more hidden columns, and more features, than any tile has.
        case(259, least, 4, 1),
        # With this seed an expert starts beyond row 256.
        case(519, least, 4, 2, "fp32", {"rows": "padded", "onto": "data", "seed": 243}),
        case(3, least, 130, 2, "fp32", {"seed": 6}),
        # With this seed each of two experts has a row, and both routing weights are above zero.
        case(2, widest, 1, 2, "fp32", {"seed": 14}),
        # Enough rows that routing weights of zero and below are among them.
        case(33, narrow, 2, 2, "fp32", {"regime": "normal", "onto": "data"}),
        case(3, narrow, 8, 1, "fp32", {"regime": "zeros"}),
        case(3, narrow, 8, 2, "bf16", {"regime": "ones", "onto": "data"}),
        # Whole 16-byte lines of features and of hidden columns, where wide loads can be; of one of them alone; and the
        # same sizes where addresses do not follow each other.
        case(3, LINES, LINES, 2, "bf16"),
        case(3, LINES, LINES, 2, "fp32", {"rows": "padded", "onto": "data", "seed": 9}),
        case(3, LINES, LINES, 2, "fp32", {"layout": "strided"}),
        case(3, narrow, LINES, 2),
        # As many experts as a power of two, and a program that finds none of them for itself.
        case(5, least, 2, 16, "fp32", {"rows": "padded", "onto": "data"}),
    )


def tiny(N: int, **facts: Fact) -> tuple[Case, ...]:
    """Cases for the mpmath twin: each pattern of rows, with and without prob, d_bias and the options in `facts`."""
    plain = dict.fromkeys(facts, 0.0) | {}
    return (
        Case.of(E=1, M=1, N=N, H=1, facts=plain),
        Case.of(E=2, M=3, N=N, H=2, facts=plain | {"onto": "data"}, seed=1),
        Case.of(E=3, M=5, N=N, H=2, regime="normal", facts=facts | {"rows": "padded", "onto": "data"}, seed=5),
        Case.of(E=2, M=4, N=N, H=3, dtype="bf16", regime="mean4", facts=plain | {"prob": "none"}, seed=3),
        Case.of(E=2, M=3, N=N, H=2, regime="normal", facts=facts | {"rows": "last empty", "bias": False}, seed=4),
        Case.of(E=1, M=2, N=N, H=2, regime="integers", facts=plain | {"onto": "data"}, seed=5),
    )
