"""Elements of outputs that a problem leaves open: nothing but their repeatability is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from numcheck.errors import InvalidSpec

if TYPE_CHECKING:
    from torch import Tensor

    from numcheck.oracle import Oracle
    from numcheck.reading import Readings
    from numcheck.sample import Sample

Open = Mapping[str, "Tensor"]


def unspecified(oracle: Oracle, drawn: Sample) -> dict[str, Tensor]:
    """Output -> bool mask on the CPU, True where the problem leaves an element open; outputs with none are left out.

    Raises InvalidSpec where `Oracle.unspecified` names no output of the Case, or a mask is none.
    """
    if oracle.unspecified is None:
        return {}
    shapes = {o.name: o.shape(drawn.case) for o in oracle.results_for(drawn.case)}
    masks = masks_of(oracle, "unspecified", oracle.unspecified(drawn.case, drawn.exact_tensors()), shapes)
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def masks_of(
    oracle: Oracle, what: str, masks: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Masks in the shapes of their tensors; raises InvalidSpec for an unknown name, another dtype or shape."""
    import torch

    for name, mask in masks.items():
        if name not in shapes:
            raise InvalidSpec(f"oracle {oracle.name}: {what} names {name!r}; this Case has {', '.join(shapes)}")
        if mask.dtype != torch.bool:
            raise InvalidSpec(f"oracle {oracle.name}: {what} gives {name} as {mask.dtype}; give a bool mask")
        try:
            mask.expand(shapes[name])
        except RuntimeError:
            shape = tuple(mask.shape)
            raise InvalidSpec(
                f"oracle {oracle.name}: {what} gives {name} a mask of shape {shape}, not {shapes[name]}"
            ) from None
    return {name: mask.expand(shapes[name]) for name, mask in masks.items()}


def blank(tensors: Mapping[str, Tensor], left_open: Open) -> dict[str, Tensor]:
    """The tensors by output, zero where the problem leaves an element open; one of another shape is left as it is."""
    return {
        name: t.masked_fill(left_open[name].to(t.device), 0)
        if name in left_open and left_open[name].shape == t.shape
        else t
        for name, t in tensors.items()
    }


def blank_readings(readings: Readings, left_open: Open) -> Readings:
    """The readings with every open element zero, so that it is exact in each of them."""
    if not left_open:
        return readings
    return replace(
        readings,
        truth=blank(readings.truth, left_open),
        emulation=blank(readings.emulation, left_open),
        noise=tuple(blank(draw, left_open) for draw in readings.noise),
        jitters=tuple(blank(draw, left_open) for draw in readings.jitters),
        radius=blank(readings.radius, left_open),
    )
