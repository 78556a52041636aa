"""Elements that an oracle says must not matter, filled with what would show if they did."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from numcheck.difference import difference
from numcheck.errors import RAISED
from numcheck.oracle import Oracle
from numcheck.reading import Truth, read
from numcheck.sample import Sample, in_layout
from numcheck.unspecified import blank, masks_of, unspecified

# What the elements are filled with, by turns. NaN survives any sum and any product with zero; a maximum drops it, as
# a clamp drops an infinity and isfinite both, so huge finite numbers and infinities of either sign come too.
FILLS = ("NaN, integers at their largest", "infinities and huge numbers, integers at their smallest")


def ignored(oracle: Oracle, drawn: Sample) -> dict[str, Tensor]:
    """Input or cotangent -> bool mask on the CPU of the elements that must not matter, where there are any."""
    if oracle.ignored is None:
        return {}
    tensors = drawn.exact_tensors()
    shapes = {name: tuple(t.shape) for name, t in tensors.items()}
    masks = masks_of(oracle, "ignored", oracle.ignored(drawn.case, tensors), shapes)
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def filled(drawn: Sample, masks: dict[str, Tensor], fill: int) -> Sample:
    """The Sample with the masked elements replaced by FILLS[fill]."""

    def changed(name: str, tensor: Tensor) -> Tensor:
        if name not in masks:
            return tensor
        plain = tensor.cpu()
        return in_layout(torch.where(masks[name], _junk(plain, fill), plain), drawn.case, str(tensor.device))

    return drawn.map(changed)


def _junk(tensor: Tensor, fill: int) -> Tensor:
    if tensor.dtype == torch.bool:
        return torch.full_like(tensor, True) if fill else ~tensor
    if not tensor.dtype.is_floating_point:
        limits = torch.iinfo(tensor.dtype)
        return torch.full_like(tensor, limits.min if fill else limits.max)
    huge = torch.finfo(tensor.dtype).max
    values = (math.inf, -math.inf, huge, -huge) if fill else (math.nan,)
    turns = torch.arange(tensor.numel()) % len(values)
    return torch.tensor(values, dtype=tensor.dtype)[turns].reshape(tensor.shape)


def oracle_reads(oracle: Oracle, drawn: Sample, junk: Sample) -> str:
    """Where the oracle's own truth depends on elements that it says do not matter, or ""."""
    left_open = unspecified(oracle, drawn)
    # On the CPU, whose sums have one order: the two truths are compared bit for bit.
    before = blank(read(oracle, Truth(), drawn.exact()), left_open)
    try:
        after = blank(read(oracle, Truth(), junk.exact()), left_open)
    except RAISED as error:
        return f"oracle {oracle.name} raises {type(error).__name__} where elements that it ignores are filled: {error}"
    for name, expected in before.items():
        found = difference(after[name], expected, "its truth")
        if found is not None:
            return (
                f"oracle {oracle.name} reads elements of {', '.join(_filled_names(drawn, junk))} that it says do not "
                f"matter: {found.where(name)}; select them away, since 0 * NaN is NaN"
            )
    return ""


def _filled_names(drawn: Sample, junk: Sample) -> list[str]:
    """Names of the tensors that were filled."""
    return [name for name, t in junk.tensors.items() if t is not drawn.tensors[name]]
