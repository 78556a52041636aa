"""What the fixed-point kernels keep for each KV row, after the sums, in 4-byte words for `entries` rows each.

mass (int64): the sizes of all additions to the row, each rounded up, in 64ths of its unit. count (int32): how many.
peak (FP32, as its bits): the largest. scale (FP32): the power of two by which a contribution is multiplied.
Free of Triton and cuDNN.
"""

from __future__ import annotations

# Where each begins, and how many words a row takes in all; scale is last, so that what a pass starts from is one piece.
MASS, COUNT, PEAK, SCALE, WORDS = 0, 2, 3, 4, 5
# The bits of 1.5 * 2^23 in FP32, which every word that is added carries; see `cudnn_fixed_ptx`.
BIAS = 0x4B400000
