"""Poison: bit patterns that nobody computes, so that memory which nobody wrote can be told from a result.

A poisoned float is a quiet NaN with a payload of its own: a kernel's own NaN (0x7fc00000 and the like) is not it.
Integers have no NaN; theirs is a sentinel, and one byte is too short for one, so that is filled but never judged.
"""

from __future__ import annotations

# Payload digits are arbitrary but for the quiet bit, which keeps conversions from trapping.
FLOAT_BITS = {"fp64": 0x7FF8_BAD0_5EED_BAD1, "fp32": 0x7FEB_AD01, "fp16": 0x7F5B, "bf16": 0x7FEB}
# What a masked-off lane of a load without `other` gets: another payload, so that a message can tell the two apart.
LANE_BITS = {"fp64": 0x7FF8_BAD0_1A2E_BAD2, "fp32": 0x7FDA_BAD2, "fp16": 0x7F2D, "bf16": 0x7FDA}
# What every second such lane gets: a maximum or a comparison may pass over a NaN, and zero times either is NaN.
INFINITY_BITS = {"fp64": 0x7FF0_0000_0000_0000, "fp32": 0x7F80_0000, "fp16": 0x7C00, "bf16": 0x7F80}
# A byte pattern whose 16, 32 and 64 bit integers are large, odd-looking and positive.
INTEGER_BYTE = 0x5B
# Margins hold another pattern, so that a copy of poison into a margin is still seen.
MARGIN_BYTE = 0xA7


def integer(width: int) -> int:
    """The integer sentinel of `width` bytes."""
    return int.from_bytes(bytes([INTEGER_BYTE] * width), "little")
