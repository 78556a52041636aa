"""Rows and numbers as cuDNN's grouped GEMMs want them, in torch operators that never wait for the host.

An expert's rows start and end at multiples of 256 there, and dSReLU takes 4-bit inputs. Rows move to their aligned
places and back; values are packed only where 4 bits hold them exactly, so that the oracle's inputs are the kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.grouped_srelu.eager import owners
from kernels.grouped_srelu.tiles import cut

# Rows to which cuDNN aligns an expert, and values that share one scale factor (MX formats).
ALIGNED, SCALED = 256, 32
# Columns of c and of the packed inputs: a multiple of 16 bytes, and of whole scale blocks.
COLUMNS = 32
# What the 3 low bits of a 4-bit float (e2m1) mean; the fourth is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# A scale factor of 1 in e8m0, which is an exponent with bias 127.
ONE = 127


@dataclass(frozen=True, eq=False)
class Places:
    """Where rows go. source: the row that an aligned one comes from, -1 for padding. target: the way back, -1 too."""

    source: Tensor
    target: Tensor
    ends: Tensor

    @classmethod
    def of(cls, tokens: Tensor, offsets: Tensor, rows: int) -> Places:
        """The places of `rows` rows of experts that own them by `tokens` and `offsets` [E]."""
        experts = len(tokens)
        owner = owners(tokens, offsets, rows)
        spans = (tokens.long() + ALIGNED - 1) // ALIGNED * ALIGNED
        ends = spans.cumsum(0)
        starts = torch.cat([offsets.new_zeros(1), offsets[:-1]]).long()
        expert = owner.clamp(min=0)
        row = torch.arange(rows, device=offsets.device)
        target = torch.where(owner >= 0, (ends - spans)[expert] + row - starts[expert], -1)
        begun = min(experts, rows)
        room = (begun + (rows - begun) // ALIGNED) * ALIGNED
        # One place more, cut off again, takes what has no place.
        source = torch.full((room + 1,), -1, dtype=torch.int64, device=offsets.device)
        source = source.scatter(0, torch.where(target >= 0, target, room), row)[:room]
        return cls(source, target, ends.to(torch.int32))

    def aligned(self, values: Tensor) -> Tensor:
        """Rows at their aligned places, zeros elsewhere."""
        return _taken(values, self.source)

    def back(self, values: Tensor) -> Tensor:
        """Rows from their aligned places, zeros in padding rows."""
        return _taken(values, self.target)


def _taken(values: Tensor, index: Tensor) -> Tensor:
    kept = (index >= 0).reshape(-1, *(1,) * (values.dim() - 1))
    return torch.where(kept, values[index.clamp(min=0)], 0)


def widened(values: Tensor, multiple: int = COLUMNS) -> Tensor:
    """Contiguous, with zeros after the last column up to a multiple of `multiple`."""
    return torch.nn.functional.pad(values, (0, -values.shape[-1] % multiple)).contiguous()


def packed(values: Tensor, name: str) -> Tensor:
    """[..., K] as 4-bit floats, two a byte with the first in the low bits: uint8 [..., K / 2].

    Raises ValueError where a value is none of the sixteen; that is asked of the device, which waits.
    """
    table = torch.tensor(E2M1, device=values.device)
    size = values.float().abs()
    code = (size[..., None] > table).sum(-1)
    if not torch.equal(table[code.clamp(max=len(E2M1) - 1)], size):
        raise ValueError(f"{name} holds values that are no 4-bit floats; they must be among +-{E2M1} to pass unrounded")
    code = (code + 8 * torch.signbit(values)).to(torch.uint8)
    return (code[..., 0::2] | code[..., 1::2] << 4).contiguous()


def unpacked(code: Tensor) -> Tensor:
    """The inverse of `packed`, in FP32."""
    pair = torch.stack([code & 15, code >> 4], -1).flatten(-2).long()
    table = torch.tensor(E2M1, device=code.device)
    return torch.where(pair < 8, table[pair & 7], -table[pair & 7])


def scales(rows: int, depth: int, groups: int, device: torch.device) -> Tensor:
    """Scale factors of 1 for [groups, rows, depth] values, in the atoms (32, 4, rows/128, 4, blocks/4, groups)."""
    blocks = cut(cut(depth, SCALED), 4)
    ones = torch.full((groups, cut(rows, 128), blocks, 32, 4, 4), ONE, dtype=torch.uint8, device=device)
    return ones.view(torch.float8_e8m0fnu).permute(3, 4, 1, 5, 2, 0)
